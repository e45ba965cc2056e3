"""Get what the lock names into the cache: in parallel, resumable, and never used before its SHA-256 is right."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from packaging.utils import canonicalize_name

from verlstack.cache import sha256_file, storage_errors
from verlstack.download import Artifact, Download, StoppedError, subject
from verlstack.errors import FetchError, HashMismatchError
from verlstack.index import Index, locate, session
from verlstack.web import Sleep, get, patiently

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import requests

    from verlstack.cache import Cache
    from verlstack.progress import Progress

T = TypeVar("T")

LEAVE_S = 0.5  # seconds that workers have to stop after an error or Ctrl-C; one that hangs is a daemon and left behind


def fetch(
    artifacts: Sequence[Artifact],
    *,
    cache: Cache,
    index: Index | None,
    offline: bool,
    progress: Progress,
    env: Mapping[str, str],
    workers: int = 8,
    sleep: Sleep | None = None,
) -> dict[str, Path]:
    """Paths of all `artifacts` in the cache by sha256, each one hashed in this call, cached or not.

    Args:
        artifacts: only what will be read: verifying costs about 1 s per GB and core.
        cache: where files go; parts of an interrupted download are resumed from there.
        index: where to download from; None acts like `offline`.
        offline: never touch the network.
        progress: gets one task "fetch", in bytes.
        env: environment to take the CA bundle from.
        workers: downloads at once.
        sleep: pauses before another try; by default one that ends early when the others fail.

    Raises:
        FetchError: a file cannot be had.
        HashMismatchError: bytes arrived or were cached that are not the locked ones.
        StorageError: the cache cannot be written.
    """
    wanted = {a.sha256: a for a in artifacts}
    paths = {a.sha256: cache.file(a.sha256, a.filename) for a in wanted.values()}
    source = None if offline else index
    if source is None:
        _refuse_missing([a for a in wanted.values() if not paths[a.sha256].is_file()])
    sizes = [a.size for a in wanted.values()]
    progress.start("fetch", None if None in sizes else sum(s or 0 for s in sizes))
    worker = _Worker(cache, source, env, progress, sleep)
    note = "stopped; what has arrived is kept"
    try:
        _in_threads(_by_project(wanted.values()), worker.obtain, count=workers, stop=worker.stop)
        note = worker.tally.note()
    finally:
        worker.close()
        progress.finish("fetch", note)
    return paths


def _refuse_missing(missing: Sequence[Artifact]) -> None:
    if not missing:
        return
    names = "\n".join(f"    {a.filename}" for a in missing[:10])
    more = f"\n    and {len(missing) - 10} more" if len(missing) > 10 else ""
    what = f"{len(missing)} files are not in the cache and --offline forbids fetching them:\n{names}{more}"
    raise FetchError(what, todo="run the same command once without --offline, or copy a filled cache here")


def _by_project(artifacts: Iterable[Artifact]) -> list[list[Artifact]]:
    """One job per project and version, so that its page is asked for once; the most bytes first."""
    jobs: dict[tuple[str, str], list[Artifact]] = {}
    for a in artifacts:
        jobs.setdefault((canonicalize_name(a.project), a.version), []).append(a)
    return sorted(jobs.values(), key=lambda job: -sum(a.size or 0 for a in job))


def _in_threads(jobs: Sequence[T], work: Callable[[T], None], *, count: int, stop: threading.Event) -> None:
    """Do all jobs; the first failure, or Ctrl-C, stops them all.

    Daemon threads, because a ThreadPoolExecutor would make Ctrl-C wait for a silent server's time-out.
    """
    todo: queue.SimpleQueue[T] = queue.SimpleQueue()
    done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    for job in jobs:
        todo.put(job)

    def drain() -> None:
        with contextlib.suppress(queue.Empty):
            while not stop.is_set():
                job = todo.get_nowait()
                try:
                    work(job)
                except BaseException as e:  # noqa: BLE001 - raised again in the caller's thread
                    done.put(e)
                else:
                    done.put(None)

    threads = [threading.Thread(target=drain, name="fetch", daemon=True) for _ in range(min(count, len(jobs)))]
    try:
        for thread in threads:
            thread.start()
        for _ in jobs:
            if failure := done.get():
                raise failure
    finally:
        stop.set()
        end = time.monotonic() + LEAVE_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))


class _Tally:
    """Counts for the user; the one place where threads meet to speak."""

    def __init__(self, progress: Progress) -> None:
        self._lock = threading.Lock()
        self._progress = progress
        self._at: dict[str, int] = {}
        self._arrived = self._fetched = self._cached = 0

    def reach(self, a: Artifact, size: int, *, arrived: int = 0) -> None:
        """The file now has `size` bytes, fewer than before if its download began anew."""
        with self._lock:
            self._progress.advance("fetch", size - self._at.get(a.sha256, 0))
            self._at[a.sha256] = size
            self._arrived += arrived

    def done(self, *, cached: bool) -> None:
        with self._lock:
            self._cached += cached
            self._fetched += not cached

    def say(self, line: str) -> None:
        with self._lock:
            self._progress.say(line)

    def note(self) -> str:
        return f"{self._fetched} files, {self._arrived / 1e6:.1f} MB downloaded, {self._cached} files from the cache"


class _Worker:
    """What all threads share: the cache, the index, idle sessions and the wish to stop."""

    def __init__(
        self, cache: Cache, index: Index | None, env: Mapping[str, str], progress: Progress, sleep: Sleep | None
    ) -> None:
        self.stop = threading.Event()
        self.tally = _Tally(progress)
        self._cache = cache
        self._index = index
        self._env = env
        self._sleep = sleep or self.stop.wait
        self._idle: list[requests.Session] = []

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    @contextlib.contextmanager
    def _session(self, index: Index) -> Iterator[requests.Session]:
        """A session for one thread at a time: requests does not promise more."""
        try:
            own = self._idle.pop()
        except IndexError:
            own = session(index, self._env)
        try:
            yield own
        finally:
            self._idle.append(own)

    def obtain(self, job: Sequence[Artifact]) -> None:
        """Get the files of one project into the cache."""
        missing = [a for a in job if not self._cached(a)]
        if self._index is None or not missing:
            return
        with self._session(self._index) as at:
            names = {a.sha256: a.filename for a in missing}
            seek = partial(locate, self._index, missing[0].project, missing[0].version, names, at)
            urls = patiently(seek, self._pause)
            for a in missing:
                ask = partial(get, at, self._index, urls[a.sha256], subject(a), stream=True)
                self._download(a, Download(a, urls[a.sha256], self._part(a), ask, self.tally.reach, self.stop))

    def _cached(self, a: Artifact) -> bool:
        path = self._cache.file(a.sha256, a.filename)
        with storage_errors(path):
            if not path.is_file():
                return False
            actual = sha256_file(path)
            if actual != a.sha256:
                what = f"{a.filename} in the cache has sha256 {actual}, the lock says {a.sha256}"
                if self._index is None:
                    raise HashMismatchError(what, where=str(path), todo="run once without --offline: it is replaced")
                path.unlink()
                self.tally.say(f"{what}: deleted, fetching it again")
                return False
            self.tally.reach(a, path.stat().st_size)
            self.tally.done(cached=True)
            return True

    def _part(self, a: Artifact) -> Path:
        return self._cache.parts / f"{a.sha256}.part"

    def _pause(self, seconds: float) -> None:
        self._sleep(seconds)
        if self.stop.is_set():
            raise StoppedError

    def _download(self, a: Artifact, download: Download) -> None:
        target = self._cache.file(a.sha256, a.filename)
        with storage_errors(download.part), self._cache.lock(a.sha256):
            if self._cached(a):
                return  # another process was faster
            download.part.parent.mkdir(parents=True, exist_ok=True)
            try:
                patiently(download.attempt, self._pause)
            except HashMismatchError:
                download.part.unlink(missing_ok=True)
                raise
            target.parent.mkdir(parents=True, exist_ok=True)
            download.part.replace(target)
        self.tally.done(cached=False)
