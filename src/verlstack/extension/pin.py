"""The pins of an extension that is compiled against torch and CUDA: its source, its GPUs, and perhaps its wheel."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from verlstack.schema import BadValueError

if TYPE_CHECKING:
    from verlstack.schema import Table

COMPILER = r"[\w.+, -]{1,100}"  # nvcc's and g++'s versions; it becomes a label
_SHA256 = r"[0-9a-f]{64}"
_FILE = r"[A-Za-z0-9][A-Za-z0-9._+!-]*"  # it becomes a path in the cache
_ARCH = re.compile(r"[1-9][0-9]*\.[0-9]")  # a compute capability as TORCH_CUDA_ARCH_LIST has it
_WHEEL = ("wheel", "wheel_sha256", "wheel_size")
_KEYS = ("version", "why", "sdist", "sdist_sha256", "cuda_archs", "build_tools", "prebuilt", "wheelhouse")


@dataclass(frozen=True, kw_only=True)
class Extension:
    """A compiled extension as people pin it.

    Attributes:
        project: its name on the package index.
        version: of its source, and of its wheel.
        without: what the tag of an image that lacks it ends in.
        sdist: file name of its source on the package index.
        sdist_sha256: its hash.
        cuda_archs: compute capabilities to compile for, "8.0", sorted.
        build_tools: requirements for its compile, besides those of the stack.
        wheel: file name of the compiled wheel that images get, None where none is pinned.
        wheel_sha256: its hash; no other bytes enter an image.
        wheel_size: its bytes: a registry must not send more.
        wheel_compiler: nvcc and g++ that made it, as they are told on the image's label; None where nobody knows.
        prebuilt: https address of that wheel.
        wheelhouse: `HOST/REPOSITORY` of a registry that has that wheel as a blob.
    """

    project: str
    version: str
    without: str
    sdist: str
    sdist_sha256: str
    cuda_archs: tuple[str, ...]
    build_tools: tuple[str, ...]
    wheel: str | None
    wheel_sha256: str | None
    wheel_size: int | None
    wheel_compiler: str | None
    prebuilt: str | None
    wheelhouse: str | None

    @property
    def anywhere(self) -> Extension:
        """The same without the places to look: a mirror of one's own must not change the image."""
        return dataclasses.replace(self, prebuilt=None, wheelhouse=None)


def read(table: Table, *, project: str, without: str, build_tools: tuple[str, ...]) -> Extension:
    """The pins in a table of `stacks.toml`.

    Args:
        table: all of it.
        project: name on the package index.
        without: see `Extension`.
        build_tools: its `build_tools`, already read.

    Raises:
        BadValueError: a value is missing, or of the wrong type or form.
    """
    table.only(*_KEYS, *_WHEEL, "wheel_compiler")
    table.text("why")
    version = table.text("version", r"\d[\w.]*", "a version")
    given = [key for key in _WHEEL if key in table.values]
    if given and len(given) < len(_WHEEL):
        raise BadValueError(f"{', '.join(_WHEEL)} belong together: `verlstack {project} pin` writes them")
    wheel = table.optional("wheel", _FILE, "a file name")
    if wheel is not None:
        _check_name(wheel, project, version)
    prebuilt = table.optional("prebuilt", r"https://[^\s@/]+/\S+", "an https address without user and password")
    if prebuilt and not given:
        raise BadValueError("prebuilt needs wheel_sha256: nothing is taken from an address without a hash")
    return Extension(
        project=project,
        version=version,
        without=without,
        sdist=table.text("sdist", _FILE, "a file name"),
        sdist_sha256=table.text("sdist_sha256", _SHA256, "64 hexadecimal digits"),
        cuda_archs=_archs(table),
        build_tools=build_tools,
        wheel=wheel,
        wheel_sha256=table.optional("wheel_sha256", _SHA256, "64 hexadecimal digits"),
        wheel_size=table.integer("wheel_size", 1, 1 << 32) if given else None,
        wheel_compiler=table.optional("wheel_compiler", COMPILER, "names and versions"),
        prebuilt=prebuilt,
        wheelhouse=table.optional("wheelhouse", r"[A-Za-z0-9][\w.:-]*(/[a-z0-9][a-z0-9._-]*)+", "HOST/REPOSITORY"),
    )


def _archs(table: Table) -> tuple[str, ...]:
    found = table.reasons("cuda_archs")
    if not found:
        raise BadValueError('cuda_archs is empty: name at least one GPU generation, "8.0" = "A100"')
    for arch in found:
        if not _ARCH.fullmatch(arch):
            raise BadValueError(f"cuda_archs.{arch!r} must be of the form 8.0")
    return tuple(sorted(found, key=lambda arch: tuple(map(int, arch.split(".")))))


def _check_name(wheel: str, project: str, version: str) -> None:
    try:
        name, found, _, _ = parse_wheel_filename(wheel)
    except InvalidWheelFilename as e:
        raise BadValueError(f"wheel = {wheel!r} is no wheel's name: {e}") from None
    if name != canonicalize_name(project) or found.public != version:
        raise BadValueError(f"wheel = {wheel!r} is no wheel of {project} {version}")
