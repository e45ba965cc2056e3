"""Progress of long work: bars on a terminal, plain lines in a log, nothing for programs."""

from __future__ import annotations

import time
from typing import IO, TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

_LINE_EVERY = 10.0  # seconds between two plain lines about the same task; a log stays readable


class Progress(Protocol):
    """What the working modules may say; all calls come from one thread at a time per task."""

    def start(self, task: str, total: int | None = None) -> None:
        """Begin a task of `total` bytes (None: unknown)."""

    def advance(self, task: str, amount: int) -> None:
        """`amount` more bytes are done."""

    def finish(self, task: str, note: str = "") -> None:
        """The task is done; `note` says in a few words how."""

    def say(self, line: str) -> None:
        """One line the user should read."""


class Silent:
    """Says nothing; for tests and for programs that only want the result."""

    def start(self, task: str, total: int | None = None) -> None:
        """Ignore."""

    def advance(self, task: str, amount: int) -> None:
        """Ignore."""

    def finish(self, task: str, note: str = "") -> None:
        """Ignore."""

    def say(self, line: str) -> None:
        """Ignore."""


class Lines:
    """One line at the start and end of each task, and one every ten seconds between; for logs and CI."""

    def __init__(self, stream: IO[str]) -> None:
        """Write to `stream`, flushed line by line."""
        self._stream = stream
        self._tasks: dict[str, tuple[int | None, int, float]] = {}  # total, done, time of the last line

    def start(self, task: str, total: int | None = None) -> None:
        """Remember the task; its first line comes when there is something to tell."""
        self._tasks[task] = (total, 0, time.monotonic())

    def advance(self, task: str, amount: int) -> None:
        """Print a line if ten seconds have gone by."""
        total, done, last = self._tasks.get(task, (None, 0, 0.0))
        done += amount
        now = time.monotonic()
        if now - last >= _LINE_EVERY:
            of = f" of {total / 1e6:.0f}" if total else ""
            self.say(f"{task}: {done / 1e6:.0f}{of} MB")
            last = now
        self._tasks[task] = (total, done, last)

    def finish(self, task: str, note: str = "") -> None:
        """Print the closing line."""
        self._tasks.pop(task, None)
        self.say(f"{task}: {note or 'done'}")

    def say(self, line: str) -> None:
        """Print one line."""
        print(line, file=self._stream, flush=True)


class Bars:
    """Live bars on a terminal."""

    def __init__(self, console: Console) -> None:
        """Draw on `console`; call `close` to leave the terminal in order."""
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - 0.1 s
        from rich.progress import Progress as RichProgress  # noqa: PLC0415

        self._rich = RichProgress(
            TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn(), console=console
        )
        self._ids: dict[str, TaskID] = {}
        self._rich.start()

    def start(self, task: str, total: int | None = None) -> None:
        """Add a bar; one that is there already starts anew."""
        if task in self._ids:
            self._rich.remove_task(self._ids.pop(task))
        self._ids[task] = self._rich.add_task(task, total=total)

    def advance(self, task: str, amount: int) -> None:
        """Move a bar."""
        if task in self._ids:
            self._rich.advance(self._ids[task], amount)

    def finish(self, task: str, note: str = "") -> None:
        """Replace a bar by one line."""
        if task in self._ids:
            self._rich.remove_task(self._ids.pop(task))
        self.say(f"{task}: {note or 'done'}")

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        self._rich.console.print(line, markup=False, highlight=False)

    def close(self) -> None:
        """Stop drawing."""
        self._rich.stop()
