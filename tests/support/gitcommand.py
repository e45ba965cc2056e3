"""git, for tests of scripts that commit."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git(root: Path, *words: str) -> str:
    """What git prints, as somebody who has a name; raises CalledProcessError where it fails."""
    who = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    done = subprocess.run(["git", *who, *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()
