"""The real default stack: composed twice under different conditions, started, searched for what must not be there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from support import engines, sizes
from verlstack import layer
from verlstack.base import aptsources
from verlstack.cache import Cache

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
STACK = "cu121"
PRINTS = "2.3.1+cu121 4.41.2 0.2.0.post2"


def verlstack(*words, env, cwd):
    done = subprocess.run(
        [sys.executable, "-m", "verlstack", *words], env=env, cwd=cwd, text=True, stdout=subprocess.PIPE, check=False
    )
    assert done.returncode == 0
    return done.stdout


@pytest.fixture(scope="module")
def first():
    """The image as `make image` makes it, in the user's own cache."""
    return json.loads(verlstack("build", STACK, "--base", "debian", "--json", env=os.environ, cwd=ROOT))


@pytest.fixture(scope="module")
def layout(first):
    return Path(first["layout"])


def blobs(layout):
    """(media type, path) of every layer."""
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    manifest = json.loads((layout / "blobs/sha256" / entry["digest"][7:]).read_text())
    return [(x["mediaType"], layout / "blobs/sha256" / x["digest"][7:]) for x in manifest["layers"]]


def test_the_digest_is_the_same_elsewhere_from_cold_layers(first, tmp_path_factory):
    """Another checkout, HOME, time zone, language, hash seed and number of workers; wheels and base are shared.

    The mirror may have got a new package meanwhile; test_debian_base.py bootstraps twice in a row.
    """
    there = tmp_path_factory.mktemp("elsewhere") / "another checkout"
    there.mkdir()
    for name in ("constraints", "smoke_tests", "src/verldoctor"):
        shutil.copytree(ROOT / name, there / name)
    old, new = Cache.from_environment(os.environ).root, there / "cache"
    new.mkdir()
    copy = os.link if same_disk(old, there) else shutil.copy2
    for name in ("files", "bases"):
        shutil.copytree(old / name, new / name, copy_function=copy)
    sets = {
        "HOME": str(there),
        "TZ": "Pacific/Kiritimati",
        "LC_ALL": "C",
        "PYTHONHASHSEED": "77",
        "VERLSTACK_CACHE": str(new),
    }
    python = interpreter_tree(old)
    out = verlstack(
        "build", STACK, "--base", "debian", "--jobs", "1", "--json", *python, env=os.environ | sets, cwd=there
    )
    second = json.loads(out)
    shutil.rmtree(there)
    assert [r["diff_id"] for r in second["rows"]] == [r["diff_id"] for r in first["rows"]]
    assert second["digest"] == first["digest"]
    assert not any(r["cached"] for r in second["rows"] if r["layer"] != "base")


def same_disk(one, other):
    return one.stat().st_dev == other.stat().st_dev


def interpreter_tree(_):
    """With another HOME, pyenv's folder would no longer be found by itself."""
    from verlstack.base import interpreter

    return ["--python-tree", str(interpreter.find("3.10", tree=None, env=os.environ).prefix)]


@pytest.mark.parametrize("who", ["whoever runs the tests", "an ordinary user"])
def test_it_starts_as_root_and_as_a_stranger(first, who):
    env = {k: v for k, v in os.environ.items() if k != "DOCKER_HOST"}
    enter = [] if who.startswith("whoever") else ["unshare", "--user", "--map-user=54321", "--map-group=54321"]
    if enter and subprocess.run([*enter, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine forbids user namespaces")
    words = [*enter, sys.executable, "-m", "verlstack", "prove", STACK, "--json"]
    done = subprocess.run(words, env=env, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True)
    assert json.loads(done.stdout)["printed"] == [f"uid 0: {PRINTS}", f"uid 54321: {PRINTS}"]


def test_the_wheel_layers_are_much_smaller_than_their_wheels(first):
    wheels = [r for r in first["rows"] if r["layer"] not in {"base", "interpreter", "verl", "smoke"}]
    assert sum(r["compressed_bytes"] for r in wheels) / first["wheel_bytes"] <= 0.70
    assert 20 < len(first["rows"]) < 60


def test_the_unpacked_image_is_not_larger_than_6_gb(layout):
    """The sum over all files, as docs/image-format.md tells it; a pin that brings more must say why it may."""
    layers, _ = sizes.of_files(layout)
    assert layers["torch"] > 10**9, "the sum is over the real image"
    assert sum(layers.values()) <= 6.0e9


def test_nothing_of_this_machine_is_in_the_image(layout):
    """No mirror, no home folder, no checkout path, in any file of base, interpreter and verl; no secrets by name."""
    from verlstack.base import interpreter

    python = interpreter.find("3.10", tree=None, env=os.environ)
    hosts = {
        host
        for text in aptsources.read(Path("/etc/apt")).values()
        for host in re.findall(r"https?://([^/\s]+)", text)
        if "." in host
    }
    forbidden = [
        t.encode() for t in (*hosts, str(python.prefix), str(ROOT), str(Cache.from_environment(os.environ).root))
    ]
    bad = []
    for media_type, path in blobs(layout):
        if path.stat().st_size > 100_000_000:
            continue  # CUDA libraries, as their publisher made them
        with layer.opened(path, media_type.rpartition("+")[2]) as raw, tarfile.open(fileobj=raw, mode="r|") as archive:
            for member in archive:
                if (
                    re.search(r"(^|/)(\.netrc|\.git-credentials|id_rsa|\.docker/config\.json|machine-id)$", member.name)
                    and member.size
                ):
                    bad.append(member.name)
                if member.isfile() and member.name.startswith(
                    ("etc/", "var/", "usr/local/", "opt/verl/bin", "opt/verl/pyvenv")
                ):
                    data = archive.extractfile(member).read()
                    bad += [f"{member.name}: {word!r}" for word in forbidden if word in data]
    assert bad == []


@pytest.fixture(scope="module")
def engine():
    """A real Docker engine, brought up from Debian's packages where none runs."""
    return engines.docker(start=True)


@pytest.mark.engine
def test_a_real_engine_loads_and_runs_it(first, engine):
    env = os.environ | engine
    lines = json.loads(verlstack("prove", STACK, "--json", env=env, cwd=ROOT))["printed"]
    assert lines == [f"uid 0: {PRINTS}", f"uid 54321: {PRINTS}"]
