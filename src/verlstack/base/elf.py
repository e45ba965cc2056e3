"""What a shared object says about itself: the few facts of its dynamic section, without binutils.

Format: System V ABI, "Object Files" and "Dynamic Linking"; only 64-bit little-endian, the one kind our images hold.
"""

from __future__ import annotations

import struct

MAGIC = b"\x7fELF"

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
_PROGRAM = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr
_DYNAMIC = struct.Struct("<qQ")  # Elf64_Dyn
_CLASS64_LITTLE = b"\x02\x01"
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 0, 1, 5, 14, 15, 29


def needed(data: bytes) -> tuple[str, ...]:
    """Sonames of the libraries an ELF file asks the loader for; empty for anything that is not such a file."""
    return _strings(data, _DT_NEEDED)


def run_paths(data: bytes) -> list[tuple[int, bytes]]:
    """Its RUNPATH and RPATH strings, each with its offset in the file."""
    return [*_located(data, _DT_RUNPATH), *_located(data, _DT_RPATH)]


def soname(data: bytes) -> str | None:
    """The name under which others need it."""
    names = _strings(data, _DT_SONAME)
    return names[0] if names else None


def _strings(data: bytes, tag: int) -> tuple[str, ...]:
    return tuple(text.decode("utf-8", "replace") for _, text in _located(data, tag))


def _located(data: bytes, tag: int) -> tuple[tuple[int, bytes], ...]:
    if data[:4] != MAGIC or data[4:6] != _CLASS64_LITTLE:
        return ()
    try:
        segments = _segments(data)
        entries = _dynamic(data, segments)
        tables = [value for key, value in entries if key == _DT_STRTAB]
        if not tables:
            return ()
        table = _file_offset(tables[0], segments)
        starts = [table + value for key, value in entries if key == tag]
        return tuple((at, data[at : data.index(b"\0", at)]) for at in starts)
    except (struct.error, ValueError):
        return ()  # cut short or nonsense: the loader will say so better than we can


def _segments(data: bytes) -> list[tuple[int, int, int, int]]:
    """(type, file offset, address, file size) of each program header."""
    header = _HEADER.unpack_from(data)
    at, size, count = header[5], header[9], header[10]
    found = (_PROGRAM.unpack_from(data, at + n * size) for n in range(count))
    return [(kind, offset, address, length) for kind, _, offset, address, _, length, _, _ in found]


def _dynamic(data: bytes, segments: list[tuple[int, int, int, int]]) -> list[tuple[int, int]]:
    entries: list[tuple[int, int]] = []
    for kind, offset, _, length in segments:
        if kind != _PT_DYNAMIC:
            continue
        for at in range(offset, offset + length, _DYNAMIC.size):
            key, value = _DYNAMIC.unpack_from(data, at)
            if key == _DT_NULL:
                break
            entries.append((key, value))
    return entries


def _file_offset(address: int, segments: list[tuple[int, int, int, int]]) -> int:
    for kind, offset, start, length in segments:
        if kind == _PT_LOAD and start <= address < start + length:
            return address - start + offset
    raise ValueError(f"address {address:#x} lies in no segment")
