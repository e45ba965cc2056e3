"""The cache of layers: a key of everything that decides the bytes, and nothing damaged is ever used."""

import dataclasses
import hashlib
import json
import types
from pathlib import Path

import pytest
import zstandard

from support.wheels import Wheel
from verlstack import compose, layer, plan, store, tar, wheel
from verlstack.cache import Cache
from verlstack.content import Inline
from verlstack.errors import LockError, WheelError
from verlstack.layer import Blob, Compression
from verlstack.progress import Silent
from verlstack.pyc_worker import compile_source
from verlstack.store import Finished, Job

ROOT = Path(__file__).parents[2]
SITE = "opt/verl/lib/python3.10/site-packages"
HOW = Compression(level=1, window_log=20, long_distance=False, library="1.5.7")


@pytest.fixture(autouse=True)
def _no_program(monkeypatch, in_process):
    monkeypatch.setattr(store, "Compiler", in_process)


@pytest.fixture
def cache(tmp_path):
    with Cache(tmp_path / "cache").use() as held:
        yield held


def job(*paths, entries=(), **changes):
    fields = {
        "name": "libs",
        "wheels": tuple(
            sorted(((p, hashlib.sha256(p.read_bytes()).hexdigest()) for p in paths), key=lambda w: w[0].name)
        ),
        "entries": entries,
        "venv": wheel.Venv(root="opt/verl", python="3.10"),
        "format": 1,
        "epoch": 5,
        "compression": HOW,
        "interpreter": Path("/usr/bin/python3.10"),
        "python": "3.10.13",
        "cache_tag": "cpython-310",
        "tags": frozenset(plan.tags("3.10", "x86_64-manylinux_2_35")),
    }
    return Job(**fields | changes)


def build(the_job, cache):
    return store.build(the_job, cache, lambda _: None)


def f(path, data=b"x", **kwargs):
    return tar.file(path, Inline(data=data), **kwargs)


# -- the key


def test_each_deciding_field_changes_the_key(tmp_path):
    one, two = (Wheel(name=n).write(tmp_path) for n in ("one", "two"))
    entry = f("opt/x")
    variants = [
        job(one),
        job(two),
        job(one, two),
        job(),
        job(one, entries=(entry,)),
        job(one, entries=(f("opt/y"),)),
        job(one, entries=(f("opt/x", b"y"),)),
        job(one, entries=(f("opt/x", executable=True),)),
        job(one, entries=(tar.symlink("opt/x", "a"),)),
        job(one, entries=(tar.symlink("opt/x", "b"),)),
        job(one, entries=(tar.directory("opt/x"),)),
        job(one, venv=wheel.Venv(root="opt/other", python="3.10")),
        job(one, venv=wheel.Venv(root="opt/verl", python="3.11")),
        job(one, format=2),
        job(one, epoch=6),
        job(one, python="3.10.14"),
        job(one, cache_tag="cpython-311"),
        *(
            job(one, compression=dataclasses.replace(HOW, **change))
            for change in ({"level": 2}, {"window_log": 21}, {"long_distance": True}, {"library": "1.5.6"})
        ),
    ]
    assert len({v.key for v in variants}) == len(variants)


def test_the_key_knows_no_paths_of_this_machine(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    keys = set()
    for folder in folders:
        folder.mkdir()
        path = Wheel().write(folder)
        keys.add(job(path, interpreter=folder / "python", name=folder.name).key)
    assert len(keys) == 1


def test_a_wheel_of_other_bytes_has_another_key(tmp_path):
    first = job(Wheel().write(tmp_path)).key
    assert job(Wheel(files={"demo/__init__.py": b"value = 2\n"}).write(tmp_path)).key != first


# -- build and find


def test_a_layer_is_built_once_and_then_found(tmp_path, cache):
    the_job = job(Wheel().write(tmp_path))
    assert store.find(the_job, cache) is None
    built = build(the_job, cache)
    assert not built.cached
    again = build(the_job, cache)
    assert again.cached
    assert (again.blob, again.claims, again.name) == (built.blob, built.claims, "libs")
    assert built.blob.path == cache.layers / f"{the_job.key}.blob"
    assert not list(cache.tmp.iterdir())


def test_the_layer_holds_the_wheel_its_bytecode_and_its_record(tmp_path, cache):
    built = build(
        job(Wheel().write(tmp_path), entries=(f("opt/more.py", b"x = 1\n"), tar.symlink("opt/l", "more.py"))), cache
    )
    data = zstandard.ZstdDecompressor().decompressobj().decompress(built.blob.path.read_bytes())
    assert built.blob.diff_id == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert {p for p in built.claims if "dist-info" not in p} == {
        f"{SITE}/demo/__init__.py",
        f"{SITE}/demo/__pycache__/__init__.cpython-310.pyc",
        "opt/l",
        "opt/more.py",
        "opt/__pycache__/more.cpython-310.pyc",
    }
    assert f"{SITE}/demo-1.0.dist-info/RECORD" in built.claims
    assert built.claims["opt/more.py"] == "644 " + hashlib.sha256(b"x = 1\n").hexdigest()


DAMAGE = {
    "blob cut": lambda blob, meta: truncate(blob),
    "blob flipped": lambda blob, meta: rewrite(blob, blob.read_bytes()[:-1] + b"!"),
    "json empty": lambda blob, meta: rewrite(meta, b""),
    "json cut": lambda blob, meta: truncate(meta),
    "json not UTF-8": lambda blob, meta: rewrite(meta, b"\xff\xfe"),
    "json a list": lambda blob, meta: rewrite(meta, b"[]"),
    "json null": lambda blob, meta: rewrite(meta, b"null"),
    "json without blob": lambda blob, meta: rewrite(meta, b"{}"),
    "json with other fields": lambda blob, meta: rewrite(meta, b'{"blob": {"extra": 1}, "claims": {}}'),
    "other digest": lambda blob, meta: rewrite(
        meta, meta.read_bytes().replace(b'"digest":"sha256:', b'"digest":"sha256:0')
    ),
}


def rewrite(path, data):
    path.unlink()
    path.write_bytes(data)


def truncate(path):
    rewrite(path, path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("how", DAMAGE)
def test_what_is_damaged_is_removed_and_built_again(tmp_path, cache, how):
    the_job = job(Wheel().write(tmp_path))
    good = build(the_job, cache)
    blob, meta = good.blob.path, good.blob.path.with_suffix(".json")
    DAMAGE[how](blob, meta)
    assert store.find(the_job, cache) is None
    assert not blob.exists()
    assert not meta.exists()
    again = build(the_job, cache)
    assert (again.cached, again.blob) == (False, good.blob)


@pytest.mark.parametrize("lost", [".blob", ".json"])
def test_half_a_layer_counts_as_none(tmp_path, cache, lost):
    the_job = job(Wheel().write(tmp_path))
    good = build(the_job, cache)
    good.blob.path.with_suffix(lost).unlink()
    assert store.find(the_job, cache) is None
    assert build(the_job, cache).blob == good.blob


def test_a_build_that_fails_leaves_nothing(tmp_path, cache):
    def stop(_):
        raise KeyboardInterrupt

    the_job = job(Wheel().write(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        store.build(the_job, cache, stop)
    assert not list(cache.tmp.iterdir())
    assert not list(cache.layers.iterdir())
    assert build(the_job, cache)


def test_wheels_in_another_order_are_the_same_layer(tmp_path, cache):
    settings = compose.Settings(
        interpreter=types.SimpleNamespace(executable=Path("python"), version="3.10.13"),
        python="3.10",
        platform="x86_64-manylinux_2_35",
        format=1,
        epoch=5,
        compression=HOW,
    )
    wheels = [(Wheel(name=n, files={f"{n}/__init__.py": b""}).write(tmp_path), n * 64) for n in "cab"]
    jobs = [settings.job("libs", wheels=order) for order in (wheels, wheels[::-1])]
    assert jobs[0] == jobs[1]
    assert [p.name[0] for p, _ in jobs[0].wheels] == ["a", "b", "c"]
    assert jobs[0].cache_tag == "cpython-310"


# -- conflicts


def test_two_wheels_with_other_bytes_at_one_path(tmp_path, cache):
    one, two = (Wheel(name=n, files={"space/__init__.py": n.encode()}).write(tmp_path) for n in ("one", "two"))
    with pytest.raises(WheelError) as e:
        build(job(one, two), cache)
    assert one.name in e.value.what
    assert two.name in e.value.what
    assert e.value.where == f"/{SITE}/space/__init__.py"
    assert e.value.todo


def test_two_wheels_with_the_same_bytes_at_one_path(tmp_path, cache):
    one, two = (Wheel(name=n, files={"space/__init__.py": b"x = 1\n"}).write(tmp_path) for n in ("one", "two"))
    assert f"{SITE}/space/__init__.py" in build(job(one, two), cache).claims


def test_a_loose_entry_against_a_wheel(tmp_path, cache):
    with pytest.raises(WheelError, match=r"one path is claimed twice.*\n.*/demo/__init__\.py"):
        build(job(Wheel().write(tmp_path), entries=(f(f"{SITE}/demo/__init__.py"),)), cache)


def finished(name, **claims):
    blob = Blob(path=Path("x"), digest="", diff_id=f"sha256:{name}", size=1, raw_size=1, media_type="")
    return Finished(name=name, blob=blob, claims=claims, cached=False, seconds=0.0)


def test_two_layers_with_other_bytes_at_one_path():
    with pytest.raises(WheelError, match="layer one and layer two both own /a, with different contents"):
        store.check_claims([finished("one", a="1"), finished("two", a="2")])


def test_two_layers_with_the_same_bytes_at_one_path():
    store.check_claims([finished("one", a="1", b="2"), finished("two", a="1", c="3")])


# -- the layers of a lock


def artifact(name, sha256):
    return types.SimpleNamespace(project=name, filename=f"{name}-1-py3-none-any.whl", sha256=sha256)


def test_jobs_of_a_lock(cache):
    settings = types.SimpleNamespace(job=lambda name, wheels, entries: (name, list(wheels), list(entries)))
    built = types.SimpleNamespace(source=artifact("verl", "s"), wheel="verl-1-py3-none-any.whl", wheel_sha256="v")
    lock = types.SimpleNamespace(
        wheels=[artifact("six", "a")],
        built=[built],
        compiled=None,
        layers=[
            types.SimpleNamespace(name="libs", packages=("six",)),
            types.SimpleNamespace(name="verl", packages=("verl",)),
            types.SimpleNamespace(name=plan.SMOKE_LAYER, packages=()),
        ],
    )
    assert compose.wheel_jobs(lock, settings, cache, ["smoke"]) == [
        ("libs", [(cache.file("a", "six-1-py3-none-any.whl"), "a")], []),
        ("verl", [(cache.file("v", "verl-1-py3-none-any.whl"), "v")], []),
        (plan.SMOKE_LAYER, [], ["smoke"]),
    ]


def test_smoke_entries_leave_caches_out(tmp_path):
    for name in ("cpu/test_a.py", "conftest.py", "__pycache__/x.pyc", "cpu/__pycache__/y.pyc", ".hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(name)
    found = {e.path: e.content.data for e in compose.smoke_entries(tmp_path)}
    root = compose.SMOKE_ROOT
    assert found == {f"{root}/conftest.py": b"conftest.py", f"{root}/cpu/test_a.py": b"cpu/test_a.py"}


def test_verldoctor_and_the_command_that_starts_it(tmp_path):
    for name in ("cli.py", "launcher.py", "rules/env.json", "__pycache__/cli.pyc", ".hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    found = {e.path: (e.mode, e.content.data.decode()) for e in compose.doctor_entries(tmp_path)}
    root = "opt/verlstack/verldoctor"
    assert found.pop("opt/verl/bin/verldoctor") == (0o755, "launcher.py")
    assert found == {f"{root}/{name}": (0o644, name) for name in ("cli.py", "launcher.py", "rules/env.json")}


def test_a_checkout_without_verldoctor_has_no_such_command(tmp_path):
    assert compose.doctor_entries(tmp_path / "none") == []


def test_all_of_verldoctor_has_bytecode():
    """What has none would be compiled at each start, and root would write it into the image."""
    for entry in compose.doctor_entries(ROOT / "src" / "verldoctor"):
        if entry.path.endswith(".py"):
            assert compile_source(entry.content.data, f"/{entry.path}"), entry.path


def test_layers_are_found_and_built_in_one_process(tmp_path, cache):
    class Told(Silent):
        notes = ()

        def finish(self, task, note=""):
            self.notes = (task, note)

    jobs = [job(Wheel(name=n, files={f"{n}.py": b"x = 1\n"}).write(tmp_path), name=n) for n in ("one", "two")]
    assert compose.find_all(jobs, cache, workers=2) == [None, None]
    told = Told()
    made = compose.build_all(jobs, cache, workers=1, progress=told)
    assert [x.name for x in made] == ["one", "two"]
    assert told.notes == ("compose", "2 layers built")
    assert [x.blob for x in compose.find_all(jobs, cache, workers=2)] == [x.blob for x in made]
    assert compose.build_all([], cache, workers=1, progress=told) == []


def test_diff_ids_are_compared_with_the_lock():
    layers = [types.SimpleNamespace(name=n, diff_id=f"sha256:{n}") for n in ("one", "two")]
    lock = types.SimpleNamespace(stack="demo", recorded_with="3.10.13", layers=layers)
    compose.check_diff_ids(lock, [finished("one"), finished("two")], "3.10.13")
    layers[1].diff_id = "sha256:other"
    for python, cause in (
        ("3.10.13", "sources of this layer"),
        ("3.10.9", "compiled by Python 3.10.9, the lock was recorded"),
    ):
        with pytest.raises(LockError, match="layer two has diff_id sha256:two, the lock expects sha256:other") as e:
            compose.check_diff_ids(lock, [finished("one"), finished("two")], python)
        assert cause in e.value.todo
        assert "verlstack lock demo" in e.value.todo


def test_faster_changes_speed_alone():
    assert compose.faster(HOW, -3) == dataclasses.replace(HOW, level=-3, long_distance=False)


# -- bugs found while these tests were written; each mark goes when its fix comes ------------------------------------


def test_a_json_without_claims(tmp_path, cache):
    the_job = job(Wheel().write(tmp_path))
    meta = build(the_job, cache).blob.path.with_suffix(".json")
    table = json.loads(meta.read_bytes())
    del table["claims"]
    rewrite(meta, json.dumps(table).encode())
    assert store.find(the_job, cache) is None


def test_owners_change_the_key():
    entries = [tar.Entry(path="a", kind="dir", mode=0o755, uid=uid, gid=gid) for uid, gid in ((0, 0), (1, 0), (0, 1))]
    assert len({job(entries=(e,)).key for e in entries}) == 3


def test_a_file_in_one_layer_and_a_link_in_another(tmp_path, cache):
    bottom = build(
        job(entries=(tar.symlink("opt/verl/bin/python", "/usr/local/bin/python3.10"),), name="python"), cache
    )
    top = build(job(Wheel(files={"demo-1.0.data/scripts/python": b"#!/bin/sh\n"}).write(tmp_path), name="demo"), cache)
    with pytest.raises(WheelError, match="/opt/verl/bin/python"):
        store.check_claims([bottom, top])


def test_a_cached_layer_for_another_platform(tmp_path, cache):
    path = Wheel(tag="cp310-cp310-manylinux_2_34_x86_64").write(tmp_path)
    build(job(path), cache)
    with pytest.raises(WheelError, match="is built for"):
        build(job(path, tags=frozenset(plan.tags("3.10", "x86_64-manylinux_2_28"))), cache)


def test_layer_media_type_is_kept(tmp_path, cache):
    assert build(job(Wheel().write(tmp_path)), cache).blob.media_type == layer.MEDIA_TYPES["zstd"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (tar.symlink("opt/verl/lib64", "lib"), f("opt/verl/lib64/x.py", b"")),
        (f("opt/clash", b"x"), f("opt/clash/inside", b"x")),
        (f("opt/same", b"x"), tar.file("opt/same", Inline(data=b"x"), executable=True)),
    ],
    ids=["folder over a link", "folder over a file", "other mode"],
)
def test_layers_that_do_not_fit_over_each_other(cache, one, other):
    layers = [build(job(entries=(entry,), name=name), cache) for name, entry in (("one", one), ("other", other))]
    with pytest.raises(WheelError, match="layer o"):
        store.check_claims(layers)
    with pytest.raises(WheelError, match="layer o"):
        store.check_claims(layers[::-1])


# -- files that stay out


def test_a_stray_file_stays_out_of_the_layer_and_of_record(tmp_path, cache):
    one, two = (Wheel(name=n, files={f"{n}/x.py": b"", "backend.py": n.encode()}).write(tmp_path) for n in ("a", "b"))
    with pytest.raises(WheelError):
        build(job(one, two), cache)
    sha256 = hashlib.sha256(one.read_bytes()).hexdigest()
    the_job = job(one, two, leave_out=((sha256, "backend.py"),))
    made = store.entries_of(the_job, lambda _: None)
    assert sum(entry.path == f"{SITE}/backend.py" for entry in made) == 1
    records = {e.path: e.content.data.decode() for e in made if e.path.endswith("/RECORD")}
    assert [("backend.py" in text) for _, text in sorted(records.items())] == [False, True]
    assert build(the_job, cache).claims


def test_leaving_out_changes_the_key_of_that_layer_alone(tmp_path):
    wheels = [(Wheel(name=n, files={"x.py": b""}).write(tmp_path), n * 64) for n in "ab"]
    settings = compose.Settings(
        interpreter=types.SimpleNamespace(executable=Path("python"), version="3.10.13"),
        python="3.10",
        platform="x86_64-manylinux_2_35",
        format=1,
        epoch=5,
        compression=HOW,
    )
    bent = dataclasses.replace(settings, leave_out=(("a", "x.py"),))
    keys = [[s.job("libs", wheels=[w]).key for w in wheels] for s in (settings, bent)]
    assert keys[0][0] != keys[1][0]
    assert keys[0][1] == keys[1][1]


def test_a_file_that_the_wheel_has_not_cannot_be_left_out(tmp_path, cache):
    one = Wheel(name="a").write(tmp_path)
    sha256 = hashlib.sha256(one.read_bytes()).hexdigest()
    with pytest.raises(WheelError, match=r"has no file none\.py") as e:
        build(job(one, leave_out=((sha256, "none.py"),)), cache)
    assert "leave_out" in e.value.todo


def test_a_whole_tree_can_be_left_out(tmp_path):
    one = Wheel(name="a", files={"lib/x.py": b"", "lib/deep/y.py": b"", "other.py": b""}).write(tmp_path)
    sha256 = hashlib.sha256(one.read_bytes()).hexdigest()
    made = store.entries_of(job(one, leave_out=((sha256, "lib/*"),)), lambda _: None)
    assert not [entry.path for entry in made if entry.path.startswith(f"{SITE}/lib")]
    assert f"{SITE}/other.py" in {entry.path for entry in made}
