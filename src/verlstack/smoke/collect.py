"""The folder of a report: what an earlier run left there, and what a run brings out of an image that is not trusted."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from verlstack.cache import storage_errors
from verlstack.errors import ProofError, UsageError
from verlstack.foreigntar import Bounded

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_BYTES = 1 << 28  # of all files together; a report has less than a megabyte, the ranks' logs a few
_MOST_FILES = 10_000  # three for each rank and number of ranks, a thousand ranks are some 6000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WANTED = {".json", ".jsonl", ".txt", ".html", ".xml", ".log"}
# What run.py writes, and nothing else; folders end in a slash here.
_OURS = re.compile(
    r"smoke\.(html|json|txt)|smoke-junit\.xml|ranks-[0-9]+(\.json|\.txt|-so-far\.jsonl|-logs/)|node-[0-9]+(\.log|/)"
)
_ARRIVING = ".verlstack-report-"  # a folder in the report's, until all of it is there
_TODO = "give --report another folder"


@contextlib.contextmanager
def own(report: Path) -> Iterator[None]:
    """Have the folder alone for a run's length, cleared: two runs would else mix their reports.

    Raises:
        StorageError: the disk is full or refuses us.
        UsageError: it is no folder, or another run writes there.
    """
    if report.exists() and not report.is_dir():
        raise UsageError("the report goes into a folder", where=str(report), todo=_TODO)
    with storage_errors(report, todo=_TODO):
        report.mkdir(parents=True, exist_ok=True)
        handle = os.open(report, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise UsageError("another run writes its report there", where=str(report), todo=_TODO) from e
        except OSError:
            pass  # some network file systems cannot lock a folder
        clear(report)
        yield
    finally:
        os.close(handle)


def clear(report: Path) -> None:
    """Remove the report of an earlier run from a folder, by its exact names, and nothing else.

    Raises:
        StorageError: the disk refuses us.
    """
    with storage_errors(report, todo=_TODO):
        for path in report.iterdir():
            if path.name.startswith(_ARRIVING) or _is_ours(path):
                _remove(path)


@contextlib.contextmanager
def arriving(report: Path) -> Iterator[Path]:
    """A fresh folder for what a run brings; in the end it takes its place in `report`, over nothing but a report.

    Raises:
        StorageError: the disk is full or refuses us.
    """
    with storage_errors(report, todo=_TODO):
        folder = Path(tempfile.mkdtemp(prefix=_ARRIVING, dir=report))
    try:
        yield folder
        with storage_errors(report, todo=_TODO):
            for path in sorted(folder.iterdir()):
                if _is_ours(report / path.name):
                    _remove(report / path.name)
                path.rename(report / path.name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_ours(path: Path) -> bool:
    """Whether a name is one that run.py gives, to what it gives it to; a link is nothing that it makes."""
    folder = path.is_dir() and not path.is_symlink()
    return bool(_OURS.fullmatch(f"{path.name}/" if folder else path.name))


def _remove(path: Path) -> None:
    """A node's own folder loses what is a report in it, and goes only if nothing is left."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
    elif not path.name.startswith("node-"):
        shutil.rmtree(path)
    else:
        for inner in path.iterdir():
            if _is_ours(inner):
                _remove(inner)
        with contextlib.suppress(OSError):
            path.rmdir()


def from_tar(stream: Iterator[bytes], folder: Path) -> list[Path]:
    """Write the regular files of a report's tar into `folder`; links, devices and strange names are left out.

    Args:
        stream: the tar, in pieces.
        folder: a fresh one, see `arriving`.

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
                if left < 0 or len(made) == _MOST_FILES:
                    raise _too_much(folder)
                source = archive.extractfile(member)
                made += keep(folder.joinpath(*parts), source.read() if source else b"")
    except tarfile.TarError as e:
        raise ProofError(f"the report cannot be read: {e}", where=str(folder.parent), todo="run again") from e
    return made


def from_folder(source: Path, folder: Path) -> list[Path]:
    """Copy the regular files of a report out of an unpacked image into `folder`; links are not followed.

    Args:
        source: the report's folder, already resolved within the image.
        folder: a fresh one, see `arriving`.

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
            data = _regular(Path(at) / name, left)
            if data is None:
                continue
            left -= len(data)
            if left < 0 or len(made) == _MOST_FILES:
                raise _too_much(folder)
            made += keep(folder.joinpath(*parts), data)
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
    """What run.py writes, at the top; below that plain names, few levels, and an ending that a report has."""
    if not 0 < len(parts) <= 8 or not _OURS.fullmatch(parts[0] if len(parts) == 1 else f"{parts[0]}/"):
        return False
    return all(_NAME.fullmatch(part) for part in parts) and Path(parts[-1]).suffix in _WANTED


def _regular(path: Path, most: int) -> bytes | None:
    """The bytes of a regular file, at most one more than `most`; None for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(most + 1) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None


def keep(path: Path, data: bytes) -> list[Path]:
    """Write one file of the report; nothing where the image has both a file and a folder of that name.

    Raises:
        StorageError: the disk is full or refuses us.
    """
    with storage_errors(path, todo=_TODO), contextlib.suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return [path]
    return []


def _too_much(folder: Path) -> ProofError:
    what = f"the image writes a report of more than {_MOST_BYTES} bytes or {_MOST_FILES} files"
    return ProofError(what, where=str(folder.parent), todo="do not trust this image")
