"""One file on its way into the cache: resumed where it broke off, hashed as it comes, kept only if right."""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import urllib3

from verlstack.errors import FetchError, HashMismatchError
from verlstack.web import AgainError, reason, redact, refused

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import requests

SLOW_S = 60.0  # seconds over which the speed is judged
SLOW_BYTES = 60_000  # fewer bytes in SLOW_S (below 1 kB/s, and no file here would ever arrive) end the try
_READ = 1 << 16  # bytes asked for at once; read1 returns what has arrived, so that slowness is seen


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A file that the lock names; `size` in bytes, None where the lock does not know it."""

    project: str
    version: str
    filename: str
    sha256: str
    size: int | None


class StoppedError(Exception):
    """Another worker failed, or Ctrl-C: the reason is known elsewhere."""


@dataclass(frozen=True)
class Download:
    """One file on its way into the cache.

    Attributes:
        artifact: the file.
        url: where it is.
        part: what has arrived so far.
        ask: sends a request with the given headers.
        reach: told the size reached, and how much of it just arrived.
        stop: set when it is no longer wanted.
    """

    artifact: Artifact
    url: str
    part: Path
    ask: Callable[[Mapping[str, str]], requests.Response]
    reach: Callable[..., None]
    stop: threading.Event

    def attempt(self) -> None:
        """One request that completes `part`; returns only if its hash is right."""
        have, digest = self._held()
        if have != self.artifact.size:  # equal: killed between the last byte and the rename
            ranged = {"Range": f"bytes={have}-"} if have else {}
            with self.ask({"Accept-Encoding": "identity", **ranged}) as answer:
                have = self._start(answer, have)
                digest = digest if have else hashlib.sha256()
                self._receive(answer, have, digest)
        if digest.hexdigest() == self.artifact.sha256:
            return
        error = self._mismatch("arrived", digest)
        if not have:
            raise error
        self.part.unlink()  # the older part may be to blame: once more from the start
        raise AgainError(error, wait=0)

    def _held(self) -> tuple[int, hashlib._Hash]:
        """Size and hash of what an earlier try left; nothing if that is too much."""
        if not self.part.exists():
            return 0, hashlib.sha256()
        size = self.part.stat().st_size
        if self.artifact.size is not None and size > self.artifact.size:
            return 0, hashlib.sha256()
        with self.part.open("rb", buffering=0) as f:
            return size, hashlib.file_digest(f, "sha256")

    def _start(self, answer: requests.Response, have: int) -> int:
        """Where in the file the answer begins: a server may ignore Range, or refuse it."""
        if answer.status_code == http.HTTPStatus.OK:
            return 0
        resumed = answer.status_code == http.HTTPStatus.PARTIAL_CONTENT
        if resumed and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            return have
        if not resumed and answer.status_code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise refused(answer, subject(self.artifact), self.url)
        self.part.unlink(missing_ok=True)
        raise AgainError(self._broken("the index does not resume where asked to"), wait=0)

    def _receive(self, answer: requests.Response, have: int, digest: hashlib._Hash) -> None:
        size, at = self.artifact.size, have
        with self.part.open("ab" if have else "wb") as f:
            try:
                for piece in self._pieces(answer.raw):
                    at += len(piece)
                    digest.update(piece)
                    if size is not None and at > size:
                        raise self._mismatch(f"is longer than {size} bytes: the first {at}", digest)
                    f.write(piece)
                    self.reach(self.artifact, at, arrived=len(piece))
            except urllib3.exceptions.HTTPError as e:
                ended = isinstance((e.args or (e,))[-1], http.client.IncompleteRead)
                short = self._mismatch(f"broke off; the {at} of {size or 'unknown'} bytes that came", digest)
                raise AgainError(short if ended else self._broken(reason(e)), reached=at) from None
            f.flush()
            os.fsync(f.fileno())
        if size is not None and at < size:  # by its own account the server is done
            raise AgainError(self._mismatch(f"ended after {at} of {size} bytes, which", digest), reached=at)

    def _pieces(self, raw: urllib3.HTTPResponse) -> Iterator[bytes]:
        began, got = time.monotonic(), 0
        while piece := raw.read1(_READ, decode_content=False):
            if self.stop.is_set():
                raise StoppedError
            yield piece
            got += len(piece)
            if (now := time.monotonic()) - began >= SLOW_S:
                if got < SLOW_BYTES:
                    slow = TimeoutError(errno.ETIMEDOUT, f"only {got} bytes in {SLOW_S:g} s")
                    raise urllib3.exceptions.HTTPError from slow
                began, got = now, 0

    def _broken(self, why: str) -> FetchError:
        what = f"{subject(self.artifact)}: the download broke off: {why}"
        todo = "run again: what has arrived is kept; if it stays so, use another index (UV_DEFAULT_INDEX)"
        return FetchError(what, where=redact(self.url), todo=todo)

    def _mismatch(self, how: str, digest: hashlib._Hash) -> HashMismatchError:
        a = self.artifact
        what = f"{a.filename} {how} with sha256 {digest.hexdigest()}, the lock says {a.sha256}; deleted"
        todo = "find out who changes it (mirror, proxy, publisher); use another index, or lock again if it is trusted"
        return HashMismatchError(what, where=redact(self.url), todo=todo)


def subject(a: Artifact) -> str:
    """How messages name an artifact."""
    return f"{a.filename} ({a.project} {a.version})"
