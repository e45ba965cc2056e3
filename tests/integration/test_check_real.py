"""Check with the real resolver on the configured index, and the real stack: every case, and the promised times."""

import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from verlstack.cache import Cache
from verlstack.check.answers import Asker
from verlstack.errors import FetchError

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "cases"
TABLE = [case for case in tomllib.loads((CASES / "cases.toml").read_text())["case"] if case["kind"] == "pins"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache that knows nothing; skipped where the index does not have what the cases are about."""
    made = Cache(tmp_path_factory.mktemp("cache"))
    lines = ["torch==2.3.1", "transformers==4.41.2", "peft==0.11.1", "vllm==0.6.3", "tensordict==0.5.0"]
    try:
        answer = Asker(cache=made, env=os.environ).ask(
            lines, python="3.10", platform="x86_64-manylinux_2_35", deep=False
        )
    except FetchError as e:
        pytest.skip(f"the package index does not answer: {e.what}")
    if answer.conflict:
        pytest.skip(f"the package index does not have the releases of the cases: {answer.conflict}")
    return made.root


def check(target, cache):
    words = [sys.executable, "-m", "verlstack", "check", str(target)]
    env = {**os.environ, "VERLSTACK_CACHE": str(cache)}
    return subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)


@pytest.mark.parametrize("case", TABLE, ids=lambda c: c["file"])
def test_a_case_on_the_index(case, cache):
    done = check(CASES / case["file"], cache)
    assert "Traceback" not in done.stderr
    if case["verdict"] == "pass":
        assert (done.returncode, done.stdout.count("\n")) == (0, 1), done.stdout
    else:
        assert done.returncode == 1, done.stdout + done.stderr
        assert [name for name in case["must_name"] if name.lower() not in done.stdout.lower()] == []


def test_a_release_that_its_makers_withdrew(cache, tmp_path):
    path = tmp_path / "pins.in"
    path.write_text("click==8.2.2\n")
    done = check(path, cache)
    if "yanked" not in done.stdout:
        pytest.skip("this index does not tell what is yanked")
    assert done.returncode == 1


def test_what_is_known_already_takes_two_seconds_at_most(cache):
    target = CASES / "pins" / "p02.in"
    check(target, cache)
    begun = time.perf_counter()
    assert check(target, cache).returncode == 1
    assert time.perf_counter() - begun < 2  # 0.3 s on two idle cores


def test_the_real_stack_breaks_nowhere_known():
    """With the developer's own cache: whatever of wheels and image is there is looked into."""
    cache = Cache.from_environment(os.environ).root
    if not (cache / "files").is_dir():
        pytest.skip("nothing was fetched here yet")
    done = check("cu121", cache)
    if "INDEX-UNASKED" in done.stdout:
        pytest.skip("the package index does not answer")
    assert done.returncode == 0, done.stdout + done.stderr
    begun = time.perf_counter()
    assert check("cu121", cache).returncode == 0
    assert time.perf_counter() - begun < 2 or "PROBE-NOT-RUN" in done.stdout
