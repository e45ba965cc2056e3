"""`verlstack reproduce` with a real BuildKit: a second builder's layers of the tiny stack, true ones and false ones."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess

import pytest

from support import engines, second_builder
from support.synthetic import PYTHON

SITE = f"opt/verl/lib/python{PYTHON}/site-packages"

pytestmark = pytest.mark.engine


@pytest.fixture(scope="session")
def engine():
    return engines.docker()


@pytest.fixture(scope="module")
def made(origin, tmp_path_factory):
    """The tiny stack with a second builder, and beside it a copy of that builder's files."""
    stack = origin.fork(tmp_path_factory.mktemp("reproduce") / "checkout")
    second_builder.prepare(stack)
    shutil.copytree(stack.root / "docker", stack.root / "pristine", symlinks=True)
    return stack


@pytest.fixture
def stack(made):
    """Each test may spoil the second builder's files."""
    shutil.rmtree(made.root / "docker")
    shutil.copytree(made.root / "pristine", made.root / "docker", symlinks=True)
    return made


def reproduce(stack, engine, *, code):
    done = stack.run("reproduce", "--engine", "buildkit", "--json", check=False, **engine)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_the_same_files_are_identical_layer_by_layer(stack, engine):
    found = reproduce(stack, engine, code=0)
    assert found["identical"] is True
    rows = found["report"]["rows"]
    assert [row["layer"] for row in rows][1:] == ["interpreter", "heavy", "libs", "alpha", "verl", "smoke"]
    assert all(row["composed"] == row["built"] for row in rows)
    assert found["report"]["differences"] == []
    assert found["report"]["files"] > 30
    assert list((stack.cache / "verlstack-tmp").iterdir()) == []  # no secret and no image stays


def test_the_table_says_it_in_words(stack, engine):
    done = stack.run("reproduce", "--engine", "buildkit", **engine)
    assert "alpha" in done.stdout
    assert "identical" in done.stdout.splitlines()[-2]
    assert "NOT" not in done.stdout
    assert "[5/7] COPY --link docker/layers/smoke/ /" in done.stderr  # progress


def test_each_difference_is_found_and_explained(stack, engine):
    layers = stack.root / "docker" / "layers"
    changed = layers / "alpha" / SITE / "alpha" / "data.json"
    changed.write_bytes(b"{ }\n")
    (layers / "alpha" / SITE / "alpha-1.0.dist-info" / "INSTALLER").write_text("uv")
    script = layers / "alpha" / "opt/verl/bin/alpha"
    script.chmod(0o744)
    gone = layers / "libs" / SITE / "gamma.py"
    gone.unlink()
    (layers / "smoke" / "tmp").mkdir()
    (layers / "smoke" / "tmp" / "note").write_text("x")
    found = reproduce(stack, engine, code=1)["report"]
    by_path = {d["path"]: d for d in found["differences"]}
    assert set(by_path) == {
        f"/{SITE}/alpha/data.json",
        f"/{SITE}/alpha-1.0.dist-info/INSTALLER",
        "/opt/verl/bin/alpha",
        f"/{SITE}/gamma.py",
        "/tmp",
        "/tmp/note",
    }
    assert by_path["/opt/verl/bin/alpha"]["shows"] == ["mode"]
    assert (by_path["/opt/verl/bin/alpha"]["one"], by_path["/opt/verl/bin/alpha"]["other"]) == (
        "mode 0755",
        "mode 0744",
    )
    assert by_path["/opt/verl/bin/alpha"]["owner"] == "alpha 1.0"
    assert by_path[f"/{SITE}/gamma.py"]["owner"] == "gamma 1.0"
    assert by_path[f"/{SITE}/gamma.py"]["shows"] == ["only-one"]
    assert "installer's note" in by_path[f"/{SITE}/alpha-1.0.dist-info/INSTALLER"]["cause"]
    assert set(by_path[f"/{SITE}/alpha/data.json"]["shows"]) == {"size", "content"}
    assert [left["path"] for left in found["leftovers"]] == ["/tmp/note"]
    assert {row["layer"] for row in found["rows"] if row["composed"] != row["built"]} == {"alpha", "libs", "smoke"}


def test_a_layer_too_many_and_one_too_few(stack, engine):
    path = stack.root / "docker" / "Dockerfile"
    text = path.read_text()
    path.write_text(text.replace("COPY --link docker/layers/heavy/ /\n", ""))
    rows = reproduce(stack, engine, code=1)["report"]["rows"]
    assert [row["note"] for row in rows].count("missing") == 1
    path.write_text(text.replace("COPY", "COPY docker/layers/smoke/ /more/\nCOPY", 1))
    rows = reproduce(stack, engine, code=1)["report"]["rows"]
    assert [row["layer"] for row in rows if row["composed"] is None] == ["further"]


def test_an_image_of_another_lock_is_refused(stack, engine):
    (stack.root / "smoke_tests" / "more.py").write_text("pass\n")
    stack.run("lock")
    done = stack.run("reproduce", "--engine", "buildkit", check=False, **engine)
    (stack.root / "smoke_tests" / "more.py").unlink()
    assert done.returncode == 4
    assert "not the present one" in done.stderr
    stack.run("lock")


def test_a_step_that_fails_is_named_and_the_cache_is_clean(stack, engine):
    path = stack.root / "docker" / "Dockerfile"
    path.write_text(path.read_text() + "COPY docker/layers/nothing/ /\n")
    done = stack.run("reproduce", "--engine", "buildkit", check=False, **engine)
    assert done.returncode == 8
    assert "where: target runtime, step 6/8" in done.stderr
    assert "nothing" in done.stderr
    assert list((stack.cache / "verlstack-tmp").iterdir()) == []


def test_nothing_secret_stands_in_the_commands_or_in_the_image(stack, engine, tmp_path):
    """A `docker` before the real one notes its arguments and environment."""
    log = tmp_path / "log"
    spy = tmp_path / "docker"
    real = subprocess.run(
        ["bash", "-c", "command -v docker"], env=os.environ | engine, capture_output=True, text=True, check=True
    ).stdout.strip()
    spy.write_text(f'#!/bin/sh\n{{ printf "%s\\n" "$@"; env; }} >> {log}\nexec {real} "$@"\n')
    spy.chmod(0o755)
    secret = "s3cr3t-of-mine"
    sets = engine | {
        "PATH": f"{tmp_path}:{engine.get('PATH', os.environ['PATH'])}",
        "UV_INDEX": f"http://me:{secret}@127.0.0.1:9/simple/",
        "SOME_TOKEN": secret,
    }
    done = stack.run("reproduce", "--engine", "buildkit", "--json", **sets)
    said = log.read_text()
    assert "*.secrets=id=uv_toml,src=" in said
    assert secret not in said
    assert secret not in done.stdout + done.stderr


def test_a_client_that_is_too_old(stack, engine, tmp_path):
    for version, driver, told in (("25.0.5", "docker", "Docker Engine 25.0.5"), ("27.0.1", "x", "BuildKit v0.12.5")):
        fake = tmp_path / "docker"
        buildkit = "" if driver == "docker" else "BuildKit version: v0.12.5"
        fake.write_text(
            f"""#!/bin/sh
case "$*" in
version*) echo '{{"Version":"{version}"}}' ;;
"buildx version") echo github.com/docker/buildx 0.12.0 ;;
"buildx inspect"*) printf 'Name: default\\nDriver: {driver}\\n\\nNodes:\\nName: default\\n{buildkit}\\n' ;;
esac
"""
        )
        fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
        done = stack.run(
            "reproduce", "--engine", "buildkit", check=False, **engine | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        )
        assert done.returncode == 11
        assert f"{told} is too old" in done.stderr
