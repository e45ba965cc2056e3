"""Whose container is it: a label that tells which process started it, and whether that process still lives."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from verlstack.cache import boot

LABEL = "dev.verlstack.smoke"
PREFIX = "verlstack-smoke-"  # of the names of what is ours
# machine and boot, PID namespace, pid, start time: only who shares the first two can judge the others
_OF_OURS = re.compile(r"([0-9a-f-]{1,40}) ([0-9]{1,20}) ([0-9]{1,10}) ([0-9]{1,20})")


def name() -> str:
    """A name that nobody has."""
    return f"{PREFIX}{secrets.token_hex(4)}"


def me() -> str:
    """This process, so that a later one knows whether what bears the label is left over."""
    pid = os.getpid()
    return f"{boot()} {_namespace()} {pid} {_started(pid)}"


def is_left_over(label: str) -> bool:
    """Whether a label names a process that is no more; one of another machine, boot or namespace is not judged."""
    found = _OF_OURS.fullmatch(label)
    if found is None or (found[1], found[2]) != (boot(), _namespace()):
        return False
    return _started(int(found[3])) != found[4]


def _namespace() -> str:
    """The number of our PID namespace (namespaces(7))."""
    return str(Path("/proc/self/ns/pid").stat().st_ino)


def _started(pid: int) -> str:
    """Clock ticks since boot when a process started (field 22 of proc(5)'s stat); empty where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]  # the name in parentheses may hold blanks
