"""Reads the JSON dumps of host and devices: bounded, one object, numbers in any spelling a person would write."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

from verldoctor.bounded import Unreadable, read_bytes

if TYPE_CHECKING:
    from pathlib import Path

MOST_BYTES = 4_000_000  # the dump of a machine is under 20 kB
UNLIMITED = -1
_UNLIMITED_FROM = 2**62  # RLIM_INFINITY is 2**64-1 in C, -1 in Python; cgroup v1 writes 2**63 less a page
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_NUMBER = re.compile(r"\s*(-?\d{1,24}(?:\.\d{1,6})?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE | re.ASCII)


def read_dump(path: Path) -> bytes:
    """All of a small file.

    Raises:
        Unreadable: it cannot be read, is empty, or is too large to be a dump.
    """
    data = read_bytes(path, MOST_BYTES)
    if not data.strip():
        raise Unreadable("the file is empty")
    return data


def parse_table(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`.

    Raises:
        Unreadable: no JSON, or no object.
    """
    try:
        table = json.loads(data.decode("utf-8-sig"))
    except RecursionError:
        raise Unreadable("JSON nested too deeply") from None
    except ValueError as error:
        raise Unreadable(str(error)[:100]) from None
    if not isinstance(table, dict):
        raise Unreadable(f"JSON of type {type(table).__name__}, not an object")
    return table


def number(value: object) -> float | None:
    """`value` as a number: 64, "64", "64M", "unlimited" (-1); None for anything that is none."""
    if isinstance(value, str):
        if value.strip().lower() in {"unlimited", "infinity", "max"}:
            return UNLIMITED
        match = _NUMBER.fullmatch(value)
        value = float(match[1]) * _UNITS[match[2].lower()] if match else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return UNLIMITED if value >= _UNLIMITED_FROM or value == UNLIMITED else value


def whole(value: object) -> int | None:
    """`value` as a whole number, None for anything else."""
    read = number(value)
    return int(read) if read is not None and read == int(read) else None


def texts(value: object) -> dict[str, str]:
    """The string entries of an object, such as an environment; empty for anything else."""
    if not isinstance(value, dict):
        return {}
    return {str(key): str(entry) for key, entry in value.items() if isinstance(entry, (str, int, float))}


def names(value: object) -> list[str] | None:
    """A list of strings; None where it was not told."""
    if not isinstance(value, list):
        return None
    return [entry for entry in value if isinstance(entry, str)]
