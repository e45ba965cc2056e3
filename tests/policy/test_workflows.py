"""GitHub's workflows: zizmor finds nothing, an action has one commit, and what a step runs is a script with a test."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
MAX_LINES = 3  # of shell in a step; more is a script, which a test runs


def steps(path):
    """(job, step) of a workflow."""
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return [(name, step) for name, job in jobs.items() for step in job["steps"]]


def test_zizmor_finds_nothing():
    program = shutil.which("zizmor")
    assert program, "zizmor is pinned in tools.in"
    words = [program, "--offline", "--strict-collection", "--pedantic", "--no-progress", "--no-ignores", GITHUB]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"completed {path}" in done.stderr for path in WORKFLOWS), done.stderr


def test_an_action_has_one_commit():
    """Where two workflows name two commits, one of them was forgotten."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    found = re.findall(r"uses: (\S+)@([0-9a-f]{40} # v[\d.]+)$", text, re.MULTILINE)
    assert len(found) == text.count("uses: ")
    commits = {name: {commit for other, commit in found if other == name} for name, _ in found}
    assert {name: several for name, several in commits.items() if len(several) > 1} == {}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_a_checkout_keeps_no_token(path):
    """Zizmor lets a token be kept where that is written out; nothing here needs it."""
    kept = [
        job for job, step in steps(path) if "checkout@" in step.get("uses", "") and step["with"]["persist-credentials"]
    ]
    assert kept == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_what_a_step_runs_is_short_or_a_script(path):
    for job, step in steps(path):
        shell = step.get("run", "")
        assert len(shell.strip().splitlines()) <= MAX_LINES, f"{path.name}, job {job}: put this into a script"
        for script in re.findall(r"(?<!\S)\.github/[\w.-]+", shell):
            assert (ROOT / script).is_file(), script
            assert script.endswith(".py") or (ROOT / script).stat().st_mode & 0o100, f"{script} cannot be run"


def test_every_script_is_run_by_a_test():
    texts = "".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "tests").rglob("test_*.py")
        if path.name != Path(__file__).name
    )
    for script in [*GITHUB.glob("*.sh"), *GITHUB.glob("*.py")]:
        assert script.name in texts or f"import {script.stem}" in texts, script.name
