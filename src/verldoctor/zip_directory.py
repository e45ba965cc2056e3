"""Reads a zip file's table of contents from its end, without reading what it holds, and in bounded memory."""

from __future__ import annotations

import os
import struct
import zlib
from typing import BinaryIO, NamedTuple

_END, _END64, _LOCATOR64, _ENTRY, _LOCAL = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07", b"PK\x01\x02", b"PK\x03\x04"
_COMMENT = 65_535  # longest comment behind the end record
_LOCATOR_SIZE = 20
_LARGEST = 64 << 20  # a table of contents of 64 MiB has about half a million entries
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF  # "see the 64-bit field"
STORED, DEFLATED = 0, 8


class ZipError(ValueError):
    """Not a whole zip file; the message says how."""


class Entry(NamedTuple):
    """One file in a zip file: where its local header begins, its size as stored and unpacked, and how it is packed."""

    name: str
    offset: int
    stored: int
    size: int
    method: int


def entries(stream: BinaryIO) -> dict[str, Entry]:
    """The table of contents of the zip file `stream`, by name.

    Raises:
        ZipError: truncated or damaged: no end record, or entries that lie outside of the file.
        OSError: it cannot be read.
    """
    total = stream.seek(0, os.SEEK_END)
    offset, size, shift = _table(stream, total)
    if size > _LARGEST:
        raise ZipError(f"the table of contents would be {size} bytes long")
    stream.seek(offset + shift)
    table = stream.read(size)
    if len(table) != size:
        raise ZipError("the table of contents is cut off")
    found = _entries(table, shift)
    for entry in found.values():
        if entry.offset < 0 or entry.offset + 30 + entry.stored > offset + shift:
            raise ZipError(f"{entry.name} would lie behind its end")
    return found


def _table(stream: BinaryIO, total: int) -> tuple[int, int, int]:
    """Offset and size of the table of contents, and how far all offsets are shifted by bytes before the zip."""
    start = max(0, total - _COMMENT - 22 - _LOCATOR_SIZE)
    stream.seek(start)
    tail = stream.read()
    place = tail.rfind(_END)
    if place < 0 or len(tail) - place < 22:
        raise ZipError("the end of the zip is missing: the file is cut off")
    count, size, offset = struct.unpack("<H2I", tail[place + 10 : place + 20])
    end = start + place
    locator = tail[max(0, place - _LOCATOR_SIZE) : place]
    if locator[:4] == _LOCATOR64:  # torch.save writes the 64-bit records always, other writers when they must
        end = int.from_bytes(locator[8:16], "little")
        stream.seek(end)
        record = stream.read(56)
        if record[:4] != _END64 or len(record) < 56:
            raise ZipError("the 64-bit end record is damaged")
        size, offset = struct.unpack("<2Q", record[40:56])
    elif count == _FULL16 or _FULL32 in (size, offset):
        raise ZipError("the 64-bit end record is missing")
    if offset + size > end:
        raise ZipError("the table of contents would lie behind its end")
    return offset, size, end - offset - size


def _entries(table: bytes, shift: int) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    place = 0
    while place < len(table):
        if table[place : place + 4] != _ENTRY or len(table) - place < 46:
            raise ZipError("the table of contents is damaged")
        method = struct.unpack_from("<H", table, place + 10)[0]
        stored, size, name_size, extra_size, comment = struct.unpack_from("<2I3H", table, place + 20)
        offset = struct.unpack_from("<I", table, place + 42)[0]
        name = table[place + 46 : place + 46 + name_size].decode("utf-8", "replace")
        extra = table[place + 46 + name_size : place + 46 + name_size + extra_size]
        size, stored, offset = _wide(extra, [size, stored, offset])
        if name in found:
            raise ZipError(f"the table of contents names {name} twice")
        found[name] = Entry(name, offset + shift, stored, size, method)
        place += 46 + name_size + extra_size + comment
    return found


def _wide(extra: bytes, values: list[int]) -> list[int]:
    """`values` with the 64-bit ones of the extra field where 32 bits were not enough."""
    place = 0
    while place + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, place)
        if kind == 1:
            wide = iter(struct.iter_unpack("<Q", extra[place + 4 : place + 4 + length // 8 * 8]))
            return [next(wide, (value,))[0] if value == _FULL32 else value for value in values]
        place += 4 + length
    return values


def content(stream: BinaryIO, entry: Entry, most: int) -> bytes:
    """What `entry` holds.

    Raises:
        ZipError: damaged, packed in an unusual way, or longer than `most` bytes.
    """
    if entry.size > most:
        raise ZipError(f"{entry.name} is {entry.size} bytes long")
    stream.seek(entry.offset)
    header = stream.read(30)
    if header[:4] != _LOCAL or len(header) < 30:
        raise ZipError(f"{entry.name} is damaged")
    stream.seek(entry.offset + 30 + sum(struct.unpack("<2H", header[26:30])))
    if entry.method == STORED:
        data = stream.read(entry.size)
    elif entry.method == DEFLATED:
        data = _inflated(stream.read(min(entry.stored, most)), entry)
    else:
        raise ZipError(f"{entry.name} is packed in an unusual way")
    if len(data) != entry.size:
        raise ZipError(f"{entry.name} is cut off")
    return data


def _inflated(data: bytes, entry: Entry) -> bytes:
    try:
        return zlib.decompressobj(-15).decompress(data, entry.size + 1)
    except zlib.error:
        raise ZipError(f"{entry.name} is damaged") from None
