"""docker/tools.sh makes .venv anew where one is there already, half-made or out of date."""

import os
import shutil
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docker" / "tools.sh"


def test_the_python_of_the_venv_that_goes_is_not_the_one_that_makes_the_next(tmp_path):
    (tmp_path / "docker").mkdir()
    shutil.copy(SCRIPT, tmp_path / "docker")
    own = tmp_path / ".venv" / "bin"
    own.mkdir(parents=True)
    (own / "python3").write_text("#!/bin/sh\nexit 0\n")  # says that it is usable
    (own / "python3").chmod(0o755)
    env = os.environ | {"PATH": f"{own}:{os.environ['PATH']}"}  # as make has it
    done = subprocess.run(["docker/tools.sh"], cwd=tmp_path, env=env, capture_output=True, text=True)
    # there are no tools.txt and no project here, so pip has the last word
    assert "tools: Python 3." in done.stdout
    assert str(own) not in done.stdout
    assert "constraints/tools.txt" in done.stderr
    assert (own / "python3").resolve() != own / "python3", "a venv was made in its place"
