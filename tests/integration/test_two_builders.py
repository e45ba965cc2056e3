"""The real default stack by BuildKit and uv, from nothing: the composer's tree, file by file, and nothing left over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import engines

pytestmark = [pytest.mark.full, pytest.mark.engine]

ROOT = Path(__file__).parents[2]


def test_two_builders_one_tree():
    engine = engines.docker(start=True)
    env = os.environ | engine
    words = [sys.executable, "-m", "verlstack"]
    subprocess.run([*words, "build", "cu121", "--base", "debian"], cwd=ROOT, env=env, check=True)
    command = [*words, "reproduce", "cu121", "--engine", "buildkit", "--json"]
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=False)
    engines.forget(engine)
    report = json.loads(done.stdout)["report"]
    assert report["leftovers"] == []
    assert [d["path"] for d in report["differences"]] == []
    assert [row["layer"] for row in report["rows"] if row["composed"] != row["built"]] == []
    assert done.returncode == 0
    assert len(report["rows"]) > 20
    assert report["files"] > 40_000
