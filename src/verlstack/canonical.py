"""Canonical JSON: one byte string per value, for digests, cache keys and OCI documents."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any


def dumps(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no blanks; dataclasses become objects, paths their text.

    Raises:
        TypeError: the value holds something that JSON cannot express.
    """
    text = json.dumps(value, default=_plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def loads(data: bytes) -> Any:
    """A JSON document, without the numbers that Python reads and JSON does not know.

    Raises:
        ValueError: it is none.
        RecursionError: it is nested deeper than any document.
    """
    return json.loads(data, parse_constant=_no_number)


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def digest(value: Any) -> str:
    """SHA-256 of `dumps(value)`, hexadecimal."""
    return hashlib.sha256(dumps(value)).hexdigest()


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no canonical form")
