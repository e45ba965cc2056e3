"""Which symbols a shared object asks for and which it gives, from its hash table: 800 MB of library cost nothing.

Format: System V ABI "Dynamic Linking" and the GNU hash section; 64-bit little-endian only, as the images are.
"""

from __future__ import annotations

import mmap
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_GNU = struct.Struct("<IIII")
_PT_LOAD, _PT_DYNAMIC = 1, 2
_NULL, _NEEDED, _HASH, _STRTAB, _SYMTAB, _STRSZ, _GNU_HASH = 0, 1, 4, 5, 6, 10, 0x6FFFFEF5
_MOST_DYNAMIC = 4096  # entries; torch's libraries have about 40
_MOST_SYMBOLS = 400_000  # libtorch_cuda.so of torch 2.3.1 gives under 100 000
_MOST_NAME = 20_000  # a mangled C++ name
_GLIBC = re.compile(rb"GLIBC_2\.(\d{1,3})")


class NotElfError(ValueError):
    """The file is no 64-bit little-endian shared object, or is cut short."""


@dataclass(frozen=True)
class Library:
    """An opened shared object.

    Attributes:
        data: the mapped file.
        symbols: file offset of .dynsym.
        strings: file offset of .dynstr.
        strings_size: bytes of it.
        gnu_hash: file offset of the GNU hash table, 0 if there is none.
        sysv_hash: file offset of the old hash table, 0 if there is none.
        needed: names of the libraries it loads.
    """

    data: mmap.mmap
    symbols: int
    strings: int
    strings_size: int
    gnu_hash: int
    sysv_hash: int
    needed: tuple[str, ...]


def load(path: Path) -> Library:
    """Maps `path` and finds its dynamic tables.

    Raises:
        OSError: it cannot be read.
        NotElfError: it is no such file.
    """
    with path.open("rb") as stream:
        try:
            data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:  # empty
            raise NotElfError(str(error)) from error
    try:
        return _tables(data)
    except (struct.error, IndexError, KeyError, OverflowError) as error:
        raise NotElfError(f"{path.name}: cut short or not a shared object") from error


def _tables(data: mmap.mmap) -> Library:
    if data[:6] != b"\x7fELF\x02\x01":
        raise NotElfError("not a 64-bit little-endian ELF file")
    header = _HEADER.unpack_from(data)
    programs = [_PROGRAM.unpack_from(data, header[5] + n * header[9]) for n in range(header[10])]
    loads = [(address, offset, size) for kind, _, offset, address, _, size, _, _ in programs if kind == _PT_LOAD]
    entries = [entry for program in programs if program[0] == _PT_DYNAMIC for entry in _dynamic(data, program[2])]
    values = dict(entries)
    strings = _offset(loads, values[_STRTAB])
    size = values.get(_STRSZ, 0)
    needed = tuple(_name(data, strings, size, at).decode("utf-8", "replace") for tag, at in entries if tag == _NEEDED)
    tables = [_offset(loads, values[tag]) if tag in values else 0 for tag in (_GNU_HASH, _HASH)]
    return Library(data, _offset(loads, values[_SYMTAB]), strings, size, tables[0], tables[1], needed)


def _dynamic(data: mmap.mmap, at: int) -> list[tuple[int, int]]:
    entries: list[tuple[int, int]] = []
    for n in range(_MOST_DYNAMIC):
        tag, value = _DYNAMIC.unpack_from(data, at + n * _DYNAMIC.size)
        if tag == _NULL:
            break
        entries.append((tag, value))
    return entries


def _offset(loads: list[tuple[int, int, int]], address: int) -> int:
    for start, offset, size in loads:
        if start <= address < start + size:
            return address - start + offset
    raise KeyError(address)


def _name(data: mmap.mmap, strings: int, size: int, at: int) -> bytes:
    if at >= size:
        raise IndexError(at)
    end = data.find(b"\0", strings + at, strings + min(size, at + _MOST_NAME))
    return data[strings + at : end if end >= 0 else strings + at]


def undefined(library: Library) -> list[bytes]:
    """Names of the symbols that the loader must find elsewhere; weak ones, which may stay unfound, are left out."""
    try:
        count = _unhashed(library)
        rows = (_SYMBOL.unpack_from(library.data, library.symbols + n * _SYMBOL.size) for n in range(1, count))
        wanted = [row[0] for row in rows if row[3] == 0 and row[1] >> 4 == 1]  # SHN_UNDEF, STB_GLOBAL
        return [_name(library.data, library.strings, library.strings_size, at) for at in wanted]
    except (struct.error, IndexError):
        return []


def _unhashed(library: Library) -> int:
    """How many symbols to look at: the GNU hash table leaves the undefined ones in front, the old one counts all."""
    if library.gnu_hash:
        first: int = _GNU.unpack_from(library.data, library.gnu_hash)[1]
        return min(first, _MOST_SYMBOLS)
    if library.sysv_hash:
        count: int = struct.unpack_from("<II", library.data, library.sysv_hash)[1]
        return min(count, _MOST_SYMBOLS)
    return 0


def defines(library: Library, name: bytes) -> bool:
    """Whether `library` gives the symbol `name`."""
    try:
        return _in_gnu(library, name) if library.gnu_hash else _in_sysv(library, name)
    except (struct.error, IndexError):
        return False


def _in_gnu(library: Library, name: bytes) -> bool:
    data, at = library.data, library.gnu_hash
    buckets, first, bloom, _ = _GNU.unpack_from(data, at)
    if not buckets:
        return False
    value = gnu_hash(name)
    chains = at + _GNU.size + bloom * 8
    (index,) = struct.unpack_from("<I", data, chains + value % buckets * 4)
    start = chains + buckets * 4
    for n in range(index, min(index + _MOST_SYMBOLS, index + 65_536) if index >= first else index):
        (chained,) = struct.unpack_from("<I", data, start + (n - first) * 4)
        if (chained ^ value) >> 1 == 0 and _is(library, n, name):
            return True
        if chained & 1:
            break
    return False


def _in_sysv(library: Library, name: bytes) -> bool:
    if not library.sysv_hash:
        return False
    data, at = library.data, library.sysv_hash
    buckets, count = struct.unpack_from("<II", data, at)
    (index,) = struct.unpack_from("<I", data, at + 8 + _sysv_hash(name) % max(buckets, 1) * 4)
    for _ in range(min(count, _MOST_SYMBOLS)):
        if index == 0:
            return False
        if _is(library, index, name):
            return True
        (index,) = struct.unpack_from("<I", data, at + 8 + (buckets + index) * 4)
    return False


def _is(library: Library, index: int, name: bytes) -> bool:
    row = _SYMBOL.unpack_from(library.data, library.symbols + index * _SYMBOL.size)
    return row[3] != 0 and _name(library.data, library.strings, library.strings_size, row[0]) == name


def gnu_hash(name: bytes) -> int:
    """The hash of DT_GNU_HASH: h * 33 + byte, from 5381."""
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def _sysv_hash(name: bytes) -> int:
    value = 0
    for byte in name:
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high & 0xFFFFFFFF
    return value


def newest_glibc(library: Library) -> int:
    """The minor version n of the newest GLIBC_2.n it names; 0 if it names none."""
    strings = library.data[library.strings : library.strings + min(library.strings_size, 64_000_000)]
    return max((int(minor) for minor in _GLIBC.findall(strings)), default=0)
