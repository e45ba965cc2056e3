"""Reads the header of a safetensors file and checks that its tensors fill the file without gap or overlap."""

from __future__ import annotations

import json
import os
from math import prod
from typing import Any, BinaryIO

_LARGEST = 100_000_000  # the library's own limit
_MOST_READ = 8_000_000  # of ours: JSON of 8 MB, some 60 000 tensors, becomes at most about 200 MB of objects
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "F64": 64, "I64": 64, "U64": 64,
    "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


class SafetensorsError(ValueError):
    """Not a whole safetensors file; the message says how."""


class TooLargeError(ValueError):
    """The header is within the format's limit, but larger than is read here."""


def shapes(stream: BinaryIO) -> dict[str, list[int]]:
    """The shapes of the tensors in `stream`, whose offsets fit each other and the file.

    Raises:
        SafetensorsError: cut off or damaged.
        TooLargeError: the header is not read here.
        OSError: it cannot be read.
    """
    total = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    length = int.from_bytes(stream.read(8), "little")
    if total < 8 or length > _LARGEST:
        raise SafetensorsError(f"the header would be {length} bytes long" if total >= 8 else "shorter than 8 bytes")
    if length > total - 8:
        raise SafetensorsError(f"the header of {length} bytes is cut off")
    if length > _MOST_READ:
        raise TooLargeError(f"the header is {length} bytes long")
    table = _parsed(stream.read(length))
    table.pop("__metadata__", None)
    _fill(sorted(_span(name, entry) for name, entry in table.items()), total - 8 - length)
    return {name: entry["shape"] for name, entry in table.items()}


def _parsed(raw: bytes) -> dict[str, Any]:
    if not raw.startswith(b"{"):
        raise SafetensorsError("the header is not a JSON object")
    try:
        table = json.loads(raw, object_pairs_hook=_once)
    except SafetensorsError:
        raise
    except (ValueError, RecursionError):
        raise SafetensorsError("the header is not JSON") from None
    if not isinstance(table, dict):
        raise SafetensorsError("the header is not a JSON object")
    return table


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise SafetensorsError("the header names a tensor twice")
    return table


def _span(name: str, entry: Any) -> tuple[int, int, str]:
    match entry:
        case {"dtype": str() as dtype, "shape": [*shape], "data_offsets": [int() as begin, int() as end]}:
            if dtype not in _BITS:
                raise SafetensorsError(f"tensor {name} has the unknown type {dtype}")
            if not all(isinstance(size, int) and 0 <= size < 1 << 63 for size in shape) or len(shape) > 100:
                raise SafetensorsError(f"tensor {name} has an impossible shape")
            if prod(shape) * _BITS[dtype] != (end - begin) * 8 or begin < 0:
                raise SafetensorsError(f"tensor {name} is {end - begin} bytes long, its shape and type say otherwise")
            return begin, end, name
    raise SafetensorsError(f"tensor {name} lacks dtype, shape or data_offsets")


def _fill(spans: list[tuple[int, int, str]], size: int) -> None:
    """Whether `spans` follow one another and fill `size` bytes."""
    place = 0
    for begin, end, name in spans:
        if begin != place:
            how = "overlaps the one before it" if begin < place else "leaves a gap before it"
            raise SafetensorsError(f"tensor {name} {how}: it begins at {begin}, not {place}")
        if end > size:
            raise SafetensorsError(f"tensor {name} ends at {end}, the file's data at {size}: cut off")
        place = end
    if place != size:
        raise SafetensorsError(f"{size - place} bytes follow the last tensor")
