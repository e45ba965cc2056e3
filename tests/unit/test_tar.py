"""The tar format, read back by the standard library, which shares no code with it."""

import io
import tarfile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from verlstack import tar
from verlstack.content import Inline, OnDisk

EPOCH = 1_741_046_400
segment = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=60)
long_segment = st.text("abcdefghij", min_size=90, max_size=130)
path = st.lists(st.one_of(segment, long_segment), min_size=1, max_size=6).map("/".join)
number = st.integers(0, 8**7 - 1)  # seven octal digits, what ustar holds
entry = st.one_of(
    st.builds(tar.Entry, path=path, kind=st.just("dir"), mode=st.integers(0, 0o7777), uid=number, gid=number),
    st.builds(tar.Entry, path=path, kind=st.just("symlink"), mode=st.just(0o777), link=path, uid=number, gid=number),
    st.builds(
        tar.Entry,
        path=path,
        kind=st.just("file"),
        mode=st.integers(0, 0o7777),
        content=st.binary(max_size=2000).map(lambda data: Inline(data=data)),
        uid=number,
        gid=number,
    ),
)


def archive(entries, epoch=EPOCH):
    parts = []
    for e in entries:
        parts += [tar.header(e, epoch), e.content.data if e.content else b"", tar.padding(e.size)]
    return b"".join((*parts, tar.END))


def read(data):
    """(member, content) of each member; `r:` refuses anything but an uncompressed tar."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as t:
        return [(m, t.extractfile(m).read() if m.isfile() else None) for m in t.getmembers()]


@given(st.lists(entry, max_size=6), st.integers(0, 8**11 - 1))
@example([tar.directory("a" * 100)], 0)
@example([tar.directory("a" * 99)], 0)
@example([tar.directory("p" * 155 + "/" + "n" * 99), tar.directory("p" * 155 + "/" + "n" * 100)], 0)
@example([tar.symlink("p" * 156 + "/n", "t" * 101), tar.symlink("p" * 155 + "/" + "n" * 100, "t" * 100)], 0)
@example([tar.file("é" * 120, Inline(data=b"x"))], 0)
@example([tar.file("x/" * 120 + "y", Inline(data=b""))], 0)
def test_what_is_written_is_what_tarfile_reads(entries, epoch):
    found = read(archive(entries, epoch))
    assert len(found) == len(entries)
    kinds = {"dir": tarfile.DIRTYPE, "file": tarfile.REGTYPE, "symlink": tarfile.SYMTYPE}
    for e, (member, data) in zip(entries, found, strict=True):
        assert (member.name, member.type, member.mode) == (e.path, kinds[e.kind], e.mode)
        assert (member.uid, member.gid, member.uname, member.gname) == (e.uid, e.gid, "", "")
        assert (member.mtime, member.linkname, member.size) == (epoch, e.link, e.size)
        assert data == (e.content.data if e.content else None)


@given(st.lists(entry, max_size=6))
def test_blocks_are_whole(entries):
    assert len(archive(entries)) % tar.BLOCK == 0
    assert all(len(tar.header(e, EPOCH)) % tar.BLOCK == 0 for e in entries)


def test_the_bytes_of_one_header():
    assert tar.header(tar.file("opt/verl/bin/x", Inline(data=b"12345"), executable=True), EPOCH) == (
        b"opt/verl/bin/x" + bytes(86)  # name, 100
        + b"0000755\0" + b"0000000\0" + b"0000000\0"  # mode, uid, gid
        + b"00000000005\0" + b"14761441200\0"  # size, mtime: 1741046400 in octal
        + b"011755\0 "  # sum of all bytes, these eight counted as blanks
        + b"0" + bytes(100)  # regular file, no link
        + b"ustar\x0000" + bytes(64)  # magic, version, no names
        + b"0000000\0" + b"0000000\0"  # device numbers
        + bytes(155) + bytes(12)  # prefix, filler
    )  # fmt: skip


def test_the_bytes_of_a_pax_header():
    name = "ü"
    blocks = tar.header(tar.directory(name), EPOCH)
    assert len(blocks) == 3 * tar.BLOCK
    assert blocks[:11] == b"pax_header\0"
    assert blocks[156:157] == b"x"
    assert blocks[512:1024] == b"12 path=\xc3\xbc/\n".ljust(512, b"\0")
    assert blocks[1024:1028] == b"\xc3\xbc/\0"


@pytest.mark.parametrize("length", [*range(86, 92), *range(985, 995)])
def test_the_length_of_a_pax_record_counts_its_own_digits(length):
    record = tar._record("path", b"n" * length)
    digits, _, _ = record.partition(b" ")
    assert int(digits) == len(record)


@pytest.mark.parametrize(("length", "pax"), [(99, False), (100, False), (101, True)])
def test_pax_is_used_only_where_ustar_cannot_hold_the_name(length, pax):
    assert (len(tar.header(tar.symlink("n" * length, "t"), EPOCH)) > tar.BLOCK) is pax
    assert (len(tar.header(tar.symlink("n", "t" * length), EPOCH)) > tar.BLOCK) is pax


def test_a_long_path_goes_into_the_prefix():
    block = tar.header(tar.symlink("p" * 155 + "/" + "n" * 100, "t"), EPOCH)
    assert len(block) == tar.BLOCK
    assert (block[:100], block[345:500]) == (b"n" * 100, b"p" * 155)


@pytest.mark.parametrize("size", [8**11 - 1, 8**11, 9 << 30, 1 << 50])
def test_sizes_above_eight_gigabytes(tmp_path, size):
    head = tar.header(tar.file("big", OnDisk(path=tmp_path / "big", size=size, sha256="")), EPOCH)
    with tarfile.open(fileobj=io.BytesIO(head), mode="r:") as t:
        first = t.firstmember
    assert (first.name, first.size) == ("big", size)
    assert (len(head) > tar.BLOCK) is (size >= 8**11)


def test_the_end_is_two_zero_blocks():
    assert bytes(1024) == tar.END


@pytest.mark.parametrize(("size", "fill"), [(0, 0), (1, 511), (511, 1), (512, 0), (513, 511)])
def test_padding(size, fill):
    assert tar.padding(size) == bytes(fill)


def test_modes_of_the_shorthands():
    assert tar.directory("a").mode == 0o755
    assert tar.symlink("a", "b").mode == 0o777
    assert tar.file("a", Inline(data=b"")).mode == 0o644
    assert tar.file("a", Inline(data=b""), executable=True).mode == 0o755


def test_large_owners():
    big = tar.Entry(path="a", kind="dir", mode=0o755, uid=2**21, gid=2**31)
    ((member, _),) = read(archive([big]))
    assert (member.uid, member.gid) == (2**21, 2**31)
