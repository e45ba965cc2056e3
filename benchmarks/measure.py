"""What a program costs while it runs: wall time, and at their peaks extra disk and memory of its whole process tree."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

DISK_EVERY = 0.5  # seconds; the shortest-lived large file of either side lives for several
MEMORY_EVERY = 0.2  # seconds
_KEPT_LINES = 20  # of a failed program's output


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one run took.

    Attributes:
        stdout: what the program printed.
        seconds: wall time.
        disk: bytes in use on the file systems at the peak, above those in use at the start.
        memory: PSS of the process tree at the peak, bytes; shared pages count once.
        load: the machine's load average just before; well above 0 means that somebody else was at work.
    """

    stdout: str
    seconds: float
    disk: int
    memory: int
    load: float

    def __str__(self) -> str:
        """The numbers in a few words."""
        disk, memory = f"{self.disk / 1e9:.2f} GB of disk", f"{self.memory / (1 << 20):.0f} MiB of memory"
        return f"{self.seconds:.1f} s, {disk}, {memory} (load before: {self.load:.1f})"


class FailedError(Exception):
    """A program ended with an error; the message holds its last lines."""


class _Peak(threading.Thread):
    """Samples a number every so often until stopped, and keeps the largest."""

    def __init__(self, sample: Callable[[], int], every: float) -> None:
        super().__init__(daemon=True)
        self._sample, self._every = sample, every
        self._stop_asked = threading.Event()
        self.value = sample()

    def run(self) -> None:
        while not self._stop_asked.wait(self._every):
            self.value = max(self.value, self._sample())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_asked.set()
        self.join()
        self.value = max(self.value, self._sample())


def run(args: Sequence[str | Path], *, env: Mapping[str, str], folders: Iterable[Path]) -> Cost:
    """Run a program and measure it.

    Args:
        args: program and arguments.
        env: its whole environment.
        folders: where it and its helpers write; the file systems that hold them are watched.

    Raises:
        FailedError: exit status other than 0.
    """
    # One folder for each file system, by device number: two folders on one disk must not count twice.
    places = list({folder.stat().st_dev: folder for folder in folders}.values())
    os.sync()  # what somebody wrote before is settled, not ours
    load, before = os.getloadavg()[0], _used(places)
    with _Peak(lambda: _used(places), DISK_EVERY) as disk:
        start = time.monotonic()
        process = subprocess.Popen(
            [str(a) for a in args], env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        with _Peak(lambda: sum(map(_pss, _tree(process.pid))), MEMORY_EVERY) as memory:
            try:
                stdout, stderr = process.communicate()
            except BaseException:  # we are being stopped: so is the program, before its folders go
                process.terminate()
                process.wait()
                raise
        seconds = time.monotonic() - start
    if process.returncode:
        tail = "\n".join((stderr.strip() or stdout).splitlines()[-_KEPT_LINES:])
        raise FailedError(f"{' '.join(map(str, args))}\nended with status {process.returncode}:\n{tail}")
    return Cost(stdout=stdout, seconds=seconds, disk=disk.value - before, memory=memory.value, load=load)


def _used(places: Iterable[Path]) -> int:
    total = 0
    for place in places:
        facts = os.statvfs(place)
        total += (facts.f_blocks - facts.f_bfree) * facts.f_frsize
    return total


def _tree(root: int) -> Iterator[int]:
    """`root` and its living descendants."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            fields = stat.read_text().rpartition(")")[2].split()  # proc(5): after "pid (name)" come state and parent
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    todo = [root]
    while todo:
        pid = todo.pop()
        yield pid
        todo += children.get(pid, [])


def _pss(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024  # the kernel's unit is kB of 1024
    return 0
