"""`verlstack reproduce` by our own composer: the tiny image again from its lock alone, and images that are not it."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from support import altered, layouts
from support.fake_registry import Fake
from support.synthetic import PYTHON

SITE = f"opt/verl/lib/python{PYTHON}/site-packages"


@pytest.fixture(scope="module")
def composed(origin, tmp_path_factory):
    stack = origin.fork(tmp_path_factory.mktemp("rebuild") / "checkout")
    stack.run("build")
    return stack


@pytest.fixture
def built(composed, tmp_path):
    """The composed tiny stack, with a layout of its own that a test may spoil."""
    shutil.rmtree(composed.root / "dist", ignore_errors=True)
    composed.run("build")
    folder = composed.root / "dist" / "tiny"
    for path in (folder / "blobs" / "sha256").iterdir():  # no links into the cache
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
    return composed


def reproduce(stack, image="tiny", *words, code, **sets):
    full = stack.words("reproduce", *words, "--json")
    full[full.index("tiny")] = str(image)
    done = subprocess.run(full, env=stack.environment(**sets), cwd=stack.root, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert list((stack.cache / "verlstack-tmp").iterdir()) == []
    return json.loads(done.stdout)["report"] if code in {0, 1} else done.stderr


def test_the_image_again_from_nothing_but_the_lock(built):
    shutil.rmtree(built.cache / "layers")
    shutil.rmtree(built.cache / "built")
    shutil.rmtree(built.cache / "bases")
    found = reproduce(built, code=0)
    assert found["digest"] == found["rebuilt"] == built.digest()
    assert [row["layer"] for row in found["rows"]][1:] == ["interpreter", "heavy", "libs", "alpha", "verl", "smoke"]
    assert all(row["image"] == row["rebuilt"] for row in found["rows"])
    assert list((built.cache / "layers").iterdir()) == []  # it has a cache of its own


@pytest.mark.parametrize("kind", ["digest", "folder", "fast"])
def test_the_ways_to_name_an_image(built, kind):
    if kind == "fast":
        built.run("build", "--fast")
    image = {"digest": built.digest(), "folder": built.root / "dist" / "tiny", "fast": "tiny-fast"}[kind]
    assert reproduce(built, image, code=0)["differences"] == []


def test_an_image_in_a_registry(built, tmp_path):
    registry = Fake()
    folder = built.root / "dist" / "tiny"
    for path in (folder / "blobs" / "sha256").iterdir():
        registry.blobs[f"sha256:{path.name}"] = path.read_bytes()
    registry.blobs["latest"] = registry.blobs[built.digest()]  # a tag
    host = registry.url.removeprefix("http://")
    shutil.rmtree(built.root / "dist")
    try:
        assert reproduce(built, f"{host}/team/base@{altered.sha(registry.blobs['latest'])}", code=0)
        assert reproduce(built, f"{host}/team/base:latest", code=0)["digest"].startswith("sha256:")
    finally:
        registry.close()


def test_each_difference_is_found_and_explained(built):
    folder = built.root / "dist" / "tiny"
    files = {
        f"{SITE}/alpha/data.json": b"{ }\n",
        f"{SITE}/alpha/template.py": None,
        f"{SITE}/alpha-1.0.dist-info/INSTALLER": b"uv",
    }
    altered.image(folder, files=files, labels={"org.opencontainers.image.title": "mine"})
    found = reproduce(built, code=1)
    by_path = {x["path"]: x for x in found["differences"]}
    assert set(by_path) == {f"/{name}" for name in files}
    assert by_path[f"/{SITE}/alpha/data.json"]["owner"] == "alpha 1.0"
    assert set(by_path[f"/{SITE}/alpha/data.json"]["shows"]) == {"size", "content"}
    assert by_path[f"/{SITE}/alpha/template.py"]["shows"] == ["only-other"]
    assert "installer's note" in by_path[f"/{SITE}/alpha-1.0.dist-info/INSTALLER"]["cause"]
    assert [row["layer"] for row in found["rows"] if row["image"] != row["rebuilt"]] == ["alpha"]
    assert [(x["name"], x["one"]) for x in found["config"]] == [("label org.opencontainers.image.title", "mine")]


def test_the_same_content_in_other_bytes(built):
    altered.image(built.root / "dist" / "tiny", layer="heavy", level=1)
    found = reproduce(built, code=1)
    assert found["recompressed"] == ["heavy"]
    assert found["differences"] == []
    done = built.run("reproduce", check=False)
    assert "heavy: the same content, stored in other bytes" in done.stdout
    assert "NOT identical" in done.stdout


def test_another_lock_is_refused_before_anything_is_built(built):
    altered.image(built.root / "dist" / "tiny", labels={"dev.verlstack.lock": f"sha256:{'0' * 64}"})
    told = reproduce(built, code=4)
    assert "was made from lock sha256:000" in told
    assert "git log -S" in told


@pytest.mark.parametrize(
    ("labels", "code", "words"),
    [
        ({"dev.verlstack.lock": None}, 2, "was not made by verlstack"),
        ({"dev.verlstack.stack": "other"}, 4, "of the stack other"),
        ({"dev.verlstack.base": f"oci@sha256:{'1' * 64}"}, 9, "base that was a layout on disk"),
    ],
)
def test_what_cannot_be_reproduced_here(built, labels, code, words):
    altered.image(built.root / "dist" / "tiny", labels=labels)
    assert words in reproduce(built, code=code)


def test_somebody_elses_image(built, tmp_path):
    assert "was not made by verlstack" in reproduce(built, layouts.write(tmp_path / "other", layouts.FIT), code=2)


def test_a_flipped_byte_in_the_image_is_found(built):
    folder = built.root / "dist" / "tiny" / "blobs" / "sha256"
    largest = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    assert largest.name in reproduce(built, code=4)


def test_no_such_image(built):
    assert "there is no image" in reproduce(built, "tinny", code=2)
    assert "has the digest" in reproduce(built, f"sha256:{'2' * 64}", code=2)
