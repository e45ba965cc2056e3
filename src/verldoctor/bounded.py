"""Reads small files that somebody else wrote: regular files only, up to a limit, as text or as JSON of a sane depth."""

from __future__ import annotations

import codecs
import json
import stat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


class Unreadable(Exception):  # noqa: N818 - a state of the input, reported as a finding, not a failure of ours
    """An input that cannot be judged; its text says why."""


def read_bytes(path: Path, limit: int) -> bytes:
    """The whole of `path`.

    Args:
        path: what to read; pipes, devices and directories are refused, they may block or never end.
        limit: bytes; a larger file is refused.

    Raises:
        Unreadable: missing, not permitted, a symlink loop, not a regular file, or too large.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable("not a regular file")
        if found.st_size > limit:
            raise Unreadable(f"{found.st_size} bytes, more than the {limit} that such a file has")
        with path.open("rb") as stream:
            data = stream.read(limit + 1)  # a file of /proc says 0 bytes and may go on for ever
    except (OSError, ValueError, RuntimeError) as error:  # a NUL in the name; a symlink loop before Python 3.13
        raise Unreadable(getattr(error, "strerror", None) or "no such file, or a name that cannot be one") from error
    if len(data) > limit:
        raise Unreadable(f"more than {limit} bytes")
    return data


def read_text(path: Path, limit: int) -> str:
    """The text of `path`, without a byte order mark.

    Raises:
        Unreadable: as `read_bytes`, or not UTF-8, or binary.
    """
    data = read_bytes(path, limit)
    if b"\0" in data:
        raise Unreadable("binary data, not text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(f"not UTF-8 at byte {error.start}") from error


def read_object(path: Path, limit: int) -> dict[str, Any]:
    """The JSON object in `path`.

    Raises:
        Unreadable: as `read_text`, or not JSON, nested too deep, or not an object.
    """
    if read_bytes(path, limit).startswith(codecs.BOM_UTF8):
        raise Unreadable("starts with a byte order mark, which JSON readers refuse")
    try:
        value = json.loads(read_text(path, limit))
    except RecursionError as error:
        raise Unreadable("JSON nested too deep") from error
    except ValueError as error:  # JSONDecodeError, and integers of more than 4300 digits
        raise Unreadable(f"not JSON: {str(error)[:100]}") from error
    if not isinstance(value, dict):
        raise Unreadable(f"JSON, but a {type(value).__name__} where an object is due")
    return value
