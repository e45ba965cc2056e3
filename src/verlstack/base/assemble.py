"""`verlstack base build`: a base and the stack's interpreter as an image of its own, for admins to publish."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verlstack import build, compose, oci, store
from verlstack.base import bases, dpkg, staged
from verlstack.oci import Image, NamedBlob

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from verlstack.base.aptsources import Given
    from verlstack.base.bases import Base, Request
    from verlstack.pins import Stack
    from verlstack.store import Finished
    from verlstack.workshop import Workshop


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was made.

    Attributes:
        base: what it stands on.
        size: bytes a registry stores.
        packages: how many Debian packages it is known to hold.
        local: its bytes are this machine's; it is pinned for everyone once a registry holds it.
    """

    stack: str
    tag: str
    digest: str
    base: str
    layout: Path
    size: int
    packages: int
    local: bool


def assemble(
    stack: Stack,
    shop: Workshop,
    *,
    base: str,
    packages: Sequence[str],
    apt: Given | None,
    dist: Path,
    fresh: bool = False,
) -> Report:
    """Write `dist/base-STACK`, an OCI layout of a base and the interpreter's layer, both as `verlstack build` has them.

    Args:
        stack: says which Python, packages, environment, epoch and compression.
        shop: the surroundings.
        base: as `bases.obtain` reads it.
        packages: Debian packages beside the stack's own.
        apt: mirrors and certificates beside the machine's.
        dist: folder of layouts.
        fresh: ask the mirror again rather than take a bootstrap from the cache.

    Raises:
        UsageError: a name is no package's.
        VerlstackError: as `bases.obtain`; the layout in `dist` is then the one that was there before.
    """
    bases.check(base)
    dpkg.check_names(packages, "--package")
    stack.compression.check_library()
    python = shop.find_interpreter(stack.python)
    request = build.base_request(stack, shop, python)
    request = dataclasses.replace(request, apt=apt, fresh=fresh)
    with _ground(base, request, packages, shop.constraints.parent) as ground:
        job = build.interpreter_job(ground, shop.settings(stack, python))
        bottom = store.find(job, shop.cache)
        if bottom is None:
            (bottom,) = compose.build_all([job], shop.cache, workers=1, progress=shop.progress)
        image = _image(stack, ground, bottom)
        tag = f"base-{stack.name}"
        oci.write_layout(image, dist / tag, tag=tag, todo=build.ELSEWHERE)
    return Report(
        stack=stack.name,
        tag=tag,
        digest=image.digest,
        base=ground.reference,
        layout=dist / tag,
        size=image.size,
        packages=len(ground.packages),
        local=ground.local,
    )


@contextlib.contextmanager
def _ground(spec: str, request: Request, packages: Sequence[str], folder: Path) -> Iterator[Base]:
    """The base with the packages; only a bootstrap installs them without an engine."""
    if spec == "debian":
        yield bases.obtain(spec, dataclasses.replace(request, debian_packages=(*request.debian_packages, *packages)))
    elif packages or request.apt:
        with staged.extended(bases.look(spec, request), request, packages, folder) as ground:
            yield ground
    else:
        yield bases.obtain(spec, request)


def _image(stack: Stack, ground: Base, bottom: Finished) -> Image:
    named = [NamedBlob(name=f"base {ground.reference}", blob=blob) for blob in ground.layers]
    labels = {
        "org.opencontainers.image.title": f"verlstack base {stack.name}",
        "org.opencontainers.image.description": f"Python {stack.python} and a C compiler, for {stack.title}",
        "dev.verlstack.base": ground.reference,
        bases.SCOPE: "local" if ground.local else "pinned",
    }
    return Image(
        layers=(*named, NamedBlob(name=bottom.name, blob=bottom.blob)),
        env=tuple(sorted((dict(ground.env) | dict(stack.environment)).items())),
        labels=tuple(sorted(labels.items())),
        epoch=stack.epoch,
        architecture=ground.architecture,
        working_dir="/",
        command=("bash",),
    )
