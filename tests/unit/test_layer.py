"""Layers: arranged the same whatever the order, compressed to the same bytes however they were fed."""

import hashlib
import io
import itertools
import tarfile

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from support.wheels import Wheel, deflate
from verlstack import content, layer, plan, tar, wheel
from verlstack.content import Inline, Member, OnDisk, Slice
from verlstack.errors import LockError, WheelError
from verlstack.layer import Compression, arrange, write

EPOCH = 1_741_046_400
HOW = Compression(level=3, window_log=20, long_distance=True, library=".".join(map(str, zstandard.ZSTD_VERSION)))


def f(path, data=b"x", **kwargs):
    return tar.file(path, Inline(data=data), **kwargs)


def written(entries, how=HOW, epoch=EPOCH):
    out = io.BytesIO()
    return out, write(entries, out, how, epoch=epoch, progress=lambda _: None)


def unpacked(out):
    return zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj().decompress(out.getvalue())


# -- arrange


def test_parents_come_first_and_are_made_once():
    found = arrange([f("b/c/d"), f("a-b"), f("a/x"), f("a/y")])
    assert [(e.path, e.kind, e.mode) for e in found] == [
        ("a", "dir", 0o755),
        ("a-b", "file", 0o644),
        ("a/x", "file", 0o644),
        ("a/y", "file", 0o644),
        ("b", "dir", 0o755),
        ("b/c", "dir", 0o755),
        ("b/c/d", "file", 0o644),
    ]


def test_a_given_parent_is_kept():
    found = {e.path: e.mode for e in arrange([f("a/x"), tar.directory("a", 0o700)])}
    assert found == {"a": 0o700, "a/x": 0o644}


names = st.text("ab-", min_size=1, max_size=3)


@given(st.lists(st.lists(names, min_size=1, max_size=4).map(lambda parts: "/".join([*parts, "f.txt"])), unique=True))
def test_every_parent_stands_before_its_child(paths):
    seen = set()
    for e in arrange([f(p) for p in paths]):
        parent = e.path.rpartition("/")[0]
        assert not parent or parent in seen
        seen.add(e.path)
    assert set(paths) <= seen


def test_the_same_entry_twice_is_kept_once():
    assert [e.path for e in arrange([f("a"), f("a"), tar.symlink("b", "a"), tar.symlink("b", "a")])] == ["a", "b"]


@pytest.mark.parametrize(
    "other",
    [f("a", b"y"), f("a", b"longer"), f("a", executable=True), tar.symlink("a", "x"), tar.directory("a")],
    ids=["bytes", "size", "mode", "link", "dir"],
)
def test_the_same_path_with_something_else(other):
    for pair in itertools.permutations([f("a"), other]):
        with pytest.raises(WheelError, match=r"one path is claimed twice.*\n.*/a"):
            arrange(pair)


def test_two_links_with_other_targets():
    with pytest.raises(WheelError, match=r"one path is claimed twice.*\n.*/l"):
        arrange([tar.symlink("l", "a"), tar.symlink("l", "b")])


@pytest.mark.parametrize("bottom", [f("a/b"), tar.symlink("a/b", "c")])
def test_a_file_where_a_directory_is_needed(bottom):
    with pytest.raises(WheelError, match="a file stands where /a/b/c needs a folder"):
        arrange([bottom, f("a/b/c")])


def test_the_same_bytes_from_elsewhere_are_the_same(tmp_path):
    (tmp_path / "f").write_bytes(b"x")
    digest = hashlib.sha256(b"x").hexdigest()
    one = tar.file("a", OnDisk(path=tmp_path / "f", size=1, sha256=digest))
    assert layer.same(f("a"), one)
    assert layer.fingerprint(one) == layer.fingerprint(f("a")) == digest
    assert layer.fingerprint(tar.directory("a")) is None


# -- write


def test_diff_id_digest_and_sizes_are_true():
    entries = arrange([f("a/b", bytes(3_000_000)), f("a/c", b"text"), tar.symlink("l", "a/b")])
    out, (diff_id, digest, size, raw_size) = written(entries)
    raw = unpacked(out)
    assert raw == b"".join(layer.stream(entries, epoch=EPOCH))
    assert diff_id == f"sha256:{hashlib.sha256(raw).hexdigest()}"
    assert digest == f"sha256:{hashlib.sha256(out.getvalue()).hexdigest()}"
    assert (size, raw_size) == (len(out.getvalue()), len(raw))
    with tarfile.open(fileobj=io.BytesIO(raw)) as t:
        assert t.getnames() == ["a", "a/b", "a/c", "l"]
        assert t.extractfile("a/c").read() == b"text"
        assert {m.mtime for m in t} == {EPOCH}


def test_an_empty_layer_is_a_valid_tar():
    out, (_, _, _, raw_size) = written([])
    assert unpacked(out) == tar.END
    assert raw_size == 1024


def test_progress_counts_every_byte_once():
    done = []
    _, _, _, raw_size = write([f("a", bytes(5_000_000))], io.BytesIO(), HOW, epoch=EPOCH, progress=done.append)
    assert sum(done) == raw_size
    assert len(done) > 3


DATA = hashlib.shake_128(b"seed").digest(2_500_000) + bytes(1_500_000)


def sources(folder):
    """The same bytes from every kind of source."""
    digest, packed = hashlib.sha256(DATA).hexdigest(), deflate(DATA)
    (folder / "plain").write_bytes(DATA)
    (folder / "inside").write_bytes(b"abc" + DATA + b"def")
    (folder / "zip").write_bytes(packed)
    zipped = {"archive": folder / "zip", "name": "n", "offset": 0, "size": len(DATA), "sha256": digest}
    return [
        Inline(data=DATA),
        OnDisk(path=folder / "plain", size=len(DATA), sha256=digest),
        Slice(path=folder / "inside", offset=3, size=len(DATA), sha256=digest),
        Member(**zipped, compressed=len(packed), method=8),
        Member(**zipped | {"archive": folder / "plain"}, compressed=len(DATA), method=0),
    ]


def test_bytes_do_not_depend_on_how_they_arrive(tmp_path, monkeypatch):
    digests = set()
    for step in (4_099, 100_000, 1 << 20, 1 << 23):
        monkeypatch.setattr(content, "_READ", step)
        monkeypatch.setattr(content, "_GROW", step)
        digests |= {written([tar.file("a", source)])[1] for source in sources(tmp_path)}
    assert len(digests) == 1


def test_the_compressor_is_always_fed_in_the_same_pieces(monkeypatch):
    """Zstd promises no stable bytes when it is fed otherwise, so we do not find out."""
    fed = []
    recorder = type("", (), {"compress": lambda _, data: fed.append(len(data)) or b"", "flush": lambda _: b""})
    monkeypatch.setattr(layer, "_compressor", lambda _: recorder())
    raw_size = written([f("a", DATA), f("b", b"x"), f("c", DATA[:700_000])])[1][3]
    assert set(fed[:-1]) == {1 << 20}
    assert sum(fed) == raw_size


@given(st.lists(st.binary(max_size=40)), st.integers(1, 16))
def test_pieces_are_recut_to_one_size(pieces, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer, "_FEED", size)
        found = list(layer._even(pieces))
    assert b"".join(found) == b"".join(pieces)
    assert all(len(p) == size for p in found[:-1])
    assert all(0 < len(p) <= size for p in found)


def test_settings_change_the_blob_but_not_the_diff_id():
    entries = [f("a", DATA[:300_000] * 3)]
    (one_out, one), (two_out, two) = written(entries), written(entries, Compression(**vars(HOW) | {"level": -5}))
    assert one[0] == two[0]
    assert one_out.getvalue() != two_out.getvalue()
    assert unpacked(one_out) == unpacked(two_out)


def test_the_epoch_changes_the_diff_id():
    assert written([f("a")])[1][0] != written([f("a")], epoch=1)[1][0]


def test_a_failing_disk_is_not_swallowed():
    class Full(io.BytesIO):
        def write(self, data):
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write([f("a", DATA)], Full(), HOW, epoch=EPOCH, progress=lambda _: None)


def test_the_known_digest_of_a_small_layer():
    """The image format, in one line: whoever changes these digests changes `format` in the lock."""
    entries = arrange([f("opt/verl/a.py", b"value = 1\n"), f("opt/verl/bin/x", b"#!/bin/sh\n", executable=True)])
    _, (diff_id, _, _, raw_size) = written(entries)
    assert raw_size == 5 * 512 + 2 * 512 + 1024
    assert diff_id == "sha256:5946f229908d82037a6dac30315a787eeefd40e22c1477b44b5a47919af66e93"


def test_wheels_in_another_order_give_the_same_bytes(tmp_path):
    venv = wheel.Venv(root="opt/verl", python="3.10")
    tags = frozenset(plan.tags("3.10", "x86_64-manylinux_2_35"))
    shared = {"space/__init__.py": b""}
    made = [Wheel(name=n, files={f"space/{n}.py": n.encode(), **shared}) for n in ("one", "two", "three")]
    plans = [wheel.plan(m.write(tmp_path), venv, tags) for m in made]
    results = {
        written(arrange(e for p in order for e in (*p.entries, wheel.record_entry(p, venv, []))))[1]
        for order in itertools.permutations(plans)
    }
    assert len(results) == 1


def test_another_library_is_refused():
    HOW.check_library()
    with pytest.raises(LockError, match=r"the lock was made with libzstd 0\.0\.1, this environment has") as e:
        Compression(level=3, window_log=20, long_distance=False, library="0.0.1").check_library()
    assert "make tools" in e.value.todo


def test_two_owners_are_a_conflict():
    one, two = (tar.Entry(path="a", kind="dir", mode=0o755, uid=uid) for uid in (0, 1000))
    with pytest.raises(WheelError):
        arrange([one, two])
