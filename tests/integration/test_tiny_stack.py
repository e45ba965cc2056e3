"""The tiny stack through the real program: the image it gives, and that nothing but the lock decides its digest."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import marshal
import shutil
import signal
import subprocess
import tarfile
import threading
import time
from pathlib import Path

import pytest
import zstandard

from support.synthetic import PYTHON, VERL, WHEELS, git_repository, sdist, serve
from support.wheels import Wheel
from verlstack import lockfile

SITE = f"opt/verl/lib/python{PYTHON}/site-packages"
TAG = f"cpython-{PYTHON.replace('.', '')}"


def layers(stack, name="tiny"):
    """Layer name → its tar members by path, and their bytes."""
    dist = stack.root / "dist" / name
    manifest = json.loads((dist / "blobs/sha256" / stack.digest(name)[7:]).read_text())
    config = json.loads((dist / "blobs/sha256" / manifest["config"]["digest"][7:]).read_text())
    found = {}
    for entry, note in zip(manifest["layers"], config["history"], strict=True):
        raw = (
            zstandard.ZstdDecompressor()
            .decompressobj()
            .decompress((dist / "blobs/sha256" / entry["digest"][7:]).read_bytes())
        )
        with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
            found[note["created_by"].removeprefix("verlstack: ")] = {
                m.name: (m, archive.extractfile(m).read() if m.isfile() else b"") for m in archive
            }
    return found, manifest, config


def test_the_image_holds_what_the_lock_says_and_nothing_else(tiny):
    tiny.run("build")
    found, _, config = layers(tiny)
    names = [name for name in found if not name.startswith("base ")]
    assert names == ["interpreter", "heavy", "libs", "alpha", "verl", "smoke"]
    for name in names:
        members = [m for m, _ in found[name].values()]
        assert [m.name for m in members] == sorted(m.name for m in members)
        assert all(m.mtime == 1700000000 and (m.uid, m.gid, m.uname, m.gname) == (0, 0, "", "") for m in members)
        assert all(m.mode in ({0o644, 0o755} if m.isfile() else {0o755, 0o777}) for m in members)
        assert {p for m in members if (p := m.name.rpartition("/")[0])} <= set(found[name])
    alpha = found["alpha"]
    assert alpha["opt/verl/bin/alpha-run"][1] == b"#!/opt/verl/bin/python\nprint('alpha')\n"
    assert alpha["opt/verl/bin/alpha"][1].startswith(b"#!/opt/verl/bin/python\n")
    assert f"{SITE}/alpha/__pycache__/__init__.{TAG}.pyc" in alpha
    assert f"{SITE}/alpha/__pycache__/template.{TAG}.pyc" not in alpha  # does not compile
    record = alpha[f"{SITE}/alpha-1.0.dist-info/RECORD"][1].decode().splitlines()
    assert record == sorted(record)
    assert len(record) == sum(m.isfile() for m, _ in alpha.values())
    assert not [p for p in found["verl"] if p.startswith(f"{SITE}/tests")]
    assert not [
        p for layer in found.values() for p in layer if p.endswith(("INSTALLER", "REQUESTED", "direct_url.json"))
    ]
    assert config["config"]["Labels"]["dev.verlstack.pins"] == "alpha==1.0 verl==0.2.0.post2"
    assert config["config"]["Labels"]["dev.verlstack.lock"].startswith("sha256:")
    assert "PATH=/opt/verl/bin:/usr/bin:/bin" in config["config"]["Env"]


def test_verldoctor_is_in_the_image_and_what_it_compares_in_the_environment(tiny):
    tiny.run("build")
    found, _, config = layers(tiny)
    smoke, root = found["smoke"], "opt/verlstack/verldoctor"
    command, data = smoke["opt/verl/bin/verldoctor"]
    assert command.mode == 0o755
    assert data.startswith(b"#!/opt/verl/bin/python\n")
    assert data == smoke[f"{root}/launcher.py"][1]
    assert smoke[f"{root}/rules/env.json"][1] == b"{}\n"
    assert {f"{root}/__pycache__/{name}.{TAG}.pyc" for name in ("cli", "launcher")} <= set(smoke)
    said = dict(pair.split("=", 1) for pair in config["config"]["Env"])["VERLSTACK_STACK"]
    assert json.loads(said) == {
        "format": 1,
        "stack": "tiny",
        "cuda": "12.1",
        "python": PYTHON,
        "pins": {"alpha": "1.0", "verl": "0.2.0.post2"},
        "left_out": [],
        "environment": {},
    }


def test_another_verldoctor_is_another_lock(tiny):
    tiny.run("build")
    before = tiny.digest()
    (tiny.root / "src" / "verldoctor" / "cli.py").write_text("def main():\n    return 1\n")
    done = tiny.run("build", check=False)
    assert done.returncode == 4
    assert "layer smoke" in done.stderr
    tiny.run("lock")
    tiny.run("build")
    assert tiny.digest() != before


def test_bytecode_is_unchecked_and_names_its_final_place(tiny):
    tiny.run("build")
    found, _, _ = layers(tiny)
    data = found["alpha"][f"{SITE}/alpha/__pycache__/__init__.{TAG}.pyc"][1]
    assert data[4:8] == b"\x01\0\0\0"  # PEP 552: hash-based, unchecked
    assert marshal.loads(data[16:]).co_filename == f"/{SITE}/alpha/__init__.py"


@pytest.fixture(scope="module")
def reference(origin, tmp_path_factory):
    """The digest under ordinary conditions."""
    one = origin.fork(tmp_path_factory.mktemp("reference") / "checkout")
    one.run("build")
    return one.digest()


def in_checkout_elsewhere(stack, tmp_path):
    other = stack.fork(tmp_path / "a" / "much longer path" / "of a checkout")
    other.run("build")
    return other.digest()


def with_odd_environment(stack, _):
    stack.run(
        "build", TZ="Pacific/Kiritimati", LANG="tr_TR.UTF-8", LC_ALL="C", PYTHONHASHSEED="4242", HOME="/nonexistent"
    )
    return stack.digest()


def with_umask_077(stack, _):
    stack.run("build", umask=0o077)
    return stack.digest()


def with_one_worker(stack, _):
    stack.run("build", "--jobs", "1")
    return stack.digest()


def with_two_workers(stack, _):
    stack.run("build", "--jobs", "2")
    return stack.digest()


def from_a_warm_cache(stack, _):
    stack.run("build")
    first = json.loads(stack.run("build", "--json").stdout)
    assert all(row["cached"] for row in first["rows"] if row["layer"] != "base")
    return stack.digest()


def offline_from_the_cache(stack, _):
    stack.run("build")
    stack.index.replies.clear()
    stack.run("build", "--offline")
    return stack.digest()


def with_the_clock_elsewhere(stack, _):
    if not shutil.which("faketime"):
        pytest.skip("faketime is not installed")
    words = ["faketime", "2031-07-01 12:00:00", *stack.words("build")]
    done = subprocess.run(words, env=stack.environment(), cwd=stack.root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return stack.digest()


def with_another_user(stack, _):
    """As uid 54321 without capabilities, in a user namespace: who the user is cannot be seen in the bytes."""
    enter = ["unshare", "--user", "--map-user=54321", "--map-group=54321"]
    if not shutil.which("unshare") or subprocess.run([*enter, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine forbids user namespaces")
    words = [*enter, *stack.words("build")]
    done = subprocess.run(words, env=stack.environment(), cwd=stack.root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return stack.digest()


def locked_from_an_index_in_another_order(stack, _):
    for path in [p for p in stack.index.replies if p.startswith("/simple/")]:
        stack.index.replies[path] = list(reversed(stack.index.replies[path]))
    before = (stack.root / "constraints" / "tiny.lock.toml").read_text()
    stack.run("lock")
    assert (stack.root / "constraints" / "tiny.lock.toml").read_text() == before
    stack.run("build")
    return stack.digest()


@pytest.mark.parametrize(
    "conditions",
    [
        in_checkout_elsewhere,
        with_odd_environment,
        with_umask_077,
        with_one_worker,
        with_two_workers,
        from_a_warm_cache,
        offline_from_the_cache,
        with_the_clock_elsewhere,
        with_another_user,
        locked_from_an_index_in_another_order,
    ],
)
def test_the_digest_is_the_same(tiny, tmp_path, reference, conditions):
    assert conditions(tiny, tmp_path) == reference


def test_verl_bumped_alone_changes_one_layer_the_config_and_the_manifest(tiny):
    tiny.run("build")
    blobs = tiny.root / "dist" / "tiny" / "blobs" / "sha256"
    before = {p.name for p in blobs.iterdir()}
    _, old, _ = layers(tiny)
    bumped = sdist(VERL | {"verl/__init__.py": b"__version__ = '0.2.0.post2'\nnew = 1\n"})
    serve(tiny.index, {"verl": {"verl-0.2.0.post2.tar.gz": bumped}})
    pins = tiny.root / "constraints" / "stacks.toml"
    text = pins.read_text()
    at = text.index("sdist_sha256 = ") + len('sdist_sha256 = "')
    pins.write_text(text[:at] + hashlib.sha256(bumped).hexdigest() + text[at + 64 :])
    assert tiny.run("build", check=False).returncode == 4  # stale
    tiny.run("lock")
    tiny.run("build")
    _, new, _ = layers(tiny)
    changed = [i for i, (a, b) in enumerate(zip(old["layers"], new["layers"], strict=True)) if a != b]
    assert changed == [len(old["layers"]) - 2]  # verl, below the smoke tests
    assert len({p.name for p in blobs.iterdir()} - before) == 3  # layer, config, manifest


def test_fast_gives_the_same_diff_ids_and_says_so(tiny):
    ordinary = json.loads(tiny.run("build", "--json").stdout)
    fast = json.loads(tiny.run("build", "--fast", "--json").stdout)
    assert [r["diff_id"] for r in fast["rows"]] == [r["diff_id"] for r in ordinary["rows"]]
    assert fast["digest"] != ordinary["digest"]
    assert fast["tag"] == "tiny-fast"
    _, _, config = layers(tiny, "tiny-fast")
    assert config["config"]["Labels"]["dev.verlstack.compression"] == "fast"
    assert tiny.digest() == ordinary["digest"]  # the ordinary image is still there


@pytest.mark.parametrize("kind", ["oci-archive", "docker-archive"])
def test_archives_hold_the_layout_and_are_the_same_every_time(tiny, kind):
    report = json.loads(tiny.run("build", "--output", kind, "--json").stdout)
    first = Path(report["archive"]).read_bytes()
    tiny.run("build", "--output", kind)
    assert Path(report["archive"]).read_bytes() == first
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        names = archive.getnames()
        assert {"oci-layout", "index.json", f"blobs/sha256/{report['digest'][7:]}"} <= set(names)
        assert ("manifest.json" in names) == (kind == "docker-archive")
        if kind == "docker-archive":
            (row,) = json.load(archive.extractfile("manifest.json"))
            assert {row["Config"], *row["Layers"]} <= set(names)


def test_verl_is_built_from_its_tag_where_the_repository_answers(tiny, tmp_path):
    repository, commit = git_repository(tmp_path / "upstream", VERL)
    pins = tiny.root / "constraints" / "stacks.toml"
    pins.write_text(pins.read_text().replace("file:///nowhere", repository).replace("0" * 40, commit))
    tiny.run("lock")
    (tiny.cache / "x").mkdir()
    other = tiny.fork(tmp_path / "other")
    done = other.run("build")
    assert f"built from tag v0.2.0.post2, commit {commit[:12]}" in done.stderr
    assert other.run("build").returncode == 0


def test_a_moved_tag_is_refused(tiny, tmp_path):
    repository, commit = git_repository(tmp_path / "upstream", VERL)
    pins = tiny.root / "constraints" / "stacks.toml"
    pins.write_text(pins.read_text().replace("file:///nowhere", repository).replace("0" * 40, "1" * 40))
    tiny.run("lock")
    done = tiny.fork(tmp_path / "other").run("build", check=False)
    assert done.returncode == 8
    assert commit in done.stderr
    assert "1" * 40 in done.stderr


def test_a_tag_whose_wheel_differs_gives_way_to_the_pinned_sdist(tiny, tmp_path, reference):
    repository, commit = git_repository(tmp_path / "upstream", VERL | {"verl/extra.py": b"x = 1\n"})
    pins = tiny.root / "constraints" / "stacks.toml"
    pins.write_text(pins.read_text().replace("file:///nowhere", repository).replace("0" * 40, commit))
    tiny.run("lock")
    done = tiny.fork(tmp_path / "other").run("build")
    assert "is not the lock's; building the release sdist instead" in done.stderr


def test_two_builds_at_once_on_one_cache(tiny, tmp_path, reference):
    other = tiny.fork(tmp_path / "second", cache=tiny.cache)
    running = [
        subprocess.Popen(
            s.words("build"),
            env=s.environment(),
            cwd=s.root,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for s in (tiny, other)
    ]
    errors = [p.communicate()[1] for p in running]
    assert [p.returncode for p in running] == [0, 0], errors
    assert tiny.digest() == other.digest() == reference


def test_killed_anywhere_and_run_again(tiny, reference):
    """Kill -9 after ever longer times, on one cache; the run that is not killed must give the digest."""
    delays = [0.05 * 1.35**n for n in range(14)]  # 0.05 to 2.5 s: from start-up to the last rename
    for delay in delays:
        process = subprocess.Popen(
            tiny.words("build"),
            env=tiny.environment(),
            cwd=tiny.root,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        killer = threading.Timer(delay, process.kill)
        killer.start()
        process.wait()
        killer.cancel()
        if (index := tiny.root / "dist" / "tiny" / "index.json").exists():
            assert json.loads(index.read_text())["manifests"][0]["digest"] == reference
    tiny.run("build")
    assert tiny.digest() == reference
    assert not list((tiny.cache / "verlstack-tmp").iterdir())
    assert alive(tiny) == []  # no worker outlives its parent


def alive(stack):
    """Command lines of processes that work on this stack, workers included."""
    deadline = time.monotonic() + 10
    while True:
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if f"VERLSTACK_CACHE={stack.cache}".encode() in path.read_bytes().split(b"\0"):
                    found.append(path.with_name("cmdline").read_bytes())
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_leaves_a_resumable_state(tiny, reference, number):
    process = subprocess.Popen(
        tiny.words("build"),
        env=tiny.environment(),
        cwd=tiny.root,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    deadline = time.monotonic() + 20
    while not (tiny.cache / "files").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert "run the same command again" in err
    assert "Traceback" not in err
    tiny.run("build")
    assert tiny.digest() == reference


def test_a_flipped_byte_in_a_cached_layer_is_noticed_and_mended(tiny, reference):
    tiny.run("build")
    blob = max((tiny.cache / "layers").glob("*.blob"), key=lambda p: p.stat().st_size)
    blob.chmod(0o644)
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.unlink()
    blob.write_bytes(data)
    tiny.run("build")
    assert tiny.digest() == reference


def test_every_hash_in_the_lock_is_used(tiny):
    text = (tiny.root / "constraints" / "tiny.txt").read_text()
    for wheel in WHEELS:
        assert f"{wheel.name}==1.0" in text
    assert "://" not in text + (tiny.root / "constraints" / "tiny.lock.toml").read_text()


def test_a_wheel_that_contradicts_another_is_named(tiny):
    rogue = Wheel(name="gamma", files={"gamma.py": b"x = 1\n", "shared/__init__.py": b"different = True\n"})
    serve(tiny.index, {"gamma": {rogue.filename: rogue.to_bytes()}})
    done = tiny.run("lock", check=False)
    assert done.returncode == 7
    assert "beta-1.0" in done.stderr
    assert "gamma-1.0" in done.stderr
    assert "shared/__init__.py" in done.stderr


def test_the_lock_is_rendered_and_read_back_alike(tiny):
    from verlstack import pins

    stack = pins.load(tiny.root / "constraints" / "stacks.toml", "tiny")
    lock = lockfile.load(tiny.root / "constraints", stack)
    requirements = (tiny.root / "constraints" / "tiny.txt").read_text()
    assert (
        lockfile.render(lock, stack.checksum, requirements)
        == (tiny.root / "constraints" / "tiny.lock.toml").read_text()
    )
