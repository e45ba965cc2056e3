"""Names that a shared object holds for the loader, and where in the file they stand, so that they can be changed there.

Unlike the gate (`extension.elf_symbols`), which refuses what it cannot read, this asks files of the machine's own
Python tree, most of which are no ELF files at all: whatever is none says nothing.
"""

from __future__ import annotations

import struct

from verlstack.extension import elf_dynamic
from verlstack.extension.elf_file import MAGIC

__all__ = ["MAGIC", "needed", "run_paths", "soname"]


def needed(data: bytes) -> tuple[str, ...]:
    """Sonames of the libraries an ELF file asks the loader for; empty for anything that is not such a file."""
    return _strings(data, elf_dynamic.NEEDED)


def run_paths(data: bytes) -> list[tuple[int, bytes]]:
    """Its RUNPATH and RPATH strings, each with its offset in the file."""
    return [*_located(data, elf_dynamic.RUNPATH), *_located(data, elf_dynamic.RPATH)]


def soname(data: bytes) -> str | None:
    """The name under which others need it."""
    names = _strings(data, elf_dynamic.SONAME)
    return names[0] if names else None


def _strings(data: bytes, tag: int) -> tuple[str, ...]:
    return tuple(text.decode("utf-8", "replace") for _, text in _located(data, tag))


def _located(data: bytes, tag: int) -> tuple[tuple[int, bytes], ...]:
    try:
        found = elf_dynamic.Dynamic(data)
        table = found.table(elf_dynamic.STRTAB)
        if table is None:
            return ()
        starts = [table + value for key, value in found.entries if key == tag]
        return tuple((at, data[at : data.index(b"\0", at)]) for at in starts)
    except (struct.error, ValueError, OverflowError):
        return ()  # cut short or nonsense: the loader will say so better than we can
