"""Real engines load, inspect and run what the composer made: Docker, and Podman behind its Docker-compatible socket."""

from __future__ import annotations

import json

import docker
import pytest

from support import engines
from support.fake_registry import OCI_ZSTD, Fake
from support.layers import Item, folder, pack
from support.static_program import printing
from support.synthetic import PYTHON

pytestmark = pytest.mark.engine
SAYS = "2.3.1 4.41.2 0.2.0"


@pytest.fixture(scope="module")
def runnable(origin, tmp_path_factory):
    """The tiny stack on a base whose Python is a program that runs without any system below it, composed."""
    registry = Fake()
    headers = f"usr/local/include/python{PYTHON}"
    base = registry.image(
        [(OCI_ZSTD, pack(
            *(folder(name) for name in ("dev", "etc", "proc", "sys", "tmp")),
            Item(f"usr/local/bin/python{PYTHON}", printing(f"{SAYS}\n".encode()), 0o755),
            Item(f"{headers}/Python.h"),
            Item(f"{headers}/patchlevel.h"),
            Item("usr/bin/gcc", b"elf", 0o755),
            Item("etc/os-release", b'ID=debian\nVERSION_ID="12"\n'),
        ))]
    )  # fmt: skip
    stack = origin.fork(tmp_path_factory.mktemp("runnable") / "checkout")
    stack.base = f"registry:{base}"
    stack.run("build")
    yield stack
    registry.close()


def prove(stack, env):
    return json.loads(stack.run("prove", "--json", **env).stdout)


def test_podman_loads_inspects_and_runs_it(runnable):
    with engines.podman() as env:
        found = prove(runnable, env)
        assert found["printed"] == [f"uid 0: {SAYS}", f"uid 54321: {SAYS}"]
        assert found["digest"] == runnable.digest()
        assert prove(runnable, env) == found  # the same image once more is no conflict


def test_docker_loads_inspects_and_runs_it(runnable):
    env = engines.docker()
    try:
        assert prove(runnable, env)["printed"] == [f"uid 0: {SAYS}", f"uid 54321: {SAYS}"]
    finally:
        client = docker.DockerClient.from_env(environment=env)
        client.images.remove("verlstack:tiny")
        client.close()


def test_an_engine_that_ends_meanwhile_is_one_clear_error(runnable):
    with engines.podman() as env:
        pass
    done = runnable.run("prove", check=False, **env)
    assert done.returncode == 11
    assert "does not answer" in done.stderr
    assert env["DOCKER_HOST"] in done.stderr
