"""Whose container is it: a label that tells which process started it, and whether that process still lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path

LABEL = "dev.verlstack.smoke"


def me() -> str:
    """This process, so that a later one knows whether what bears the label is left over: host, pid, start time."""
    pid = os.getpid()
    return f"{socket.gethostname()} {pid} {_started(pid)}"


def is_left_over(label: str) -> bool:
    """Whether a label names a process of this machine that is no more; a label of another machine is not judged."""
    host, _, rest = label.partition(" ")
    pid, _, started = rest.partition(" ")
    if host != socket.gethostname() or not pid.isdecimal():
        return False
    return _started(int(pid)) != started


def _started(pid: int) -> str:
    """Clock ticks since boot when a process started (field 22 of proc(5)'s stat); empty where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]  # the name in parentheses may hold blanks
