"""Where a layer's bytes come from: memory, a file, or a member of a wheel that is never unpacked to disk."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from isal import isal_zlib

from verlstack import reading
from verlstack.errors import StorageError, WheelError

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator
    from pathlib import Path

_READ = 1 << 18  # compressed bytes per step: bounds memory, large enough to keep the decompressor busy
_GROW = 1 << 20  # uncompressed bytes per step: a bomb is stopped within this much of its declared size
_STORED = 0
_DEFLATED = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Inline:
    """Bytes made by us: scripts, RECORD, bytecode."""

    data: bytes = field(repr=False)

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self.data)


@dataclass(frozen=True, kw_only=True, slots=True)
class OnDisk:
    """A file outside any archive, with the size and SHA-256 it had when planned."""

    path: Path
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """A stretch of a file: one member of an uncompressed tar that is never unpacked."""

    path: Path
    offset: int
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A member of a zip archive, read straight from the archive's bytes.

    Attributes:
        archive: path of the wheel.
        name: the member's name, for messages.
        offset: where its compressed data start in the archive.
        compressed: their length.
        method: 0 stored, 8 deflated (APPNOTE 4.4.5).
        size: declared length of the uncompressed bytes; more is an error, at once.
        sha256: hash from RECORD; None only for signatures and RECORD itself, which we do not ship as they are.
    """

    archive: Path
    name: str
    offset: int
    compressed: int
    method: int
    size: int
    sha256: str | None


Source = Inline | OnDisk | Slice | Member


class Reader:
    """Reads sources, each archive opened once; use as a context manager."""

    def __init__(self) -> None:
        """Start with no open files."""
        self._open: dict[Path, io.BufferedReader] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()

    def read(self, source: Source) -> bytes:
        """All bytes of a source, verified."""
        return b"".join(self.chunks(source))

    def chunks(self, source: Source) -> Iterator[bytes]:
        """The bytes of a source, piece by piece; the last piece comes only after size and hash were found right.

        Raises:
            WheelError: a wheel's member is damaged, longer than declared, or not what RECORD says.
            StorageError: a file changed between planning and reading.
        """
        if isinstance(source, Inline):
            yield source.data
            return
        digest = hashlib.sha256()
        total = 0
        held = b""
        for piece in self._member(source) if isinstance(source, Member) else self._file(source):
            if held:
                yield held
            digest.update(piece)
            total += len(piece)
            held = piece
        if not isinstance(source, Member):
            if (total, digest.hexdigest()) != (source.size, source.sha256):
                raise StorageError("a file changed while it was being read", where=str(source.path), todo="run again")
        elif total != source.size:
            raise _member_error(source, f"holds {total} bytes, its header says {source.size}")
        elif source.sha256 is not None and digest.hexdigest() != source.sha256:
            raise _member_error(source, f"has sha256 {digest.hexdigest()}, RECORD says {source.sha256}")
        if held:
            yield held

    def _handle(self, path: Path) -> int:
        if path not in self._open:
            self._open[path] = reading.opened(path)
        return self._open[path].fileno()

    def _file(self, source: OnDisk | Slice) -> Iterator[bytes]:
        if isinstance(source, Slice):
            yield from self._stretch(source)
            return
        with reading.opened(source.path) as f:
            while piece := f.read(_GROW):
                yield piece

    def _stretch(self, source: Slice) -> Iterator[bytes]:
        handle, at, end = self._handle(source.path), source.offset, source.offset + source.size
        while at < end and (piece := os.pread(handle, min(_GROW, end - at), at)):
            at += len(piece)
            yield piece

    def _member(self, source: Member) -> Iterator[bytes]:
        if source.method == _STORED:
            if source.compressed != source.size:
                raise _member_error(source, f"is stored in {source.compressed} bytes, declared {source.size}")
            yield from self._raw(source)
        elif source.method == _DEFLATED:
            yield from self._inflated(source)
        else:
            raise _member_error(source, f"uses zip method {source.method}; wheels use stored (0) or deflated (8)")

    def _raw(self, source: Member) -> Iterator[bytes]:
        handle, at, end = self._handle(source.archive), source.offset, source.offset + source.compressed
        while at < end:
            piece = os.pread(handle, min(_READ, end - at), at)
            if not piece:
                raise _member_error(source, "ends before its declared length: the wheel is truncated")
            at += len(piece)
            yield piece

    def _inflated(self, source: Member) -> Iterator[bytes]:
        inflate = isal_zlib.decompressobj(-15)  # raw deflate, 32 kB window: what zip uses
        left = source.size
        try:
            for piece in self._raw(source):
                todo = piece
                while todo:
                    out = inflate.decompress(todo, _GROW)
                    left -= len(out)
                    if left < 0:
                        raise _member_error(source, f"unpacks to more than its declared {source.size} bytes: zip bomb")
                    if out:
                        yield out
                    todo = inflate.unconsumed_tail
                    if inflate.eof:
                        break
                if inflate.eof:
                    break
            if rest := inflate.flush():
                yield rest
        except isal_zlib.error as e:  # type: ignore[misc]  # isal's stubs declare an instance
            raise _member_error(source, f"is damaged: {e}") from e
        if not inflate.eof:
            raise _member_error(source, "ends in the middle of its compressed data: the wheel is truncated")


def _member_error(source: Member, what: str) -> WheelError:
    return WheelError(
        f"{source.name} in {source.archive.name} {what}",
        where=str(source.archive),
        todo="delete this file and fetch it again; if it comes back the same, its publisher must mend it",
    )
