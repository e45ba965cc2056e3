"""The members of a zip archive, each one's name and place checked before a byte of it is read (APPNOTE 6.3.10)."""

from __future__ import annotations

import stat
import struct
from typing import IO, TYPE_CHECKING

from verlstack.content import Member
from verlstack.errors import WheelError

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterator
    from pathlib import Path

_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, then the lengths of name and extra field (4.3.7)
_ENCRYPTED = 0x1  # 4.4.4, bit 0
_UTF8 = 0x800  # bit 11
_MAX_DEFLATE_RATIO = 1032  # zlib's documentation, "Maximum Expansion Factor"; more cannot be true
_NAME_MAX = 255  # bytes (Linux limits.h)
_PATH_MAX = 4000  # bytes; Linux' 4096 less the venv's folder
_METHODS = (0, 8)  # stored and deflated (4.4.5): all that wheels use
_LAST_CONTROL = 0x1F
_DELETE = 0x7F


def members(path: Path, archive: zipfile.ZipFile) -> Iterator[Member]:
    """Every file of the archive, without its hash.

    Raises:
        WheelError: a name is unsafe or given twice, a member is no plain file, the directory and the archive's own
            headers disagree, or the declared sizes cannot be true.
    """
    seen: set[str] = set()
    used = 0
    size = path.stat().st_size
    with path.open("rb", buffering=0) as raw:
        for info in archive.infolist():
            _check_name(path, info, seen)
            if info.is_dir():
                continue
            used += info.compress_size
            if info.file_size > info.compress_size * _MAX_DEFLATE_RATIO + 64 or used > size:
                raise error(path, f"declares {info.file_size} bytes for {info.filename}: that is a zip bomb")
            if info.compress_type not in _METHODS:
                raise error(path, f"holds {info.filename!r} in zip method {info.compress_type}, not stored or deflated")
            yield Member(
                archive=path,
                name=info.filename,
                offset=_data_offset(path, raw, info),
                compressed=info.compress_size,
                method=info.compress_type,
                size=info.file_size,
                sha256=None,
            )


def has_control_characters(text: str) -> bool:
    """Whether a name would cut a tar header short, or speak to a terminal."""
    return any(ord(c) <= _LAST_CONTROL or ord(c) == _DELETE for c in text)


def unfit(name: str) -> str | None:
    """Why a path may not be in a layer, or None: whiteouts delete (OCI), long names fit no file system (NAME_MAX)."""
    parts = name.split("/")
    if any(part.startswith(".wh.") for part in parts):
        return "would be a whiteout, which deletes files of other layers"
    if any(len(part.encode()) > _NAME_MAX for part in parts) or len(name.encode()) > _PATH_MAX:
        return "is longer than a file system takes"
    return None


def error(path: Path, what: str) -> WheelError:
    """The error that `path` is not as it should be."""
    return WheelError(
        f"{path.name} {what}", where=str(path), todo="use another release, or delete the file and fetch again"
    )


def _check_name(path: Path, info: zipfile.ZipInfo, seen: set[str]) -> None:
    name = info.orig_filename  # zipfile cuts `filename` at a NUL byte
    parts = name.removesuffix("/").split("/")
    if name.startswith("/") or "\\" in name or ":" in parts[0] or any(p in {"", ".", ".."} for p in parts):
        raise error(path, f"holds the unsafe path {name!r}")
    if has_control_characters(name):
        raise error(path, f"holds a path with control characters: {name!r}")
    if reason := unfit(name):
        raise error(path, f"holds {name[:80]!r}, which {reason}")
    if name != info.filename:  # a Unicode path field that some versions of zipfile honour
        raise error(path, f"calls a member both {name!r} and {info.filename!r}")
    if name in seen:
        raise error(path, f"holds {name!r} twice")
    seen.add(name)
    if stat.S_IFMT(info.external_attr >> 16) not in {0, stat.S_IFREG, stat.S_IFDIR}:
        raise error(path, f"holds {name!r}, which is a link or a device, not a file")
    if info.flag_bits & _ENCRYPTED:
        raise error(path, f"holds {name!r} encrypted")


def _data_offset(path: Path, raw: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Where a member's compressed data start; its local header must name the same member as the directory."""
    head = b""
    if info.header_offset >= 0:  # negative where the archive's beginning is missing
        raw.seek(info.header_offset)
        head = raw.read(_LOCAL_HEADER.size)
    if len(head) < _LOCAL_HEADER.size or not head.startswith(b"PK\x03\x04"):
        raise error(path, f"has no header where its directory places {info.filename}")
    name_length: int
    extra_length: int
    _, name_length, extra_length = _LOCAL_HEADER.unpack(head)
    name = raw.read(name_length)
    if name != info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8 else "cp437"):
        raise error(path, f"calls a member {info.filename!r} in its directory and {name!r} in place")
    return info.header_offset + _LOCAL_HEADER.size + name_length + extra_length
