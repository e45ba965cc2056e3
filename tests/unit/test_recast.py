"""Another builder's layer by our own rules: the same diff_id if and only if the same things lie at the same paths."""

import hashlib
import random
import tarfile

import pytest

from support.layers import NONE, Item, folder, hardlink, symlink, write
from verlstack import layer, recast, tar, trees
from verlstack.content import Inline
from verlstack.errors import StorageError, VerlstackError

EPOCH = 1_700_000_000
LONG = "opt/" + "n" * 120 + "/ünï"

OURS = [
    tar.file("opt/verl/b", Inline(data=b"bb"), executable=True),
    tar.file("opt/verl/a-b", Inline(data=b"ab")),
    tar.file("opt/verl/a/x", Inline(data=b"x" * 3000)),
    tar.file(LONG, Inline(data=b"long")),
    tar.symlink("opt/verl/l", "b"),
    tar.directory("opt/verl/empty"),
]
THEIRS = [
    folder("opt"),
    folder("opt/verl"),
    Item("opt/verl/b", b"bb", 0o755),
    Item("opt/verl/a-b", b"ab"),
    folder("opt/verl/a"),
    Item("opt/verl/a/x", b"x" * 3000),
    Item(LONG, b"long"),
    symlink("opt/verl/l", "b"),
    folder("opt/verl/empty"),
]


def expected(entries):
    return f"sha256:{hashlib.sha256(b''.join(layer.stream(layer.arrange(entries), epoch=EPOCH))).hexdigest()}"


def recasted(tmp_path, items):
    blob = write(tmp_path / "t", *items)
    return recast.diff_id(blob, trees.read(blob, NONE).members, epoch=EPOCH, progress=lambda _: None)


@pytest.mark.parametrize("seed", range(3))
def test_order_times_names_and_headers_do_not_count(tmp_path, seed):
    items = random.Random(seed).sample(THEIRS, len(THEIRS))  # noqa: S311 - an order, no secret
    assert recasted(tmp_path, items) == expected(OURS)


def test_parents_may_be_missing_and_the_root_present(tmp_path):
    items = [folder("./"), *(i for i in THEIRS if i.kind != tarfile.DIRTYPE or i.path.endswith("empty"))]
    assert recasted(tmp_path, items) == expected(OURS)


def test_a_hard_link_is_a_file_of_its_own(tmp_path):
    files = [tar.file(name, Inline(data=b"same")) for name in ("f", "g")]
    assert recasted(tmp_path, [Item("f", b"same"), hardlink("g", "f")]) == expected(files)


def test_of_two_entries_for_one_path_the_later_counts(tmp_path):
    assert recasted(tmp_path, [Item("f", b"1"), Item("f", b"2")]) == expected([tar.file("f", Inline(data=b"2"))])


@pytest.mark.parametrize(
    "changed",
    [
        Item("opt/verl/b", b"bb", 0o644),
        Item("opt/verl/b", b"bc", 0o755),
        Item("opt/verl/b", b"bb", 0o755, uid=1),
        folder("opt", 0o700),
        symlink("opt/verl/l", "c"),
        Item("opt/verl/new"),
    ],
)
def test_everything_else_counts(tmp_path, changed):
    assert recasted(tmp_path, [*(i for i in THEIRS if i.path != changed.path), changed]) != expected(OURS)


@pytest.mark.parametrize(
    ("item", "what"),
    [
        (Item("d", kind=tarfile.CHRTYPE), "of type char"),
        (Item("a/.wh.x"), "a whiteout"),
        (hardlink("g", "elsewhere"), "a hard link out of its layer"),
        (Item("f", pax={"SCHILY.xattr.user.x": "1"}), "extended attribute SCHILY.xattr.user.x"),
    ],
)
def test_what_our_format_has_not_is_named(tmp_path, item, what):
    with pytest.raises(VerlstackError, match=what):
        recasted(tmp_path, [item])


def test_a_file_that_changed_meanwhile_is_noticed(tmp_path):
    blob = write(tmp_path / "t", Item("f", b"abc"))
    members = trees.read(blob, NONE).members
    write(blob, Item("f", b"abd"))
    with pytest.raises(StorageError, match="changed"):
        recast.diff_id(blob, members, epoch=EPOCH, progress=lambda _: None)
