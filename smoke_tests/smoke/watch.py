"""A limit for each test: a rank that does not end writes down where it is, and ends; so does whom nobody waits for."""

import ctypes
import faulthandler
import os
import signal
import sys
import threading
import traceback

import launch

_FRAMES = 5  # innermost calls that the report shows
_LAST_RESORT = 10.0  # seconds later: for a hang that keeps Python itself from running


def end_with_parent() -> None:
    """Let the kernel end this process when the one that started it does; for processes with sessions of their own."""
    pr_set_pdeathsig = 1  # prctl(2)
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


class Watch:
    """Ends this process when what it watches takes too long."""

    def __init__(self, rank: int, patience: float) -> None:
        """Take a copy of stderr as it is now: during a test pytest puts a file of its own there."""
        self._rank, self._patience = rank, patience
        self._said = os.fdopen(os.dup(2), "w", encoding="utf-8")
        self._timer: threading.Timer | None = None

    def start(self, test: str, patience: float | None = None) -> None:
        """Watch from now on; whatever was watched before is over. Some tests need a patience of their own."""
        self.stop()
        patience = patience or self._patience
        self._timer = threading.Timer(patience, self._end, [test, patience])
        self._timer.daemon = True
        self._timer.start()
        faulthandler.dump_traceback_later(patience + _LAST_RESORT, exit=True, file=self._said)

    def stop(self) -> None:
        """Watch no more."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
            faulthandler.cancel_dump_traceback_later()

    def _end(self, test: str, patience: float) -> None:
        faulthandler.dump_traceback(file=self._said, all_threads=True)
        # once more, the innermost call last: the last lines are what a report shows
        main = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001  as its documentation has it
        print(f"rank {self._rank}: no end of {test} after {patience:g} s; it is here:", file=self._said)
        traceback.print_stack(main, limit=_FRAMES, file=self._said)
        self._said.flush()
        os._exit(launch.HUNG)
