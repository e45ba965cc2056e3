"""`verlstack bundle` and `verlstack reproduce --offline BUNDLE` on the tiny stack, with every upstream gone."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile

import pytest

from support import altered

GONE = "http://127.0.0.1:9/simple/"  # the discard port: nobody answers


@pytest.fixture(scope="module")
def made(origin, tmp_path_factory):
    """The tiny stack, built, and its bundle."""
    stack = origin.fork(tmp_path_factory.mktemp("bundle") / "checkout")
    stack.run("build")
    stack.run("bundle", str(stack.root / "tiny.tar"))
    return stack


def offline(stack, bundle, folder, *words, code):
    """Reproduce in an empty folder with an empty cache, where no index answers; the report, or what was said."""
    folder.mkdir()
    sets = {"VERLSTACK_CACHE": str(folder / "cache"), "UV_DEFAULT_INDEX": GONE, "HTTP_PROXY": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "verlstack", "reproduce", *words, "--offline", str(bundle), "--json"]
    command += ["--python-tree", sys.base_prefix]
    done = subprocess.run(command, env=stack.environment(**sets), cwd=folder, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert list((folder / "cache" / "verlstack-tmp").iterdir()) == []
    return json.loads(done.stdout)["report"] if code in {0, 1} else done.stderr


def test_the_image_again_when_every_upstream_is_gone(made, tmp_path):
    replies = dict(made.index.replies)
    made.index.replies.clear()
    try:
        found = offline(made, made.root / "tiny.tar", tmp_path / "far", code=0)
    finally:
        made.index.replies.update(replies)
    assert found["digest"] == found["rebuilt"] == made.digest()


def test_compared_with_an_image_file_by_file(made, tmp_path):
    shutil.copytree(made.root / "dist" / "tiny", tmp_path / "image", copy_function=shutil.copyfile)
    assert offline(made, made.root / "tiny.tar", tmp_path / "a", str(tmp_path / "image"), code=0)["read"] is True
    altered.image(tmp_path / "image", files={"opt/verl/bin/alpha-run": b"other\n"})
    found = offline(made, made.root / "tiny.tar", tmp_path / "b", str(tmp_path / "image"), code=1)
    assert [x["path"] for x in found["differences"]] == ["/opt/verl/bin/alpha-run"]


def test_the_same_bytes_again_and_everything_is_in_it(made, tmp_path):
    said = json.loads(made.run("bundle", str(tmp_path / "again.tar"), "--json").stdout)
    assert (tmp_path / "again.tar").read_bytes() == (made.root / "tiny.tar").read_bytes()
    assert said["sha256"] == hashlib.sha256((tmp_path / "again.tar").read_bytes()).hexdigest()
    assert said["image"] == made.digest()
    with tarfile.open(tmp_path / "again.tar") as archive:
        names = [m.name for m in archive if m.isfile()]
        lock = archive.extractfile("constraints/tiny.lock.toml").read()
    assert lock == (made.root / "constraints" / "tiny.lock.toml").read_bytes()
    assert {"constraints/stacks.toml", "constraints/tiny.txt", "smoke_tests/versions.py"} <= set(names)
    assert {"src/verldoctor/launcher.py", "src/verldoctor/rules/env.json"} <= set(names)
    assert {"tool/src/verlstack/cli/__init__.py", "tool/src/verlstack/data/differences.toml"} <= set(names)
    ends = {name.rpartition("/")[2] for name in names if name.startswith("files/")}
    assert {"alpha-1.0-py3-none-any.whl", "heavy-1.0-py3-none-any.whl", "verl-0.2.0.post2.tar.gz"} <= ends
    assert len([name for name in ends if name.startswith(("pip-", "setuptools-", "wheel-"))]) == 3
    assert [name for name in names if name.startswith("bases/") and name.endswith("/base.json")]


def test_a_flipped_byte_is_found_before_anything_is_built(made, tmp_path):
    data = bytearray((made.root / "tiny.tar").read_bytes())
    with tarfile.open(made.root / "tiny.tar") as archive:
        (heavy,) = (m for m in archive if m.name.endswith("heavy-1.0-py3-none-any.whl"))
    data[heavy.offset_data + heavy.size // 2] ^= 1
    (tmp_path / "b.tar").write_bytes(data)
    told = offline(made, tmp_path / "b.tar", tmp_path / "far", code=6)
    assert heavy.name in told
    assert "composing" not in told


def test_a_missing_member_is_named(made, tmp_path):
    data = (made.root / "tiny.tar").read_bytes()
    with tarfile.open(made.root / "tiny.tar") as archive:
        (heavy,) = (m for m in archive if m.name.endswith("heavy-1.0-py3-none-any.whl"))
    end = heavy.offset_data + heavy.size + -heavy.size % 512
    (tmp_path / "b.tar").write_bytes(data[: heavy.offset] + data[end:])
    assert f"lacks {heavy.name}" in offline(made, tmp_path / "b.tar", tmp_path / "far", code=5)


def test_an_image_of_another_lock_is_not_bundled(made, tmp_path):
    other = made.fork(tmp_path / "other", made.cache)
    shutil.copytree(made.root / "dist", other.root / "dist")
    altered.image(other.root / "dist" / "tiny", labels={"dev.verlstack.lock": f"sha256:{'0' * 64}"})
    done = other.run("bundle", str(tmp_path / "b.tar"), check=False)
    assert done.returncode == 4
    assert not (tmp_path / "b.tar").exists()


def test_without_an_image_there_is_nothing_to_bundle(tiny, tmp_path):
    done = tiny.run("bundle", str(tmp_path / "b.tar"), check=False)
    assert done.returncode == 2
    assert "no OCI layout" in done.stderr


def test_offline_alone_is_the_cache_alone(made):
    assert made.run("reproduce", "--offline", check=False).returncode == 5  # a base of a cache of its own is not there
