"""The dynamic section of an ELF file, found as the loader finds it: through program headers, and through no section."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from verlstack.extension import elf_file
from verlstack.extension.elf_file import BadElfError

if TYPE_CHECKING:
    from verlstack.extension.elf_file import Data

NEEDED, STRTAB, STRSZ, SONAME, RPATH, RUNPATH = 1, 5, 10, 14, 15, 29  # DT_…

_PROGRAM = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr
_DYNAMIC = struct.Struct("<qQ")  # Elf64_Dyn
_PT_LOAD, _PT_DYNAMIC = 1, 2


class Dynamic:
    """Its entries, and where in the file an address lies."""

    def __init__(self, data: Data) -> None:
        """Read program headers and entries.

        Raises:
            BadElfError, struct.error: it is no ELF file of ours, or its headers contradict themselves or its end.
        """
        self.machine, self.kind = elf_file.identify(data[: elf_file.HEADER.size])
        header = elf_file.HEADER.unpack_from(data)
        at, size, count = header[5], header[9], header[10]
        if count and size != _PROGRAM.size:
            raise BadElfError(f"its program headers are {size} bytes each, not {_PROGRAM.size}")
        programs = [_PROGRAM.unpack_from(data, at + n * size) for n in range(count)]
        self._loads: list[tuple[int, int, int]] = [  # address, offset, bytes in the file
            (p[3], p[2], p[5]) for p in programs if p[0] == _PT_LOAD
        ]
        sections = [(p[2], p[5]) for p in programs if p[0] == _PT_DYNAMIC]
        if len(sections) > 1:
            raise BadElfError(f"it has {len(sections)} dynamic sections")
        self.entries = _entries(data, *sections[0]) if sections else []
        self.values = dict(reversed(self.entries))  # the first of each tag, as the loader takes it

    def offset(self, address: int) -> int:
        """Where in the file an address lies.

        Raises:
            BadElfError: nowhere.
        """
        for start, offset, size in self._loads:
            if start <= address < start + size:
                return address - start + offset
        raise BadElfError(f"address {address:#x} lies in no part of the file")

    def table(self, tag: int) -> int | None:
        """Where in the file the table lies that a tag names; None without one."""
        return self.offset(self.values[tag]) if tag in self.values else None


def _entries(data: Data, at: int, size: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for n in range(min(size // _DYNAMIC.size, elf_file.MOST_ENTRIES)):
        tag, value = _DYNAMIC.unpack_from(data, at + n * _DYNAMIC.size)
        if tag == 0:
            break
        found.append((tag, value))
    return found
