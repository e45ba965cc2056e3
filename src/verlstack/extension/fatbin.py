"""Which GPU generations a compiled object holds code for, from the fat binaries that nvcc puts into it.

NVIDIA does not document the format; this was seen in what CUDA 12.1, 12.4 and 13.0 write, with `cuobjdump` beside it.
A section `.nv_fatbin` holds one container for each compiled source file: a header of 16 bytes (magic 0xBA55ED50,
version 1, its own size, bytes that follow), then entries, each a header and its code. An entry's header begins with
kind (1 PTX, 2 machine code, 8 intermediate code for the linker), version, its own size (64 at least) and its code's
size; the architecture (80 for 8.0) stands at byte 28, flags at byte 40: 0x100000 is code for that very architecture
("9.0a"), 0x200000 for its family ("12.0f").
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verlstack.extension.elf_file import Data

_MAGIC = struct.pack("<I", 0xBA55ED50)
_CONTAINER = struct.Struct("<4sHHQ")
_ENTRY = struct.Struct("<HHIQ12xI8xQ")  # kind, version, bytes of this header, of the code, architecture, flags
_SMALLEST_ENTRY = 64
_PTX, _MACHINE_CODE = 1, 2
_EXACT, _FAMILY = 0x100000, 0x200000
_MOST_CONTAINERS = 1 << 20  # torch 2.3.1's largest library has 332
_MOST_DISTINCT = 1 << 10
_ARCH = re.compile(r"(\d{1,2})\.(\d)")


class BadFatbinError(ValueError):
    """The fat binary contradicts itself."""


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Code:
    """One entry of a fat binary.

    Attributes:
        major: of the compute capability it is for.
        minor: likewise.
        variant: "a" where it runs on that very capability only, "f" on its family, "" in the ordinary case.
        ptx: whether it is PTX, which the driver compiles when the program starts, and not machine code.
    """

    major: int
    minor: int
    variant: str = ""
    ptx: bool = False

    def __str__(self) -> str:
        return f"{'compute' if self.ptx else 'sm'}_{self.major}{self.minor}{self.variant}"

    def runs_on(self, major: int, minor: int) -> bool:
        """Whether a GPU of that compute capability can load it (CUDA programming guide, "Application Compatibility").

        Machine code runs on the same major and no lower minor; PTX can be compiled for anything newer.
        """
        if self.variant == "a":
            return (self.major, self.minor) == (major, minor)
        if self.ptx and not self.variant:
            return (self.major, self.minor) <= (major, minor)
        return self.major == major and self.minor <= minor


Container = frozenset[Code]


def capability(text: str) -> tuple[int, int]:
    """(8, 0) for "8.0".

    Raises:
        ValueError: it is of another form.
    """
    match = _ARCH.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is no compute capability of the form 8.0")
    return int(match[1]), int(match[2])


def containers(data: Data, start: int, end: int) -> dict[Container, int]:
    """What each container between two offsets holds, and how many hold the same; those without code are left out.

    Raises:
        BadFatbinError: an entry or a container reaches past its end.
    """
    found: dict[Container, int] = {}
    at = data.find(_MAGIC, start, end)
    for _ in range(_MOST_CONTAINERS):
        if at < 0:
            return found
        if end - at < _CONTAINER.size:
            raise BadFatbinError("a fat binary is cut short")
        _, version, header, size = _CONTAINER.unpack_from(data, at)
        if version != 1 or header != _CONTAINER.size:  # four bytes that happen to look like it
            at = data.find(_MAGIC, at + 1, end)
            continue
        first, last = at + header, at + header + size
        if last > end:
            raise BadFatbinError("a fat binary reaches past its section")
        if codes := frozenset(_entries(data, first, last)):
            found[codes] = found.get(codes, 0) + 1
        if len(found) > _MOST_DISTINCT:
            raise BadFatbinError(f"it holds more than {_MOST_DISTINCT} kinds of fat binaries")
        at = data.find(_MAGIC, last, end)
    raise BadFatbinError(f"it holds more than {_MOST_CONTAINERS} fat binaries")


def _entries(data: Data, at: int, end: int) -> Iterator[Code]:
    while at < end:
        if end - at < _SMALLEST_ENTRY:
            raise BadFatbinError("a fat binary ends in the middle of an entry")
        kind, _, header, size, arch, flags = _ENTRY.unpack_from(data, at)
        if header < _SMALLEST_ENTRY or header + size > end - at:
            raise BadFatbinError("an entry of a fat binary reaches past its end")
        if kind in {_PTX, _MACHINE_CODE}:
            variant = "a" if flags & _EXACT else "f" if flags & _FAMILY else ""
            yield Code(major=arch // 10, minor=arch % 10, variant=variant, ptx=kind == _PTX)
        at += header + size
