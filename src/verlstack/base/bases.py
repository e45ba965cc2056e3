"""The base of an image: bootstrapped from a Debian mirror, pulled from a registry by digest, or a layout on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from verlstack import shell
from verlstack.base import aptsources, debian, imagescan, layout, pull, python_tree, reference, registry
from verlstack.base import facts as reading
from verlstack.errors import BaseImageError, FetchError, HashMismatchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from verlstack import layer
    from verlstack.base.aptsources import Given
    from verlstack.base.facts import Facts
    from verlstack.base.interpreter import Interpreter
    from verlstack.cache import Cache
    from verlstack.progress import Progress

_FORMS = "write `debian`, `registry:HOST/REPOSITORY@sha256:…`, `oci:DIR` or `auto`"
_REGISTRY = "registry:"
_LAYOUT = "oci:"
SCOPE = "dev.verlstack.base.scope"  # label: "local" or "pinned"
_IMPATIENT = (3.0, 3.0)  # seconds to connect, and to the first byte; `auto` has another way to go
_OS_RELEASE = Path("/etc/os-release")


Kind = Literal["debian", "registry", "oci"]


@dataclass(frozen=True, kw_only=True)
class Base:
    """What an image stands on.

    Attributes:
        kind: how it was had.
        reference: for labels; names neither a mirror nor a path of this machine.
        layers: as they are, bottom first.
        env: the environment of the base's own config.
        architecture: always "amd64" so far.
        python_home: folder of the base's own Python; None where an interpreter layer is needed.
        python_version: that Python's three numbers where its headers say so.
        local: the bytes are not pinned for everyone, so the image must not be published.
        packages: (name, version) of its Debian packages; empty if unknown.
    """

    kind: Kind
    reference: str
    layers: tuple[layer.Blob, ...]
    env: tuple[tuple[str, str], ...] = ()
    architecture: str = pull.ARCHITECTURE
    python_home: str | None = None
    python_version: str | None = None
    local: bool
    packages: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a base must be, and what it is made with.

    Attributes:
        wanted_python: "3.10".
        debian_packages: for `debian`: what to install; the interpreter's own libraries are added.
        registry_default: the lock's registry base for `auto`, a reference with digest, or None.
        compression: of the Debian layer; an image's layers stay as they are.
        epoch: of the Debian layer.
        cache: where bases are kept.
        interpreter: the tree that will lie on a base without Python; None if the caller has none.
        env: environment of the command.
        progress: where to tell.
        offline: use the cache alone.
        apt: for `debian`: other mirrors and certificates than the machine's own.
        fresh: for `debian`: as `debian.bootstrap` reads it.
        run: starts programs.
    """

    wanted_python: str
    debian_packages: tuple[str, ...]
    registry_default: str | None
    compression: layer.Compression
    epoch: int
    cache: Cache
    interpreter: Interpreter | None
    env: Mapping[str, str]
    progress: Progress
    offline: bool
    apt: Given | None = None
    fresh: bool = False
    run: Callable[..., shell.Result] = shell.run


@dataclass(frozen=True, kw_only=True)
class Found:
    """An image that was looked into, whether or not it can carry a stack.

    Attributes:
        local: its bytes are not pinned for everyone, as far as the image alone decides that.
    """

    kind: Kind
    reference: str
    layers: tuple[layer.Blob, ...]
    facts: Facts
    local: bool


def obtain(spec: str, request: Request) -> Base:
    """The base that `--base SPEC` names: `debian`, `registry:REF@sha256:…`, `oci:DIR` or `auto`.

    Raises:
        UsageError: no such form, or a reference without digest.
        BaseImageError: it cannot be had, or does not fit the stack.
        FetchError: a registry does not give it.
        StorageError: the disk is full, read-only or forbidden.
    """
    found = _found(spec, request)
    return _debian(request) if found is None else fit(found, request)


def look(spec: str, request: Request) -> Found:
    """What the base that a spec names is and holds; raises like `obtain`, but refuses none for what it lacks."""
    if found := _found(spec, request):
        return found
    base = _debian(request)
    tree = imagescan.Tree()
    for blob in base.layers:
        imagescan.lay(tree, blob.path, blob.media_type.rpartition("+")[2])
    facts = reading.read(tree, {}, request.wanted_python)
    return Found(kind="debian", reference=base.reference, layers=base.layers, facts=facts, local=True)


def check(spec: str) -> None:
    """Refuse a malformed `--base` before anything is downloaded for it.

    Raises:
        UsageError: no such form, or a reference without digest.
    """
    if spec.startswith(_REGISTRY):
        reference.parse(spec.removeprefix(_REGISTRY))
    elif spec not in {"debian", "auto"} and not (spec.startswith(_LAYOUT) and spec != _LAYOUT):
        raise UsageError(f"there is no base {spec!r}", where="--base", todo=_FORMS)


def _found(spec: str, request: Request) -> Found | None:
    """The image that a spec names; None where Debian is to be bootstrapped."""
    check(spec)
    if spec == "auto":
        return _auto(request)
    return None if spec == "debian" else _image(spec, request)


def _auto(request: Request) -> Found | None:
    """The lock's registry base if it answers at once, else Debian, saying why."""
    if request.registry_default is None:
        request.progress.say("base: debian, because the lock names no registry base")
        return None
    ref = reference.parse(request.registry_default)
    try:
        if not request.offline:
            with _client(ref, request, impatient=True) as client:
                client.manifest(ref.digest)
        return _image(f"{_REGISTRY}{ref}", request)
    except HashMismatchError:
        raise  # somebody answers, with the wrong bytes: that must not be passed over
    except FetchError as e:
        request.progress.say(f"base: debian, because {ref.host} does not give the lock's base: {e.what}")
        return None


def _debian(request: Request) -> Base:
    packages = list(request.debian_packages)
    if request.interpreter is not None:
        needed = python_tree.shared_libraries(request.interpreter, request.wanted_python)
        packages += python_tree.debian_packages(needed, request.run)
    plan = debian.plan(
        packages,
        epoch=request.epoch,
        compression=request.compression,
        os_release=_host_release(),
        apt=request.apt,
    )
    made = debian.bootstrap(
        plan,
        cache=request.cache,
        env=request.env,
        progress=request.progress,
        offline=request.offline,
        fresh=request.fresh,
        run=request.run,
    )
    return Base(
        kind="debian", reference=f"bootstrapped from {made.release}", layers=(made.layer,), local=True,
        packages=made.packages,
    )  # fmt: skip


def _image(spec: str, request: Request) -> Found:
    """The image in a registry or layout; only a registry's digest can be had by everyone."""
    if spec.startswith(_LAYOUT):
        folder = layout.opened(Path(spec.removeprefix(_LAYOUT)).expanduser().absolute())
        layers, facts = _pulled(folder, request)
        local = dict(facts.labels).get(SCOPE, "local") == "local"
        return Found(kind="oci", reference=f"oci@{folder.digest}", layers=layers, facts=facts, local=local)
    ref = reference.parse(spec.removeprefix(_REGISTRY))
    with _client(ref, request, impatient=False) as client:
        layers, facts = _pulled(client, request)
    return Found(kind="registry", reference=str(ref), layers=layers, facts=facts, local=False)


def _pulled(source: pull.Source, request: Request) -> tuple[tuple[layer.Blob, ...], Facts]:
    return pull.pull(
        source,
        wanted_python=request.wanted_python,
        cache=request.cache,
        progress=request.progress,
        offline=request.offline and not isinstance(source, layout.Layout),
    )


def fit(found: Found, request: Request) -> Base:
    """The image as a base; one that needs this machine's Python becomes local.

    Raises:
        BaseImageError: it cannot carry the stack.
    """
    facts = found.facts
    judge(facts, found.reference, request.wanted_python, host=host())
    if facts.python_home is None and request.interpreter is not None:
        _check_libraries(found, request.interpreter, request.wanted_python)
    return Base(
        kind=found.kind, reference=found.reference, layers=found.layers, env=facts.env, python_home=facts.python_home,
        python_version=facts.python_version, local=found.local or facts.python_home is None,
        packages=tuple((one.name, one.version) for one in facts.packages),
    )  # fmt: skip


def judge(facts: Facts, name: str, wanted: str, *, host: aptsources.Release) -> None:
    """Refuse an image that cannot carry the stack.

    Raises:
        BaseImageError: no C compiler; no Python of the wanted version, and not of this machine's release either; a
            Python without its headers.
    """
    if not facts.compiler:
        raise BaseImageError(
            "the base has no C compiler (cc or gcc); Triton compiles its launchers at run time",
            where=name,
            todo="use a base with gcc and libc6-dev",
        )
    if facts.python_home is not None and not facts.headers:
        raise BaseImageError(
            f"the base has Python {wanted} in {facts.python_home}, but not its headers; Triton compiles against them",
            where=name,
            todo=f"use a base with python{wanted}-dev",
        )
    if facts.python_home is None and (facts.os_id, facts.os_version) != (host.id, host.version):
        raise BaseImageError(
            f"the base has no Python {wanted}, and being {facts.os_id} {facts.os_version} it cannot take this machine's"
            f" ({host.id} {host.version}): C library and OpenSSL differ",
            where=name,
            todo=f"use a base with Python {wanted}, or `--base debian`",
        )


def _check_libraries(found: Found, interp: Interpreter, wanted: str) -> None:
    if lacks := sorted(python_tree.shared_libraries(interp, wanted) - set(found.facts.libraries)):
        raise BaseImageError(
            f"the base lacks libraries that this machine's Python needs: {', '.join(lacks)}",
            where=found.reference,
            todo=f"use a base with Python {wanted}, or `--base debian`",
        )


def _client(ref: reference.Reference, request: Request, *, impatient: bool) -> registry.Client:
    if impatient:
        return registry.connect(ref, request.env, timeout=_IMPATIENT, attempts=1)
    return registry.connect(ref, request.env)


def host() -> aptsources.Release:
    """The release of this machine."""
    return aptsources.parse_release(_host_release())


def _host_release() -> str:
    try:
        return _OS_RELEASE.read_text()
    except OSError:
        return ""
