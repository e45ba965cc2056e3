"""Reading tars that somebody else wrote: hashed as they pass, bounded, and without what no image has."""

from __future__ import annotations

import hashlib
import tarfile
from typing import IO, TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_STREAM = 1 << 37  # bytes of one layer's tar
_MAX_EXTENDED = 1 << 20  # bytes of a pax or long-name record, which tarfile reads into memory
_EXTENDED = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)


class Hashing:
    """A readable stream that hashes and counts what passes, up to a bound."""

    def __init__(self, stream: IO[bytes], progress: Callable[[int], None] = lambda _: None) -> None:
        """Wrap the uncompressed tar; `progress` is called with the number of bytes just read."""
        self._stream = stream
        self._progress = progress
        self.digest = hashlib.sha256()
        self.size = 0

    def read(self, amount: int = -1) -> bytes:
        """The next bytes.

        Raises:
            tarfile.ReadError: there are more than any layer has.
        """
        data = self._stream.read(amount)
        self.digest.update(data)
        self.size += len(data)
        self._progress(len(data))
        if self.size > _MAX_STREAM:
            raise tarfile.ReadError(f"it unpacks to more than {_MAX_STREAM} bytes")
        return data


class Bounded(tarfile.TarInfo):
    """A member whose extended header tarfile may read into memory; no sparse file, whose map has no bound."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Bounded:
        """As tarfile's own, which calls it for every header."""
        member = super().frombuf(buf, encoding, errors)
        if member.type in _EXTENDED and not 0 <= member.size <= _MAX_EXTENDED:
            raise tarfile.ReadError(f"an extended header of {member.size} bytes")
        return member

    def _refuse(self, *_: object) -> NoReturn:
        raise tarfile.ReadError("a sparse file, which no image has")

    _proc_sparse = _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse
