"""One layer: sorted entries → tar stream → compressed blob, with its diff_id and digest."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Literal, Protocol, cast

import zstandard
from isal import igzip
from zstandard import ZstdError as ZstdError  # noqa: PLC0414 - what `opened` raises on damage

from verlstack import reading, tar
from verlstack.content import Reader
from verlstack.errors import LockError, WheelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

# The compressor is fed in pieces of exactly this size, so that its output can depend on nothing but the content.
_FEED = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Compression:
    """How layers are compressed; part of the lock, because it decides the digest (not the diff_id).

    Attributes:
        level: zstd level.
        window_log: log2 of the window in bytes; 27 (128 MB) is the most that a plain `zstd -d` accepts.
        long_distance: zstd's long-distance matcher. CUDA libraries repeat themselves tens of MB apart.
        library: libzstd's version; other versions may give other bytes.
    """

    level: int
    window_log: int
    long_distance: bool
    library: str

    def check_library(self) -> None:
        """Refuse to compress with another libzstd than the lock names.

        Raises:
            LockError: the installed zstandard carries another libzstd.
        """
        have = ".".join(map(str, zstandard.ZSTD_VERSION))
        if have != self.library:
            raise LockError(
                f"the lock was made with libzstd {self.library}, this environment has {have}; digests would differ",
                todo="run `make tools`, which installs the compressor that constraints/tools.txt pins",
            )


@dataclass(frozen=True, kw_only=True)
class Blob:
    """A finished layer on disk.

    Attributes:
        path: the compressed file.
        digest: `sha256:…` of the compressed bytes.
        diff_id: `sha256:…` of the tar stream.
        size: compressed bytes.
        raw_size: bytes of the tar stream.
        media_type: OCI media type of the file.
    """

    path: Path
    digest: str
    diff_id: str
    size: int
    raw_size: int
    media_type: str


MEDIA_TYPES: dict[Literal["zstd", "gzip", "none"], str] = {
    "zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
    "gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
    "none": "application/vnd.oci.image.layer.v1.tar",
}


def arrange(entries: Iterable[tar.Entry]) -> list[tar.Entry]:
    """Sort entries by path and put every missing parent directory, 0755, before its children.

    The same entry given twice is kept once; that is how two wheels may share `nvidia/__init__.py`.

    Raises:
        WheelError: one path is claimed with two different contents, or a file stands where a directory is needed.
    """
    by_path: dict[str, tar.Entry] = {}
    for entry in entries:
        known = by_path.setdefault(entry.path, entry)
        if known is not entry and not same(known, entry):
            raise _conflict("one path is claimed twice, with different contents", entry.path)
    for path in list(by_path):
        parent = path
        while "/" in parent:
            parent = parent.rpartition("/")[0]
            if by_path.setdefault(parent, tar.directory(parent)).kind != "dir":
                raise _conflict(f"a file stands where /{path} needs a folder", parent)
    return [by_path[path] for path in sorted(by_path)]


def _conflict(what: str, path: str) -> WheelError:
    return WheelError(what, where=f"/{path}", todo="leave one of them out, or pin releases that agree")


def same(one: tar.Entry, other: tar.Entry) -> bool:
    """Whether two entries put the same thing at the same path."""
    return _facts(one) == _facts(other) and (fingerprint(one) == fingerprint(other))


def _facts(entry: tar.Entry) -> tuple[object, ...]:
    return entry.kind, entry.mode, entry.uid, entry.gid, entry.link, entry.size


def fingerprint(entry: tar.Entry) -> str | None:
    """SHA-256 of a file's content; None for directories and links."""
    if entry.content is None:
        return None
    data = getattr(entry.content, "data", None)
    return hashlib.sha256(data).hexdigest() if data is not None else getattr(entry.content, "sha256", None)


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


def _compressor(how: Compression) -> _Compressor:
    parameters = zstandard.ZstdCompressionParameters.from_level(
        how.level, window_log=how.window_log, enable_ldm=how.long_distance
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compressobj()


def write(
    entries: Iterable[tar.Entry], out: IO[bytes], how: Compression, *, epoch: int, progress: Callable[[int], None]
) -> tuple[str, str, int, int]:
    """Write the compressed tar of already arranged entries.

    Args:
        entries: in the order of `arrange`.
        out: where the compressed bytes go.
        how: compression settings.
        epoch: modification time of every entry.
        progress: called with the number of uncompressed bytes just done.

    Returns:
        (diff_id, digest, compressed size, raw size).
    """
    raw, packed = hashlib.sha256(), hashlib.sha256()
    raw_size = size = 0
    compressor = _compressor(how)

    def emit(data: bytes) -> None:
        nonlocal size
        packed.update(data)
        size += len(data)
        out.write(data)

    for piece in _even(stream(entries, epoch=epoch)):
        raw.update(piece)
        raw_size += len(piece)
        emit(compressor.compress(piece))
        progress(len(piece))
    emit(compressor.flush())
    return f"sha256:{raw.hexdigest()}", f"sha256:{packed.hexdigest()}", size, raw_size


@contextlib.contextmanager
def opened(blob: Path, kind: str) -> Iterator[IO[bytes]]:
    """The uncompressed tar of a layer's blob; `kind` is the end of its media type: zstd, gzip, or anything for none."""
    with reading.opened(blob) as raw:
        if kind == "gzip":
            inflate = cast("Callable[..., IO[bytes]]", igzip.IGzipFile)  # a C extension without annotations
            with inflate(fileobj=raw) as unpacked:
                yield unpacked
        elif kind == "zstd":
            unpack = zstandard.ZstdDecompressor(max_window_size=1 << 31)
            with unpack.stream_reader(raw, read_across_frames=True) as unpacked:
                yield unpacked
        else:
            yield raw


def stream(entries: Iterable[tar.Entry], *, epoch: int) -> Iterator[bytes]:
    """The uncompressed tar of arranged entries, piece by piece."""
    with Reader() as reader:
        for entry in entries:
            yield tar.header(entry, epoch)
            if entry.content is not None:
                yield from reader.chunks(entry.content)
                yield tar.padding(entry.size)
    yield tar.END


def _even(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Re-cut a stream into pieces of exactly _FEED bytes, the last one shorter."""
    held = bytearray()
    for piece in pieces:
        held += piece
        if len(held) >= _FEED:
            whole = len(held) - len(held) % _FEED
            view = memoryview(held)
            for at in range(0, whole, _FEED):
                yield bytes(view[at : at + _FEED])
            view.release()
            del held[:whole]
    if held:
        yield bytes(held)
