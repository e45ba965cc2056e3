"""An ELF file's header, its sections by name, and bytes and names from its tables: nothing is taken on trust.

Format: System V ABI, "Object Files"; 64-bit little-endian only, the one kind our images hold. A damaged file costs an
error, not memory or time.
"""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC = b"\x7fELF"
X86_64 = 62  # EM_X86_64
EXECUTABLE, SHARED = 2, 3  # ET_EXEC, ET_DYN
DYNAMIC_SYMBOLS = 11  # SHT_DYNSYM
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr

_SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
_SHT_NULL, _SHT_NOBITS, _SHN_XINDEX = 0, 8, 0xFFFF
_MOST_TABLE = 1 << 28  # bytes of one table
# Bytes of all names read from one string table, where entries may share theirs: 65536 times one of 64 KB is 4 GB.
# torch 2.3.1's libtorch_cuda.so has 11 million.
_MOST_NAMES = 1 << 26
_MOST_NAME = 1 << 16
MOST_ENTRIES = 1 << 16  # of the dynamic section, version tables and section headers

Data = bytes | mmap.mmap


class BadElfError(ValueError):
    """The file is no 64-bit little-endian ELF file, or contradicts itself."""


def identify(data: bytes) -> tuple[int, int]:
    """(e_machine, e_type) from a file's first 64 bytes.

    Raises:
        BadElfError: they are no header of a 64-bit little-endian ELF file.
    """
    if len(data) < HEADER.size or data[:6] != MAGIC + b"\x02\x01":
        raise BadElfError("it is no 64-bit little-endian ELF file")
    _, kind, machine, *_ = HEADER.unpack_from(data)
    return machine, kind


def sections(data: Data) -> dict[str, tuple[int, int]]:
    """(offset, size) in the file of every named section that has bytes there; empty where headers were stripped.

    Raises:
        BadElfError: the section headers lie.
    """
    identify(data[: HEADER.size])
    try:
        headers = list(section_headers(data))
        names = headers[_names_index(data, headers)] if headers else None
        if names is None:
            return {}
        text = Names(stretch(data, names[4], names[5]))
        found = {text.at(h[0]): (h[4], h[5]) for h in headers if h[1] not in {_SHT_NULL, _SHT_NOBITS}}
    except (struct.error, IndexError, OverflowError) as e:
        raise BadElfError("its section headers reach past the end of the file") from e
    if any(at + size > len(data) for at, size in found.values()):
        raise BadElfError("a section reaches past the end of the file")
    return found


def section_headers(data: Data) -> Iterator[tuple[int, ...]]:
    """Every Elf64_Shdr: type at 1, offset at 4, size at 5.

    Raises:
        BadElfError, struct.error: there are too many, or they reach past the end.
    """
    header = HEADER.unpack_from(data)
    at, size, count = header[6], header[11], header[12]
    if at == 0:
        return
    if size != _SECTION.size:
        raise BadElfError(f"its section headers are {size} bytes each, not {_SECTION.size}")
    if count == 0:  # the true number stands in the first one
        count = _SECTION.unpack_from(data, at)[5]
    if count > MOST_ENTRIES:
        raise BadElfError(f"it claims {count} sections")
    for n in range(count):
        yield _SECTION.unpack_from(data, at + n * size)


def _names_index(data: Data, headers: list[tuple[int, ...]]) -> int:
    index: int = HEADER.unpack_from(data)[13]
    return headers[0][6] if index == _SHN_XINDEX else index


def stretch(data: Data, at: int, size: int) -> bytes:
    """A table's bytes.

    Raises:
        BadElfError: the file is not that long.
    """
    if at + size > len(data) or size > _MOST_TABLE:
        raise BadElfError("a table reaches past the end of the file")
    return data[at : at + size]


class Names:
    """A string table, read up to a bound for all of its readers together."""

    def __init__(self, table: bytes) -> None:
        self._table = table
        self._left = _MOST_NAMES

    def at(self, at: int) -> str:
        """The name that begins at `at`.

        Raises:
            BadElfError: it lies outside, has no end, would speak to a terminal, or more was read than any file has.
        """
        end = self._table.find(b"\0", at, at + _MOST_NAME)
        if at >= len(self._table) or end < 0:
            raise BadElfError("a name has no end")
        self._left -= end - at
        if self._left < 0:
            raise BadElfError("its names are longer than its string table can make them")
        text = self._table[at:end].decode("utf-8", "backslashreplace")
        if not text.isprintable():
            raise BadElfError("a name holds control characters")
        return text
