"""The bundle's file: the same bytes each time; whatever is not exactly as its manifest says is refused and named."""

import io
import json
import tarfile

import pytest

from verlstack import bundlefile, canonical, layer, tar
from verlstack.content import Inline
from verlstack.errors import FetchError, HashMismatchError, UsageError, VerlstackError

LONG = f"smoke_tests/{'d' * 90}/{'f' * 90}.py"
MEMBERS = {
    "constraints/stacks.toml": b"[image]\n",
    "files/00ff/alpha-1.0-py3-none-any.whl": bytes(range(256)) * 5,
    "image/blobs/sha256/0": b"",
    LONG: b"pass\n",
}
EPOCH = 1_700_000_000


def write(path, members=MEMBERS, **facts):
    sources = {name: Inline(data=data) for name, data in members.items()}
    return bundlefile.write(path, {"stack": "s"} | facts, sources, epoch=EPOCH, progress=lambda _: None)


def read(path, folder):
    return bundlefile.read(path, folder, lambda _: None)


@pytest.fixture
def bundle(tmp_path):
    write(tmp_path / "b.tar")
    return tmp_path / "b.tar"


def test_what_is_written_is_read_back(bundle, tmp_path):
    document = read(bundle, tmp_path / "out")
    assert document["stack"] == "s"
    assert {p.relative_to(tmp_path / "out").as_posix(): p.read_bytes() for p in (tmp_path / "out").rglob("*.*")} == {
        k: v for k, v in MEMBERS.items() if "." in k
    }
    assert (tmp_path / "out/image/blobs/sha256/0").read_bytes() == b""


def test_the_same_bytes_in_any_order(bundle, tmp_path):
    made = write(tmp_path / "c.tar", dict(reversed(MEMBERS.items())))
    assert (tmp_path / "c.tar").read_bytes() == bundle.read_bytes()
    assert (made.size, made.members) == (bundle.stat().st_size, len(MEMBERS))


def test_any_tar_reads_it(bundle):
    with tarfile.open(bundle) as archive:
        names = [m.name for m in archive if m.isfile()]
    assert names == ["MANIFEST.json", *sorted(MEMBERS)]


def test_one_byte_flipped_anywhere_is_found(bundle, tmp_path):
    data = bundle.read_bytes()
    for at in range(0, len(data), 97):
        changed = bytearray(data)
        changed[at] ^= 1
        bundle.write_bytes(changed)
        with pytest.raises((FetchError, HashMismatchError)):
            read(bundle, tmp_path / f"out{at}")


def place(data, name):
    """Where the content of a member begins."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return archive.getmember(name).offset_data


@pytest.mark.parametrize("name", ["constraints/stacks.toml", "files/00ff/alpha-1.0-py3-none-any.whl", LONG])
@pytest.mark.parametrize("where", ["content", "header", "padding"])
def test_what_is_damaged_is_named(bundle, tmp_path, name, where):
    data = bytearray(bundle.read_bytes())
    at = place(data, name)
    data[at + {"content": 1, "header": -tar.BLOCK + 110, "padding": len(MEMBERS[name])}[where]] ^= 1
    bundle.write_bytes(data)
    with pytest.raises(HashMismatchError) as caught:
        read(bundle, tmp_path / "out")
    assert name in caught.value.what


def test_a_damaged_manifest(bundle, tmp_path):
    data = bundle.read_bytes()
    bundle.write_bytes(data.replace(b'"stack":"s"', b'"stack":"t"'))
    with pytest.raises(HashMismatchError, match=r"MANIFEST\.json"):
        read(bundle, tmp_path / "out")


def without(data, name):
    """The archive without one member: its header and content cut out."""
    at = place(data, name)
    size = len(MEMBERS[name])
    return data[: at - tar.BLOCK] + data[at + size + len(tar.padding(size)) :]


def test_a_manifest_written_in_another_way(tmp_path):
    document = {"stack": "s", "epoch": EPOCH, "format": 1, "files": {}}
    document["checksum"] = canonical.digest(document)
    entry = tar.file("MANIFEST.json", Inline(data=json.dumps(document, indent=1).encode()))
    (tmp_path / "b.tar").write_bytes(b"".join(layer.stream([entry], epoch=EPOCH)))
    with pytest.raises(HashMismatchError, match=r"MANIFEST\.json"):
        read(tmp_path / "b.tar", tmp_path / "out")


def test_a_missing_member_is_named(bundle, tmp_path):
    name = "files/00ff/alpha-1.0-py3-none-any.whl"
    bundle.write_bytes(without(bundle.read_bytes(), name))
    with pytest.raises(FetchError, match=f"lacks {name}"):
        read(bundle, tmp_path / "out")


def test_the_last_member_missing(tmp_path):
    write(tmp_path / "b.tar", {"a": b"1", "b": b"2"})
    data = (tmp_path / "b.tar").read_bytes()
    (tmp_path / "b.tar").write_bytes(data[: place(data, "b") - tar.BLOCK] + tar.END)
    with pytest.raises(FetchError, match="ends before b"):
        read(tmp_path / "b.tar", tmp_path / "out")


@pytest.mark.parametrize("cut", [100, 512, 2000, -1, -1024, -1500])
def test_a_bundle_that_was_cut_short(bundle, tmp_path, cut):
    bundle.write_bytes(bundle.read_bytes()[:cut])
    with pytest.raises(VerlstackError):
        read(bundle, tmp_path / "out")


def test_something_behind_the_end(bundle, tmp_path):
    bundle.write_bytes(bundle.read_bytes() + b"\0")
    with pytest.raises(HashMismatchError, match="end"):
        read(bundle, tmp_path / "out")


def hostile(path, files, *, entries=()):
    """A bundle whose manifest is sound in itself, whatever it names; other entries may follow it."""
    document = {"stack": "s", "epoch": EPOCH, "format": 1, "files": files}
    document["checksum"] = canonical.digest(document)
    entries = [tar.file("MANIFEST.json", Inline(data=canonical.dumps(document))), *entries]
    path.write_bytes(b"".join(layer.stream(entries, epoch=EPOCH)))


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/x", "a/../../x", "a//b", "a/.", "", "A", "a\nb", "a/b\\c", ".", "MANIFEST.json", "a/", "a b", "ü"],
)
def test_paths_that_no_bundle_has(tmp_path, name):
    hostile(tmp_path / "b.tar", {name: {"size": 0, "sha256": "0" * 64}})
    with pytest.raises(FetchError, match="that no bundle has"):
        read(tmp_path / "b.tar", tmp_path / "out")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("facts", [None, {}, {"size": -1, "sha256": "0" * 64}, {"size": True, "sha256": "0" * 64},
                                   {"size": 1 << 60, "sha256": "0" * 64}, {"size": 1, "sha256": "x"}])  # fmt: skip
def test_facts_that_no_member_has(tmp_path, facts):
    hostile(tmp_path / "b.tar", {"a": facts})
    with pytest.raises(FetchError, match="that no bundle has"):
        read(tmp_path / "b.tar", tmp_path / "out")


def test_a_file_that_is_also_a_folder(tmp_path):
    facts = {"size": 0, "sha256": "0" * 64}
    hostile(tmp_path / "b.tar", {"a": facts, "a/b": facts})
    with pytest.raises(FetchError, match="contradicts itself"):
        read(tmp_path / "b.tar", tmp_path / "out")


@pytest.mark.parametrize(
    "entry",
    [
        tar.symlink("a", "/etc/passwd"),
        tar.file("a", Inline(data=b"longer than it says")),
        tar.file("../evil", Inline(data=b"1")),
        tar.file("b", Inline(data=b"1")),
        tar.directory("a"),
    ],
)
def test_members_that_the_manifest_does_not_describe(tmp_path, entry):
    hostile(tmp_path / "b.tar", {"a": {"size": 1, "sha256": "0" * 64}}, entries=[entry])
    with pytest.raises(FetchError) as caught:
        read(tmp_path / "b.tar", tmp_path / "out")
    assert "a" in caught.value.what
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("data", [b"", b"x" * 3000, b"\0" * 2048])
def test_what_is_no_bundle(tmp_path, data):
    (tmp_path / "b.tar").write_bytes(data)
    with pytest.raises(FetchError, match="no bundle"):
        read(tmp_path / "b.tar", tmp_path / "out")


def test_no_file_and_a_folder(tmp_path):
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(FetchError, match="cannot be read"):
            read(path, tmp_path / "out")


def test_a_manifest_of_another_format(tmp_path):
    document = json.loads(canonical.dumps({"stack": "s", "epoch": EPOCH, "format": 2, "files": {}}))
    document["checksum"] = canonical.digest(document)
    entry = tar.file("MANIFEST.json", Inline(data=canonical.dumps(document)))
    (tmp_path / "b.tar").write_bytes(b"".join(layer.stream([entry], epoch=EPOCH)))
    with pytest.raises(HashMismatchError):
        read(tmp_path / "b.tar", tmp_path / "out")


def test_a_name_that_could_not_be_read_back_is_not_written(tmp_path):
    with pytest.raises(UsageError, match="cannot be in a bundle"):
        write(tmp_path / "b.tar", {"smoke_tests/a b.py": b""})
    assert not (tmp_path / "b.tar").exists()
