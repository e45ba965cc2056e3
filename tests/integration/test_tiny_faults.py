"""What a user or the world may do wrong to a build, through the real program: exit code, words, and what is left."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess

import pytest

from support.bad_server import Reply
from support.synthetic import serve
from support.wheels import HOSTILE, Wheel


def fails(stack, *words, code, says, **sets):
    """The command fails with this exit code, and its message has all of these words and a way out."""
    done = stack.run(*words, check=False, **sets)
    assert done.returncode == code, done.stdout + done.stderr
    missing = [s for s in says if s not in done.stderr]
    assert not missing, (missing, done.stderr)
    assert "do:" in done.stderr
    return done


def edit_pins(stack, old, new):
    path = stack.root / "constraints" / "stacks.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def in_mount_namespace(stack, script, *words):
    """Run `verlstack WORDS` after `script` (which mounts something) in a mount namespace of its own."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("mounting needs root")
    command = ["unshare", "--mount", "sh", "-ec", f'{script}; exec "$@"', "sh", *stack.words(*words)]
    return subprocess.run(command, env=stack.environment(), cwd=stack.root, capture_output=True, text=True)


def test_unknown_stack(tiny):
    words = [w if w != "tiny" else "tinny" for w in tiny.words("build")]
    done = subprocess.run(words, env=tiny.environment(), capture_output=True, text=True)
    assert done.returncode == 2
    assert "did you mean 'tiny'?" in done.stderr


def test_verl_tag_that_does_not_exist(tiny):
    edit_pins(tiny, '"v0.2.0.post2"', '"v0.2.3"')
    fails(tiny, "lock", code=3, says=["v0.2.3", "v0.2.0.post2", "v0.3.0.rc0"])


def test_stale_lock_stops_every_later_verb(tiny):
    edit_pins(tiny, "level = 3", "level = 4")
    for verb in ("fetch", "build"):
        fails(tiny, verb, code=4, says=["stale", "verlstack lock tiny"])


def test_lock_without_one_hash(tiny):
    path = tiny.root / "constraints" / "tiny.txt"
    path.write_text(re.sub(r" \\\n    --hash=sha256:[0-9a-f]{64}", "", path.read_text(), count=1))
    fails(tiny, "build", code=4, says=["edited by hand", "verlstack lock tiny"])


def test_no_lock(tiny):
    (tiny.root / "constraints" / "tiny.lock.toml").unlink()
    fails(tiny, "build", code=4, says=["no lock", "verlstack lock tiny"])


def test_pins_that_contradict_each_other(tiny):
    edit_pins(tiny, 'bound = "==1.0"', 'bound = "==2.0"')
    fails(tiny, "lock", code=3, says=["do not resolve", "alpha"])


def test_wrong_bytes_from_the_index(tiny):
    (name,) = [p for p in tiny.index.replies if p.startswith("/files/heavy")]
    tiny.index.replies[name] = [Reply(body=b"x" * len(tiny.index.replies[name][0].body))]
    done = fails(tiny, "build", code=6, says=["heavy-1.0-py3-none-any.whl", "deleted"])
    assert len(re.findall(r"\b[0-9a-f]{64}\b", done.stderr)) >= 2  # both hashes
    assert not list((tiny.cache / "files").rglob("heavy*.whl"))
    assert not (tiny.root / "dist").exists()


def test_index_gone(tiny):
    fails(tiny, "build", code=5, says=["cannot be reached"], UV_DEFAULT_INDEX="http://user:secret@127.0.0.1:9/simple/")


def test_credentials_are_not_shown(tiny):
    done = tiny.run("build", check=False, UV_DEFAULT_INDEX="http://user:secret@127.0.0.1:9/simple/")
    assert "secret" not in done.stdout + done.stderr


def test_offline_with_an_empty_cache(tiny):
    fails(
        tiny, "build", "--offline", "--base", "debian", code=5, says=["not in the cache", "heavy-1.0-py3-none-any.whl"]
    )


@pytest.mark.parametrize("case", ["parent path", "not a zip", "first half"])
def test_hostile_wheel(tiny, case):
    wheel = HOSTILE[case].wheel
    bad = Wheel(**{f: getattr(wheel, f) for f in wheel.__dataclass_fields__} | {"name": "gamma"})
    serve(tiny.index, {"gamma": {bad.filename: bad.to_bytes()}})
    done = tiny.run("lock", check=False)
    assert done.returncode in {3, 7}, done.stderr  # uv refuses some of them itself
    assert "gamma" in done.stderr


def test_wheel_for_another_interpreter(tiny):
    """Uv would not choose it; a lock written by hand, checksum and all, might."""
    other = Wheel(name="gamma", tag="cp27-cp27m-manylinux1_x86_64")
    serve(tiny.index, {"gamma": {other.filename: other.to_bytes()}})
    fails(tiny, "lock", code=3, says=["gamma"])


def test_no_python(tiny):
    words = tiny.words("build")
    words[words.index("--python-tree") + 1] = "/nonexistent"
    done = subprocess.run(words, env=tiny.environment(), capture_output=True, text=True)
    assert done.returncode == 9
    assert "/nonexistent" in done.stderr


def test_unknown_base(tiny):
    fails(tiny, "build", "--base", "alpine", code=2, says=["alpine", "debian", "registry:", "auto"])


def test_base_by_tag(tiny):
    fails(tiny, "build", "--base", "registry:127.0.0.1:9/base:latest", code=2, says=["sha256"])


def test_disk_full(tiny):
    done = in_mount_namespace(tiny, f"mkdir -p {tiny.cache}; mount -t tmpfs -o size=3m tmpfs {tiny.cache}", "build")
    assert done.returncode == 10, done.stderr
    assert "no space left" in done.stderr
    assert "VERLSTACK_CACHE" in done.stderr
    assert "Traceback" not in done.stderr
    tiny.run("build")


def test_read_only_cache(tiny):
    script = f"mkdir -p {tiny.cache}; mount --bind {tiny.cache} {tiny.cache}; mount -o remount,ro,bind {tiny.cache}"
    done = in_mount_namespace(tiny, script, "build")
    assert done.returncode == 10, done.stderr
    assert "read-only" in done.stderr
    assert "VERLSTACK_CACHE" in done.stderr


def test_cache_that_is_a_file(tiny):
    tiny.cache.write_text("x")
    done = tiny.run("build", check=False)
    assert done.returncode == 10, done.stderr


def test_dist_that_cannot_be_written_leaves_the_old_image(tiny):
    tiny.run("build")
    before = tiny.digest()
    dist = tiny.root / "dist"
    script = f"mount --bind {dist} {dist}; mount -o remount,ro,bind {dist}"
    done = in_mount_namespace(tiny, script, "build", "--fast")
    assert done.returncode == 10, done.stderr
    assert tiny.digest() == before


def test_smoke_tests_changed_since_the_lock(tiny):
    (tiny.root / "smoke_tests" / "versions.py").write_text("print(1)\n")
    fails(tiny, "build", code=4, says=["smoke", "diff_id", "verlstack lock tiny"])


def test_prove_without_an_image(tiny):
    fails(tiny, "prove", code=2, says=["no OCI layout", "make image"])


def test_prove_of_an_image_that_does_not_start(tiny):
    """The tiny base has no real Python in it."""
    tiny.run("build")
    done = tiny.run("prove", check=False)
    assert done.returncode == 12, done.stderr
    assert "uid 0" in done.stderr
    assert not list((tiny.cache / "verlstack-tmp").iterdir())


def test_a_blob_of_the_image_was_changed(tiny):
    tiny.run("build")
    config = json.loads((tiny.root / "dist/tiny/blobs/sha256" / tiny.digest()[7:]).read_text())["config"]["digest"]
    path = tiny.root / "dist/tiny/blobs/sha256" / config[7:]
    path.write_bytes(path.read_bytes() + b" ")
    fails(tiny, "prove", code=4, says=["not what its digest says"])


def test_prove_of_an_image_that_is_not_the_present_locks(tiny):
    tiny.run("build")
    edit_pins(tiny, "a tiny stack", "a stack")
    fails(tiny, "prove", code=4, says=["stale", "verlstack lock tiny"])
    tiny.run("lock")
    fails(tiny, "prove", code=4, says=["not the present one", "verlstack build tiny"])


def test_a_wrong_base_is_refused_before_anything_is_fetched(tiny):
    done = fails(tiny, "build", "--base", "nonsense", code=2, says=["nonsense"])
    assert "fetch" not in done.stderr


def test_fetch_then_build_offline(tiny, tmp_path):
    """What `fetch` brings is all that an air-gapped build needs, the base included."""
    tiny.run("fetch", "--base", tiny.base)
    tiny.index.replies.clear()
    tiny.run("build", "--offline")


def test_a_bound_without_operator(tiny):
    edit_pins(tiny, 'bound = "==1.0"', 'bound = "1.0"')
    fails(tiny, "lock", code=3, says=["alpha1.0", "requires"])


def test_a_reader_that_goes_away(tiny):
    tiny.run("build")
    words = " ".join(f"'{w}'" for w in tiny.words("build"))
    done = subprocess.run(
        ["bash", "-c", f"{words} | true; exit ${{PIPESTATUS[0]}}"],
        env=tiny.environment(),
        capture_output=True,
        text=True,
    )
    assert "BrokenPipe" not in done.stderr


@pytest.mark.parametrize("where", ["files", "built"])
def test_a_damaged_built_wheel_is_built_again(tiny, where):
    """Verl's wheel, wherever it is kept, is hashed before use, and made anew where it is not what it was."""
    tiny.run("build")
    before = tiny.digest()
    for path in (tiny.cache / "layers").iterdir():
        path.unlink()
    for path in (tiny.cache / where).rglob("verl-*.whl"):
        data = bytearray(path.read_bytes())
        data[60] ^= 1
        path.write_bytes(data)
    if where == "built":
        for path in (tiny.cache / "files").rglob("verl-*.whl"):
            path.unlink()
    tiny.run("build")
    assert tiny.digest() == before


def test_a_layer_that_is_not_what_its_digest_says_is_not_run(tiny):
    tiny.run("build")
    blobs = tiny.root / "dist/tiny/blobs/sha256"
    path = max(blobs.iterdir(), key=lambda p: p.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)
    fails(tiny, "prove", code=4, says=["not what its digest says"])


def test_lock_where_no_tools_are_pinned_says_what_is_not_written(tiny):
    assert not (tiny.root / "constraints" / "tools.txt").exists()
    assert "tools.txt, so no uv is pinned: the variables of the Dockerfile are not written" in tiny.run("lock").stderr
    assert not (tiny.root / "constraints" / "tiny.bake.json").exists()


def test_settings_of_uv_do_not_reach_the_lock(tiny):
    path = tiny.root / "constraints" / "tiny.lock.toml"
    before = path.read_text()
    (tiny.root / "constraint.txt").write_text("beta<1.0\n")
    tiny.run("lock", UV_RESOLUTION="lowest", UV_CONSTRAINT=str(tiny.root / "constraint.txt"))
    assert path.read_text() == before


def test_offline_asks_nobody_for_verls_tag(tiny):
    tiny.run("fetch", "--base", tiny.base)
    edit = tiny.index.url + "/verl"
    edit_pins(tiny, "file:///nowhere", edit)
    tiny.run("lock", "--offline", check=False)
    tiny.run("lock")
    tiny.index.seen.clear()
    for folder in ("built", "layers"):
        for path in (tiny.cache / folder).rglob("*"):
            path.is_file() and path.unlink()
    for path in (tiny.cache / "files").rglob("verl-*.whl"):
        path.unlink()
    tiny.run("build", "--offline")
    assert not [s for s in tiny.index.seen if "/verl/info" in s.path]
