"""The base of an image: bootstrapped from the machine's Debian mirror, or pulled from a registry by digest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from verlstack import shell
from verlstack.base import aptsources, debian, pull, python_tree, reference
from verlstack.base.registry import Client
from verlstack.errors import BaseImageError, FetchError, HashMismatchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from verlstack import layer
    from verlstack.base.interpreter import Interpreter
    from verlstack.cache import Cache
    from verlstack.progress import Progress

_FORMS = "write `debian`, `registry:HOST/REPOSITORY@sha256:…` or `auto`"
_REGISTRY = "registry:"
_IMPATIENT = (3.0, 3.0)  # seconds to connect, and to the first byte; `auto` has another way to go
_OS_RELEASE = Path("/etc/os-release")


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

    kind: Literal["debian", "registry"]
    reference: str
    layers: tuple[layer.Blob, ...]
    env: tuple[tuple[str, str], ...] = ()
    architecture: str = pull.ARCHITECTURE
    python_home: str | None = None
    python_version: str | None = None
    local: bool
    packages: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Request:
    """The arguments of `obtain`, passed along as one."""

    wanted_python: str
    debian_packages: tuple[str, ...]
    compression: layer.Compression
    epoch: int
    cache: Cache
    interpreter: Interpreter | None
    env: Mapping[str, str]
    progress: Progress
    offline: bool
    run: Callable[..., shell.Result]


def obtain(
    spec: str,
    *,
    wanted_python: str,
    debian_packages: Sequence[str],
    registry_default: str | None,
    compression: layer.Compression,
    epoch: int,
    cache: Cache,
    interpreter: Interpreter | None,
    env: Mapping[str, str],
    progress: Progress,
    offline: bool,
    run: Callable[..., shell.Result] = shell.run,
) -> Base:
    """The base that `--base SPEC` names.

    Args:
        spec: `debian`, `registry:REF@sha256:…` or `auto`.
        wanted_python: "3.10".
        debian_packages: for `debian`: what to install; the interpreter's own libraries are added here.
        registry_default: the lock's registry base for `auto`, a reference with digest, or None.
        compression: of the Debian layer; a registry's layers stay as they are.
        epoch: of the Debian layer.
        cache: where bases are kept.
        interpreter: the tree that will lie on a base without Python; None if the caller has none.
        env: environment of the command.
        progress: where to tell.
        offline: use the cache alone.
        run: starts programs.

    Raises:
        UsageError: no such form, or a reference without digest.
        BaseImageError: it cannot be had, or does not fit the stack.
        FetchError: a registry does not give it.
        StorageError: the disk is full, read-only or forbidden.
    """
    request = _Request(
        wanted_python=wanted_python,
        debian_packages=tuple(debian_packages),
        compression=compression,
        epoch=epoch,
        cache=cache,
        interpreter=interpreter,
        env=env,
        progress=progress,
        offline=offline,
        run=run,
    )
    check(spec)
    if spec == "debian":
        return _debian(request)
    if spec.startswith(_REGISTRY):
        return _registry(reference.parse(spec.removeprefix(_REGISTRY)), request)
    return _auto(registry_default, request)


def check(spec: str) -> None:
    """Refuse a malformed `--base` before anything is downloaded for it.

    Raises:
        UsageError: no such form, or a reference without digest.
    """
    if spec.startswith(_REGISTRY):
        reference.parse(spec.removeprefix(_REGISTRY))
    elif spec not in {"debian", "auto"}:
        raise UsageError(f"there is no base {spec!r}", where="--base", todo=_FORMS)


def _auto(default: str | None, request: _Request) -> Base:
    """The lock's registry base if it answers at once, else Debian, saying why."""
    if default is None:
        request.progress.say("base: debian, because the lock names no registry base")
        return _debian(request)
    ref = reference.parse(default)
    try:
        if not request.offline:
            with _client(ref, request, impatient=True) as client:
                client.manifest(ref.digest)
        return _registry(ref, request)
    except HashMismatchError:
        raise  # somebody answers, with the wrong bytes: that must not be passed over
    except FetchError as e:
        request.progress.say(f"base: debian, because {ref.host} does not give the lock's base: {e.what}")
        return _debian(request)


def _debian(request: _Request) -> Base:
    packages = list(request.debian_packages)
    if request.interpreter is not None:
        needed = python_tree.shared_libraries(request.interpreter, request.wanted_python)
        packages += python_tree.debian_packages(needed, request.run)
    plan = debian.plan(packages, epoch=request.epoch, compression=request.compression, os_release=_host_release())
    made = debian.bootstrap(
        plan,
        cache=request.cache,
        env=request.env,
        progress=request.progress,
        offline=request.offline,
        run=request.run,
    )
    return Base(
        kind="debian", reference=f"bootstrapped from {made.release}", layers=(made.layer,), local=True,
        packages=made.packages,
    )  # fmt: skip


def _registry(ref: reference.Reference, request: _Request) -> Base:
    with _client(ref, request, impatient=False) as client:
        layers, facts = pull.pull(
            ref,
            wanted_python=request.wanted_python,
            client=client,
            cache=request.cache,
            progress=request.progress,
            offline=request.offline,
        )
    judge(facts, str(ref), request.wanted_python, host=aptsources.parse_release(_host_release()))
    if facts.python_home is None and request.interpreter is not None:
        _check_libraries(facts, ref, request.interpreter, request.wanted_python)
    return Base(
        kind="registry", reference=str(ref), layers=layers, env=facts.env, python_home=facts.python_home,
        python_version=facts.python_version, local=facts.python_home is None,
    )  # fmt: skip


def judge(facts: pull.Facts, name: str, wanted: str, *, host: aptsources.Release) -> None:
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


def _check_libraries(facts: pull.Facts, ref: reference.Reference, interp: Interpreter, wanted: str) -> None:
    if lacks := sorted(python_tree.shared_libraries(interp, wanted) - facts.libraries):
        raise BaseImageError(
            f"the base lacks libraries that this machine's Python needs: {', '.join(lacks)}",
            where=str(ref),
            todo=f"use a base with Python {wanted}, or `--base debian`",
        )


def _client(ref: reference.Reference, request: _Request, *, impatient: bool) -> Client:
    folder = request.env.get("DOCKER_CONFIG") or f"{request.env.get('HOME', '')}/.docker"
    stored = reference.credentials(ref.host, Path(folder) / "config.json")
    return Client(ref, stored=stored, timeout=_IMPATIENT, attempts=1) if impatient else Client(ref, stored=stored)


def _host_release() -> str:
    try:
        return _OS_RELEASE.read_text()
    except OSError:
        return ""
