"""A program that is followed: what it prints is handed on whole and kept in part, and it may be given an end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from verlstack import shell

FOLLOWED = """
import resource, sys
from pathlib import Path
from verlstack import shell
seen = [0]
def each(line):
    seen[0] += len(line)
done = shell.follow([sys.executable, "-c", sys.argv[1]], env={}, cwd=Path("/"), each=each)
print(seen[0], len(done.stdout), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
MB = 1 << 20


def follow(code, **how):
    lines = []
    done = shell.follow([sys.executable, "-c", code], env={}, cwd=Path("/"), each=lines.append, **how)
    return done, lines


def test_lines_of_both_streams_as_they_are():
    code = "import os; os.write(1, b'a\\r\\nb\\rc'); os.write(2, b'\\n\\n d \\n'); os.write(1, b'\\xff')"
    done, lines = follow(code)
    assert lines == ["a", "b", "c", "", " d ", "�"]
    assert (done.stdout, done.returncode) == ("\n".join(lines), 0)


def measured(code):
    done = subprocess.run(
        [sys.executable, "-c", FOLLOWED, code], env=os.environ, capture_output=True, text=True, check=True
    )
    return [int(word) for word in done.stdout.split()]


def test_neither_a_line_nor_lines_without_end_fill_the_memory():
    """256 MB each; what is kept is 4 MB."""
    quiet = measured("pass")[2]
    for unit in ("b'x' * 1048576", "b'x' * 127 + b'\\n') * 8192"):
        piece = f"({unit}" if unit.endswith("8192") else f"({unit})"
        seen, kept, most = measured(f"import sys\nfor _ in range(256): sys.stdout.buffer.write({piece})")
        assert seen >= 254 * MB
        assert kept <= 4 * MB
        assert most - quiet < 64 * 1024  # kB, as getrusage counts


def test_a_program_is_ended():
    done, lines = follow("print('begins', flush=True)\nwhile True: pass", timeout=0.5)
    assert done.returncode == -signal.SIGKILL
    assert lines in ([], ["begins"])
