"""The command line where a daemon starts it: with standard streams that are closed."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("closed", ["0", "1", "2", "012"])
def test_closed_streams(closed):
    """The verb ends well, nothing is printed, and no file that is opened later gets a stream's number."""
    script = "import os; from verlstack import cli; code = cli.main(['stacks']); os._exit(code or os.open('/', 0) < 3)"
    words = ["sh", "-c", f'exec "$@" {" ".join(f"{n}>&-" for n in closed)}', "sh", sys.executable, "-c", script]
    done = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
