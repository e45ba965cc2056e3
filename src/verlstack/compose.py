"""Layers of a lock, built in parallel processes and checked against the lock: the composer proper."""

from __future__ import annotations

import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from verlstack import plan, store, tar, wheel
from verlstack.content import Inline
from verlstack.errors import BuildError, LockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from verlstack.base.interpreter import Interpreter
    from verlstack.cache import Cache
    from verlstack.layer import Compression
    from verlstack.lockfile import Lock
    from verlstack.progress import Progress
    from verlstack.store import Finished, Job

VENV_ROOT = "opt/verl"
SMOKE_ROOT = "opt/verlstack/smoke_tests"
DOCTOR_ROOT = "opt/verlstack/verldoctor"
_LAUNCHER = "launcher.py"  # of verldoctor; its copy on PATH is the command


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What all layers of one image have in common.

    Attributes:
        interpreter: the stack's Python on this machine.
        python: its X.Y.
        platform: uv's name of the stack's platform.
        format: image format number.
        epoch: mtime of every entry.
        compression: how blobs are compressed.
        leave_out: (package, glob in site-packages) of files of wheels that stay out.
    """

    interpreter: Interpreter
    python: str
    platform: str
    format: int
    epoch: int
    compression: Compression
    leave_out: tuple[tuple[str, str], ...] = ()

    def job(self, name: str, *, wheels: Iterable[tuple[Path, str]] = (), entries: Iterable[tar.Entry] = ()) -> Job:
        """A layer of these wheels and loose entries."""
        files = tuple(sorted(wheels, key=lambda w: w[0].name))
        packages: dict[str, str] = {canonicalize_name(path.name.partition("-")[0]): sha256 for path, sha256 in files}
        return store.Job(
            name=name,
            wheels=files,
            leave_out=tuple((packages[owner], path) for owner, path in self.leave_out if owner in packages),
            entries=tuple(entries),
            venv=wheel.Venv(root=VENV_ROOT, python=self.python),
            format=self.format,
            epoch=self.epoch,
            compression=self.compression,
            interpreter=self.interpreter.executable,
            python=self.interpreter.version,
            cache_tag=f"cpython-{self.python.replace('.', '')}",
            tags=frozenset(plan.tags(self.python, self.platform)),
        )


def wheel_jobs(lock: Lock, settings: Settings, cache: Cache, inside: Sequence[tar.Entry]) -> list[Job]:
    """The jobs of a lock's layers, in its order; wheels need not be there yet, only their hashes.

    Args:
        lock: what to compose.
        settings: what the layers have in common.
        cache: where wheels are.
        inside: entries of the layer `smoke`, as `Workshop.inside` has them.
    """
    files = {a.project: (cache.file(a.sha256, a.filename), a.sha256) for a in lock.wheels}
    files |= {b.source.project: (cache.file(b.wheel_sha256, b.wheel), b.wheel_sha256) for b in lock.built}
    if lock.compiled and (made := lock.compiled.wheel):
        files[made.project] = (cache.file(made.sha256, made.filename), made.sha256)
    return [
        settings.job(
            x.name,
            wheels=[files[package] for package in x.packages],
            entries=inside if x.name == plan.SMOKE_LAYER else (),
        )
        for x in lock.layers
    ]


def smoke_entries(folder: Path) -> list[tar.Entry]:
    """The smoke tests as they go into the image: every file but caches, by their own bytes."""
    return [tar.file(f"{SMOKE_ROOT}/{name}", content) for name, content in sources(folder)]


def doctor_entries(folder: Path) -> list[tar.Entry]:
    """Likewise verldoctor, and the command that starts it."""
    files = dict(sources(folder))
    found = [tar.file(f"{DOCTOR_ROOT}/{name}", content) for name, content in files.items()]
    if launcher := files.get(_LAUNCHER):
        found.append(tar.file(f"{VENV_ROOT}/bin/verldoctor", launcher, executable=True))
    return found


def sources(folder: Path) -> Iterator[tuple[str, Inline]]:
    """Every file of a folder but caches and hidden ones: its name below the folder, and its bytes."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith("."):
            yield path.relative_to(folder).as_posix(), Inline(data=path.read_bytes())


def find_all(jobs: Sequence[Job], cache: Cache, workers: int) -> list[Finished | None]:
    """What the cache has of these jobs, verified; hashing releases the interpreter lock, so threads do."""
    with futures.ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda job: store.find(job, cache), jobs))


def build_all(jobs: Sequence[Job], cache: Cache, *, workers: int, progress: Progress) -> list[Finished]:
    """Build layers, largest first, on `workers` processes; the bytes do not depend on their number.

    Raises:
        WheelError, StorageError, BaseImageError: what the first failing layer says; the others are stopped.
        BuildError: a worker process was killed.
    """
    if not jobs:
        return []
    progress.start("compose", sum(_weight(job) for job in jobs))
    try:
        if len(jobs) == 1 or workers == 1:
            return [store.build(job, cache, lambda n: progress.advance("compose", n)) for job in jobs]
        return _in_processes(jobs, cache, workers, progress)
    finally:
        progress.finish("compose", f"{len(jobs)} layers built")


def _weight(job: Job) -> int:
    """Bytes of work, roughly: a wheel unpacks to about twice its size."""
    packed = sum(path.stat().st_size for path, _ in job.wheels)
    return 2 * packed + sum(entry.size for entry in job.entries)


def _in_processes(jobs: Sequence[Job], cache: Cache, workers: int, progress: Progress) -> list[Finished]:
    broken = False
    context = multiprocessing.get_context("spawn")  # fork would copy our threads' locks
    ticks, stop = context.SimpleQueue(), context.Event()
    drain = threading.Thread(target=_drain, args=(ticks, progress), daemon=True)
    drain.start()
    pool = futures.ProcessPoolExecutor(
        min(workers, len(jobs)), mp_context=context, initializer=_begin, initargs=(ticks, stop, os.getpid())
    )
    try:
        order = sorted(jobs, key=_weight, reverse=True)
        running = {pool.submit(_work, job, cache.root): job for job in order}
        done = {running[f].name: f.result() for f in futures.as_completed(running)}
        return [done[job.name] for job in jobs]
    except BrokenProcessPool as e:
        broken = True
        raise BuildError(
            "a worker process was killed while composing",
            todo="the machine is probably out of memory: run again with --jobs 1",
        ) from e
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)
        if not broken:  # a worker killed while it held the queue's lock would make us wait for ever
            ticks.put(0)
            drain.join()
            ticks.close()


def _drain(ticks: Any, progress: Progress) -> None:
    while amount := ticks.get():
        progress.advance("compose", amount)


_tick: Callable[[int], None]


def _begin(ticks: Any, stop: Any, parent: int) -> None:
    """Set up a worker: Ctrl-C is the parent's business, and a worker without parent or purpose ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def tick(amount: int) -> None:
        if stop.is_set() or os.getppid() != parent:
            raise BuildError("stopped, because another layer failed or the build was cancelled")
        if amount:
            ticks.put(amount)

    # An idle worker waits for work for ever; a killed parent sends none.
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    global _tick  # noqa: PLW0603 - a worker process has one queue for its life; the pool has no other place for it
    _tick = tick


def _end_with(parent: Any) -> None:
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


def _work(job: Job, root: Path) -> Finished:
    from verlstack.cache import Cache  # noqa: PLC0415

    return store.build(job, Cache(root), _tick)


def check_diff_ids(lock: Lock, layers: Iterable[Finished], python: str) -> None:
    """Compare what was built with what the lock expects.

    Raises:
        LockError: naming the first layer that differs, and the likely cause.
    """
    wanted = {x.name: x.diff_id for x in lock.layers}
    for finished in layers:
        if wanted[finished.name] != finished.blob.diff_id:
            cause = (
                f"bytecode was compiled by Python {python}, the lock was recorded with {lock.recorded_with}"
                if python != lock.recorded_with
                else "the sources of this layer or the code of the composer changed since the lock was made"
            )
            raise LockError(
                f"layer {finished.name} has diff_id {finished.blob.diff_id}, the lock expects {wanted[finished.name]}",
                where=f"{lock.stack}.lock.toml",
                todo=f"{cause}; if that is meant, run `verlstack lock {lock.stack}`",
            )


def faster(compression: Compression, level: int) -> Compression:
    """The same without the long search, for `--fast`: other digests, same diff_ids."""
    return dataclasses.replace(compression, level=level, long_distance=False)
