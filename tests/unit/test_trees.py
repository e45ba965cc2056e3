"""Root trees: layers laid over one another as engines do it, hostile ones refused, and two trees compared."""

import gzip
import hashlib
import re
import tarfile

import pytest
import zstandard

from support.layers import NONE, Item, folder, hardlink, pack, symlink, write
from verlstack import foreigntar, trees
from verlstack.errors import ProofError


def tree(tmp_path, *layers):
    made = trees.Tree()
    for number, items in enumerate(layers):
        made.lay(trees.read(write(tmp_path / f"{number}.tar", *items), NONE).members)
    return made


def sha(data):
    return hashlib.sha256(data).hexdigest()


def test_what_a_file_a_folder_and_a_link_are(tmp_path):
    items = [folder("a", 0o1777), Item("a/f", b"xyz", 0o4755, uid=5, gid=6), symlink("a/l", "../b")]
    nodes = tree(tmp_path, items).nodes
    assert nodes == {
        "a": trees.Node(kind="dir", mode=0o1777, uid=0, gid=0),
        "a/f": trees.Node(kind="file", mode=0o4755, uid=5, gid=6, size=3, content=sha(b"xyz")),
        "a/l": trees.Node(kind="symlink", mode=0o777, uid=0, gid=0, content="../b"),
    }


def test_a_device_and_a_pipe(tmp_path):
    nodes = tree(tmp_path, [Item("d", kind=tarfile.CHRTYPE), Item("p", kind=tarfile.FIFOTYPE)]).nodes
    assert (nodes["d"].kind, nodes["d"].content, nodes["p"].kind) == ("char", "0:0", "fifo")


@pytest.mark.parametrize(
    ("kind", "squeeze"),
    [("tar", bytes), ("tar+gzip", gzip.compress), ("tar+zstd", zstandard.ZstdCompressor().compress)],
)
def test_every_compression_gives_the_same(tmp_path, kind, squeeze):
    raw = pack(Item("f", b"abc")) + b"\0" * 999  # what follows the end counts too
    blob = tmp_path / "blob"
    blob.write_bytes(squeeze(raw))
    found = trees.read(blob, f"application/vnd.oci.image.layer.v1.{kind}")
    assert found.diff_id == f"sha256:{sha(raw)}"
    assert [m.node.content for m in found.members] == [sha(b"abc")]


def test_the_offset_is_where_the_bytes_are(tmp_path):
    blob = write(tmp_path / "t", Item("x" * 200, b"first"), Item("g", b"second"))
    for member, data in zip(trees.read(blob, NONE).members, (b"first", b"second"), strict=True):
        assert blob.read_bytes()[member.offset :][: member.node.size] == data


def test_small_files_asked_for_are_kept(tmp_path):
    blob = write(tmp_path / "t", Item("a/RECORD", b"r"), Item("b", b"no"))
    assert trees.read(blob, NONE, keep=re.compile(".*/RECORD")).kept == {"a/RECORD": b"r"}


def test_a_later_layer_wins_and_its_number_is_known(tmp_path):
    made = tree(tmp_path, [folder("a"), Item("a/f", b"1"), Item("a/g")], [Item("a/f", b"22", 0o600)])
    assert (made.nodes["a/f"].size, made.nodes["a/f"].mode) == (2, 0o600)
    assert made.origin == {"a": 0, "a/f": 1, "a/g": 0}


def test_a_folder_over_a_folder_keeps_its_content_and_takes_the_mode(tmp_path):
    nodes = tree(tmp_path, [folder("a"), Item("a/f")], [folder("a", 0o700)]).nodes
    assert nodes["a"].mode == 0o700
    assert "a/f" in nodes


@pytest.mark.parametrize("thing", [Item("a"), symlink("a", "b")])
def test_what_replaces_a_folder_takes_its_content_away(tmp_path, thing):
    nodes = tree(tmp_path, [folder("a"), folder("a/b"), Item("a/b/c")], [thing]).nodes
    assert list(nodes) == ["a"]
    assert nodes["a"].kind != "dir"


def test_a_folder_that_no_entry_describes(tmp_path):
    nodes = tree(tmp_path, [Item("a/b/f")]).nodes
    assert {path: (n.kind, n.mode) for path, n in nodes.items() if path != "a/b/f"} == {
        "a": ("dir", 0o755),
        "a/b": ("dir", 0o755),
    }


def test_whiteouts_take_away_what_lies_below_but_nothing_of_their_own_layer(tmp_path):
    below = [folder("a"), Item("a/f"), folder("a/d"), Item("a/d/x"), Item("keep")]
    nodes = tree(tmp_path, below, [Item("a/new"), Item("a/.wh.d"), Item("a/.wh.f"), Item("a/.wh.new")]).nodes
    assert set(nodes) == {"a", "a/new", "keep"}
    again = tree(tmp_path, below, [Item("a/new"), Item("a/.wh..wh..opq")]).nodes
    assert set(again) == {"a", "a/new", "keep"}
    thrice = tree(tmp_path, below, [Item(".wh.a")], [Item("a/f", b"new")]).nodes  # what was there does not come back
    assert set(thrice) == {"a", "a/f", "keep"}


def test_a_whiteout_of_nothing_is_nothing(tmp_path):
    assert set(tree(tmp_path, [Item("f")], [Item("no/.wh.where"), Item(".wh.g")]).nodes) == {"f"}


@pytest.mark.parametrize("name", [".wh.", "a/.wh.", ".wh..", "a/.wh..."])
def test_a_whiteout_without_a_name_is_refused(tmp_path, name):
    with pytest.raises(ProofError, match="whiteout without a name"):
        tree(tmp_path, [folder("."), Item("a/f")], [Item(name)])


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT])
def test_names_that_are_not_utf_8_can_be_printed(tmp_path, form):
    path = tmp_path / "odd.tar"
    with tarfile.open(path, "w", format=form, encoding="utf-8", errors="surrogateescape") as archive:
        link = tarfile.TarInfo("caf\udce9")
        link.type, link.linkname = tarfile.SYMTYPE, "\udcff"
        archive.addfile(link)
    (member,) = trees.read(path, NONE).members
    assert (member.path, member.node.content) == ("caf\\xe9", "\\xff")


def test_entries_follow_the_links_of_the_layers_below(tmp_path):
    nodes = tree(tmp_path, [folder("usr/lib"), symlink("lib", "usr/lib")], [Item("lib/x"), Item("lib/.wh.gone")]).nodes
    assert "usr/lib/x" in nodes
    assert nodes["lib"].kind == "symlink"


@pytest.mark.parametrize("name", ["../../etc/x", "/etc/x", "./etc/x", "etc//./x", "a/../etc/x"])
def test_no_path_leaves_the_root(tmp_path, name):
    assert set(tree(tmp_path, [Item(name)]).nodes) == {"etc", "etc/x"}


def test_a_link_that_climbs_stays_inside(tmp_path):
    assert "top/x" in tree(tmp_path, [symlink("up", "../../../top"), Item("up/x")]).nodes


def test_the_root_itself_counts(tmp_path):
    assert tree(tmp_path, [folder("./", 0o700)]).nodes[""].mode == 0o700


def test_a_hard_link_is_the_file_it_names(tmp_path):
    nodes = tree(tmp_path, [Item("f", b"abc", 0o755)], [hardlink("g", "/f")]).nodes
    assert nodes["g"] == nodes["f"]


@pytest.mark.parametrize("target", ["nothing", "a", ".", "../.."])
def test_a_hard_link_to_no_file_is_refused(tmp_path, target):
    with pytest.raises(ProofError, match="hard link"):
        tree(tmp_path, [folder("a"), hardlink("g", target)])


def test_links_without_end_are_refused(tmp_path):
    with pytest.raises(ProofError, match="without end"):
        tree(tmp_path, [symlink("a", "b"), symlink("b", "a"), Item("a/x")])


def test_extended_attributes_are_seen(tmp_path):
    plain = tree(tmp_path, [Item("f")])
    armed = tree(tmp_path, [Item("f", pax={"SCHILY.xattr.security.capability": "x"})])
    (difference,) = trees.compare(plain.nodes, armed.nodes)
    assert difference.fields == ("xattrs",)


@pytest.mark.parametrize(
    "raw",
    [
        b"no tar at all" * 100,
        pack(Item("f", b"abc" * 1000))[:1024],  # cut in the middle of a file
        pack(Item("f", kind=b"Z")),
    ],
)
def test_what_is_no_layer_is_refused(tmp_path, raw):
    blob = tmp_path / "blob"
    blob.write_bytes(raw)
    with pytest.raises(ProofError) as e:
        trees.read(blob, NONE)
    assert e.value.where == str(blob)


def test_damaged_compression_is_refused(tmp_path):
    blob = tmp_path / "blob"
    for media_type in ("tar+gzip", "tar+zstd"):
        blob.write_bytes(b"neither")
        with pytest.raises(ProofError):
            trees.read(blob, media_type)


def test_a_header_that_would_fill_the_memory_is_refused(tmp_path):
    blob = write(tmp_path / "t", Item("f", pax={"comment": "x" * (2 << 20)}))
    with pytest.raises(ProofError, match="extended header"):
        trees.read(blob, NONE)


def test_too_many_entries_and_too_many_bytes_are_refused(tmp_path, monkeypatch):
    blob = write(tmp_path / "t", Item("f"), Item("g", b"x" * 5000))
    monkeypatch.setattr(trees, "_MAX_MEMBERS", 1)
    with pytest.raises(ProofError, match="more than 1 entries"):
        trees.read(blob, NONE)
    monkeypatch.setattr(trees, "_MAX_MEMBERS", 2)
    monkeypatch.setattr(foreigntar, "_MAX_STREAM", 4096)
    with pytest.raises(ProofError, match="more than 4096 bytes"):
        trees.read(blob, NONE)


def test_equal_trees_do_not_differ_whatever_the_order_times_and_layers(tmp_path):
    one = tree(tmp_path, [folder("a"), Item("a/f", b"1"), Item("b")])
    other = tree(tmp_path, [Item("b")], [Item("a/f", b"1")])
    assert trees.compare(one.nodes, other.nodes) == ()


@pytest.mark.parametrize(
    ("changed", "fields"),
    [
        (Item("f", b"abd"), ("content",)),
        (Item("f", b"abcd"), ("size", "content")),
        (Item("f", b"abc", 0o755), ("mode",)),
        (Item("f", b"abc", uid=1), ("uid",)),
        (Item("f", b"abc", gid=1), ("gid",)),
        (symlink("f", "abc"), ("kind", "mode", "size", "content")),
        (Item("g", b"abc"), ()),
    ],
)
def test_every_fact_is_compared(tmp_path, changed, fields):
    differences = trees.compare(tree(tmp_path, [Item("f", b"abc")]).nodes, tree(tmp_path, [changed]).nodes)
    assert differences[0].path == "f"
    assert differences[0].fields == fields
    if changed.path == "g":
        assert [(d.path, d.one is None, d.other is None) for d in differences] == [
            ("f", False, True),
            ("g", True, False),
        ]


def test_a_link_with_another_target_differs(tmp_path):
    one, other = (tree(tmp_path, [symlink("l", target)]).nodes for target in "ab")
    (difference,) = trees.compare(one, other)
    assert difference.fields == ("content",)


@pytest.mark.parametrize("records", [{"GNU.sparse.map": "abc"}, {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}])
def test_a_sparse_file_is_refused_before_its_map_is_read(tmp_path, records):
    path = tmp_path / "layer"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("file")
        member.pax_headers = records
        archive.addfile(member)
    with pytest.raises(ProofError, match="sparse file"):
        trees.read(path, "application/vnd.oci.image.layer.v1.tar")
