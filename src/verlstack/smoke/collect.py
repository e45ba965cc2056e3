"""The report of a smoke run, brought out of a container or an unpacked image that is not trusted to be well-behaved."""

from __future__ import annotations

import os
import re
import stat
import tarfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from verlstack.cache import storage_errors
from verlstack.errors import ProofError
from verlstack.foreigntar import Bounded

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_BYTES = 1 << 28  # of all files together; a report has less than a megabyte, the ranks' logs a few
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WANTED = {".json", ".txt", ".html", ".xml", ".log"}


def from_tar(stream: Iterator[bytes], folder: Path) -> list[Path]:
    """Write the regular files of a report's tar into `folder`; links, devices and strange names are left out.

    Returns:
        The files, in the order of the tar.

    Raises:
        ProofError: it is no tar, or more than any report.
        StorageError: the disk is full or refuses us.
    """
    made: list[Path] = []
    left = _MOST_BYTES
    try:
        reader: Any = _Reader(stream)
        with tarfile.open(fileobj=reader, mode="r|", tarinfo=Bounded) as archive:
            for member in archive:
                parts = PurePosixPath(member.name).parts[1:]  # the first is the folder that was asked for
                if not member.isreg() or not _harmless(parts):
                    continue
                left -= member.size
                if left < 0:
                    raise _too_much(folder)
                source = archive.extractfile(member)
                made.append(keep(folder.joinpath(*parts), source.read() if source else b""))
    except tarfile.TarError as e:
        raise ProofError(f"the report cannot be read: {e}", where=str(folder), todo="run again") from e
    return made


def from_folder(source: Path, folder: Path) -> list[Path]:
    """Copy the regular files of a report out of an unpacked image; links are not followed.

    Raises:
        ProofError: more than any report.
        StorageError: the disk is full or refuses us.
    """
    made: list[Path] = []
    left = _MOST_BYTES
    if source.is_symlink():
        return made
    for at, folders, names in os.walk(source):
        folders.sort()
        for name in sorted(names):
            parts = (*Path(at).relative_to(source).parts, name)
            if not _harmless(parts):
                continue
            with storage_errors(folder):
                data = _regular(Path(at) / name, left)
            if data is None:
                continue
            left -= len(data)
            if left < 0:
                raise _too_much(folder)
            made.append(keep(folder.joinpath(*parts), data))
    return made


class _Reader:
    """The pieces of an iterator as a stream."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, amount: int) -> bytes:
        parts = [self._rest]
        have = len(self._rest)
        while have < amount and (piece := next(self._pieces, b"")):
            parts.append(piece)
            have += len(piece)
        whole = b"".join(parts)
        self._rest = whole[amount:]
        return whole[:amount]


def _harmless(parts: tuple[str, ...]) -> bool:
    """Plain names, few levels, and an ending that a report has."""
    plain = 0 < len(parts) <= 8 and all(_NAME.fullmatch(part) for part in parts)
    return plain and Path(parts[-1]).suffix in _WANTED


def _regular(path: Path, most: int) -> bytes | None:
    """The bytes of a regular file, at most one more than `most`; None for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(most + 1) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None


def keep(path: Path, data: bytes) -> Path:
    """Write one file of the report.

    Raises:
        StorageError: the disk is full or refuses us.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return path


def _too_much(folder: Path) -> ProofError:
    return ProofError(
        f"the image writes a report of more than {_MOST_BYTES} bytes", where=str(folder), todo="do not trust this image"
    )
