"""`.github/reproduce.sh` finds the commit that an image was locked in, and lets that commit's tool make it again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.gitcommand import git

SCRIPT = Path(__file__).parents[2] / ".github" / "reproduce.sh"
# Stands for the project's own: the tool is the one under test, with the tiny stack's surroundings
MAKEFILE = """\
tools host-tools:
	@mkdir -p .venv/bin
	@printf '#!/bin/sh\\nexec {words} "$$@" --constraints constraints --python-tree {tree}\\n' > .venv/bin/verlstack
	@chmod +x .venv/bin/verlstack
"""


@pytest.fixture
def history(tiny):
    """The tiny stack in git: locked and built, then with other pins and another lock."""
    python, *module = tiny.words("build")[:3]
    (tiny.root / "Makefile").write_text(MAKEFILE.format(words=" ".join([python, *module]), tree=sys.base_prefix))
    (tiny.root / ".gitignore").write_text("/cache\n/dist\n/.venv\n/image\n/report.txt\n")
    git(tiny.root, "init", "--quiet")
    git(tiny.root, "add", "-A")
    git(tiny.root, "commit", "--quiet", "-m", "locked")
    first = git(tiny.root, "rev-parse", "HEAD")
    tiny.run("build")
    shutil.move(tiny.root / "dist" / "tiny", tiny.root / "image")
    pins = tiny.root / "constraints" / "stacks.toml"
    pins.write_text(pins.read_text().replace('title = "a tiny stack"', 'title = "another"'))
    tiny.run("lock")
    git(tiny.root, "commit", "--quiet", "-am", "other pins")
    return tiny, first


def lock_of(root, commit):
    text = git(root, "show", f"{commit}:constraints/tiny.lock.toml")
    return next(line for line in text.splitlines() if line.startswith("checksum")).split('"')[1]


def proof(root, env, reference, lock):
    words = [SCRIPT, reference, lock, "report.txt"]
    done = subprocess.run(words, cwd=root, env=env, capture_output=True, text=True, check=False)
    assert git(root, "worktree", "list").count("\n") == 0, "a worktree is left"
    return done, (root / "report.txt").read_text() if (root / "report.txt").exists() else ""


def test_an_image_of_an_old_lock_is_made_again_by_the_commit_of_that_lock(history):
    tiny, first = history
    image = str(tiny.root / "image")
    done, report = proof(tiny.root, tiny.environment(), image, f"sha256:{lock_of(tiny.root, first)}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "identical" in report
    # the same image under another lock's name is not reproduced
    done, report = proof(tiny.root, tiny.environment(), image, f"sha256:{lock_of(tiny.root, 'HEAD')}")
    assert done.returncode == 4, done.stdout + done.stderr
    assert report.startswith("verlstack: error: ")  # what the issue will say
    assert "lock" in report
    assert report in done.stderr


@pytest.mark.parametrize(("lock", "status"), [("sha256:" + "0" * 64, 3), ("main", 2), ("", 2)])
def test_a_lock_that_is_not_here(tmp_path, lock, status):
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "nothing")
    done, _ = proof(tmp_path, {"PATH": os.environ["PATH"]}, "registry.example.org/verl@sha256:1", lock)
    assert done.returncode == status
    assert "lock" in done.stderr
