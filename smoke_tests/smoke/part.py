"""One node's part of one run: pytest on its ranks, watched and ended in bounded time."""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import launch
from smoke import ended, nodes

SUITE = Path(__file__).resolve().parents[1]
# One run of the whole suite takes a minute or two on two cores; a rank that hangs ends after --patience.
PATIENCE = 900.0  # seconds for one number of ranks
GRACE = 10.0  # seconds that a node has to end by itself when another one has failed
ORDERLY = 40.0  # torchrun gives its ranks 30 s to end


@dataclass(frozen=True, kw_only=True)
class Here:
    """This node in this run of the program.

    Attributes:
        options: what was asked for.
        me: this node.
        folder: where its ranks write; a folder of its own for each of several nodes, which may share a file system.
        more: words for pytest.
    """

    options: argparse.Namespace
    me: launch.Member
    folder: Path
    more: Sequence[str]


class Run:
    """This node's part of a run on so many ranks; nothing of it outlives the `with`."""

    def __init__(self, here: Here, ranks: int, meeting: launch.Meeting | None) -> None:
        """Start it."""
        self._here, self._ranks = here, ranks
        self._logs = here.folder / f"ranks-{ranks}-logs"
        self._said: list[str] = []
        self._until = time.monotonic() + PATIENCE
        at = nodes.interface_of(meeting.address) if meeting else None
        self._process = subprocess.Popen(
            launch.command(ranks, self._pytest(), self._logs, meeting),
            cwd=SUITE,
            env=launch.environment(os.environ, ranks // here.options.nodes or 1, os.cpu_count() or 1, at),
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _pytest(self) -> list[str]:
        # `=`: before conftest.py is read, pytest would take a folder after a blank for one to collect tests from
        options = self._here.options
        words = ["pytest", "-c", str(SUITE / "pytest.ini"), f"--report={self._here.folder}"]
        words += [f"--patience={options.patience:g}", *self._here.more]
        return [*words, "--quick"] if options.quick else words

    def _read(self) -> None:
        """Pass stderr on, and keep it: torchrun's summary is there."""
        for line in self._process.stderr or ():
            self._said.append(line)
            sys.stderr.write(line)
            sys.stderr.flush()

    def __enter__(self) -> "Run":  # noqa: PYI034  Python 3.10 has no Self
        return self

    def __exit__(self, *_: object) -> None:
        """End torchrun in order, for its ranks have sessions of their own, and then whatever is left of ours."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ORDERLY)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(1.0)

    def wait(self, meanwhile: Callable[["Run"], object]) -> None:
        """Wait for the end, or until time is up; the end of the `with` ends it then."""
        while self._process.poll() is None:
            meanwhile(self)
            if time.monotonic() > self._until:
                print(f"time is up: ending the run on {self._ranks} ranks", file=sys.stderr)
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.2)

    def hurry(self, grace: float = GRACE) -> None:
        """Leave it no more than so many seconds."""
        self._until = min(self._until, time.monotonic() + grace)

    def result(self) -> dict[str, Any]:
        """Exit status, rank 0's report if it was on this node and came so far, and how this node's ranks ended."""
        document, whole = ended.document(self._here.folder, self._ranks)
        ends = ended.ranks(self._logs, "".join(self._said), self._here.options.patience)
        return {"status": self._process.returncode, "whole": whole, "document": document, "ends": ends}
