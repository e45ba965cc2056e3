"""Reading members of wheels: bounded, verified before the last byte is handed out, and clear about what is wrong."""

import hashlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.wheels import DEFLATED, STORED, deflate
from verlstack import content, reading
from verlstack.content import Inline, Member, OnDisk, Reader, Slice
from verlstack.errors import StorageError, WheelError

NOISE = hashlib.shake_256(b"x").digest(3_000_000)


def sha(data):
    return hashlib.sha256(data).hexdigest()


def member(tmp_path, data, *, packed=None, method=DEFLATED, size=None, sha256="", compressed=None):
    packed = (deflate(data) if method == DEFLATED else data) if packed is None else packed
    archive = tmp_path / "demo-1.0-py3-none-any.whl"
    archive.write_bytes(b"before" + packed + (b"after" if compressed is None else b""))
    return Member(
        archive=archive,
        name="demo/data.bin",
        offset=6,
        compressed=len(packed) if compressed is None else compressed,
        method=method,
        size=len(data) if size is None else size,
        sha256=sha(data) if sha256 == "" else sha256,
    )


def read(source):
    with Reader() as reader:
        return reader.read(source)


def test_inline():
    assert read(Inline(data=b"abc")) == b"abc"
    assert Inline(data=b"abc").size == 3


@pytest.mark.parametrize("data", [b"", b"x", NOISE], ids=len)
def test_a_file(tmp_path, data):
    (tmp_path / "f").write_bytes(data)
    assert read(OnDisk(path=tmp_path / "f", size=len(data), sha256=sha(data))) == data


@pytest.mark.parametrize("now", [b"abd", b"ab", b"abcd"])
def test_a_file_that_changed_is_no_layer(tmp_path, now):
    (tmp_path / "f").write_bytes(now)
    with pytest.raises(StorageError, match="changed while it was being read") as e:
        read(OnDisk(path=tmp_path / "f", size=3, sha256=sha(b"abc")))
    assert e.value.where == str(tmp_path / "f")


@pytest.mark.parametrize("at", [0, 1, 100, 2_999_990])
def test_a_slice(tmp_path, at):
    (tmp_path / "f").write_bytes(NOISE)
    want = NOISE[at : at + 2_000_000]
    assert read(Slice(path=tmp_path / "f", offset=at, size=len(want), sha256=sha(want))) == want


def test_a_slice_past_the_end(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    with pytest.raises(StorageError, match="changed"):
        read(Slice(path=tmp_path / "f", offset=1, size=9, sha256=sha(b"bc")))


M = 1 << 20  # the decompressor's step: sizes around its multiples are where bytes get lost


@pytest.mark.parametrize("method", [STORED, DEFLATED])
@pytest.mark.parametrize("size", [0, 1, M - 1, M, M + 1, 2 * M, 2 * M + 7])
def test_members_of_every_size(tmp_path, size, method):
    for data in (bytes(size), NOISE[:size]):
        source = member(tmp_path, data, method=method)
        with Reader() as reader:
            pieces = list(reader.chunks(source))
        assert b"".join(pieces) == data
        assert max(map(len, pieces), default=0) <= M


@given(st.binary(max_size=4000), st.integers(0, 9), st.integers(1, 50), st.integers(1, 50))
def test_any_deflate_stream_in_any_steps(tmp_path, data, level, step, grow):
    packer = zlib.compressobj(level, zlib.DEFLATED, -15)
    source = member(tmp_path, data, packed=packer.compress(data) + packer.flush())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(content, "_READ", step)
        patch.setattr(content, "_GROW", grow)
        assert read(source) == data


@pytest.mark.parametrize("data", [bytes(5_000_000), NOISE])
def test_a_wrong_hash_holds_back_the_last_piece(tmp_path, data):
    source = member(tmp_path, data, sha256=sha(b"other"))
    got = []
    with Reader() as reader, pytest.raises(WheelError) as e:
        got.extend(reader.chunks(source))
    assert sum(map(len, got)) < len(data)
    assert f"demo/data.bin in demo-1.0-py3-none-any.whl has sha256 {sha(data)}, RECORD says {sha(b'other')}" in str(
        e.value
    )
    assert e.value.where == str(source.archive)


def test_without_a_recorded_hash_the_size_must_still_be_right(tmp_path):
    assert read(member(tmp_path, b"abc", sha256=None)) == b"abc"
    with pytest.raises(WheelError, match="holds 3 bytes, its header says 4"):
        read(member(tmp_path, b"abc", sha256=None, size=4))


def test_a_bomb_is_stopped_within_one_step_of_its_declared_size(tmp_path):
    source = member(tmp_path, bytes(100_000_000), size=1_000)
    got = []
    with Reader() as reader, pytest.raises(WheelError, match="unpacks to more than its declared 1000 bytes: zip bomb"):
        got.extend(reader.chunks(source))
    assert sum(map(len, got)) <= 1_000


@pytest.mark.parametrize(("size", "declared"), [(2 * M, M), (M, 1), (2, 1), (1, 0)])
def test_a_bomb_that_is_only_a_little_too_long(tmp_path, size, declared):
    with pytest.raises(WheelError, match="zip bomb"):
        read(member(tmp_path, bytes(size), size=declared))


@pytest.mark.parametrize("keep", range(0, 60, 7))
def test_data_cut_at_any_byte(tmp_path, keep):
    data = NOISE[:50]
    packed = deflate(data)[: min(keep, len(deflate(data)) - 1)]
    with pytest.raises(WheelError, match="truncated"):
        read(member(tmp_path, data, packed=packed))


@pytest.mark.parametrize("method", [STORED, DEFLATED])
def test_an_archive_that_ends_early(tmp_path, method):
    packed = deflate(NOISE[:50]) if method == DEFLATED else NOISE[:50]
    source = member(tmp_path, NOISE[:50], packed=packed[:20], compressed=len(packed), method=method)
    with pytest.raises(WheelError, match="ends before its declared length: the wheel is truncated"):
        read(source)


def test_damaged_data(tmp_path):
    with pytest.raises(WheelError, match="is damaged"):
        read(member(tmp_path, b"abc", packed=b"\xff\xff\xff\xff"))


def test_a_stored_member_with_two_sizes(tmp_path):
    with pytest.raises(WheelError, match="stored in 3 bytes, declared 2"):
        read(member(tmp_path, b"abc", method=STORED, size=2))


@pytest.mark.parametrize("method", [1, 12, 14, 93])
def test_other_methods(tmp_path, method):
    with pytest.raises(WheelError, match=f"zip method {method}; wheels use stored"):
        read(member(tmp_path, b"abc", packed=b"abc", method=method))


def test_each_archive_is_opened_once_and_closed(tmp_path, monkeypatch):
    real, opened = reading.opened, []
    monkeypatch.setattr(reading, "opened", lambda path: opened.append(real(path)) or opened[-1])
    source = member(tmp_path, b"abc")
    with Reader() as reader:
        assert reader.read(source) + reader.read(source) == b"abcabc"
        assert not opened[0].closed
    (file,) = opened
    assert file.closed
