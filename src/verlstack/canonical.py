"""Canonical JSON: one byte string per value, for digests, cache keys and OCI documents."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from pathlib import Path
from typing import Any

_SPARE = 100  # levels: it is written inside of other documents, and by what is called from deeper than here


def dumps(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no blanks; dataclasses become objects, paths their text.

    Raises:
        TypeError: the value holds something that JSON cannot express.
    """
    text = json.dumps(value, default=_plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def loads(data: bytes | str) -> Any:
    """A JSON document that `dumps` can write again: no number is infinite or none, every text is Unicode.

    Raises:
        ValueError: it is none.
        RecursionError: it is nested deeper than any document.
    """
    value = json.loads(data, parse_constant=_no_number, parse_float=_finite)
    deeper = functools.reduce(lambda inner, _: [inner], range(_SPARE), value)
    json.dumps(deeper, ensure_ascii=False).encode()  # halves of a pair, as "\ud800", are no text in UTF-8
    return value


def mended(data: bytes | str) -> Any:
    """A report in JSON that quotes what programs said: as `loads`, but what is no text in a string becomes `?`."""
    value = json.loads(data, parse_constant=_no_number, parse_float=_finite)
    return loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    """As JSON has it, `1e999` is a number; no float holds it."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:20]} is larger than any number here")
    return number


def digest(value: Any) -> str:
    """SHA-256 of `dumps(value)`, hexadecimal."""
    return hashlib.sha256(dumps(value)).hexdigest()


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no canonical form")
