"""Unpacking never touches anything outside its folder, whatever the layers say."""

import io
import tarfile

import pytest

from verlstack import unpack
from verlstack.errors import ProofError

TAR = "application/vnd.oci.image.layer.v1.tar"


def member(name, *, kind=tarfile.REGTYPE, link="", data=b"", mode=0o644):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, link, len(data), mode
    return info, data


def blob(folder, *members):
    path = folder / f"layer{len(list(folder.glob('layer*')))}"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as out:
        for info, data in members:
            out.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture
def places(tmp_path):
    """(root, a folder outside it with one precious file)."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "precious").write_text("p")
    (outside / "precious").chmod(0o600)
    return root, outside


def hostile(outside):
    """Layer by layer, what once reached out of the root."""
    v = str(outside)
    up = "../" * 12 + v.lstrip("/")
    sym = {"kind": tarfile.SYMTYPE}
    return {
        "absolute name": [[member(f"{v}/precious", data=b"x")]],
        "the folder itself as a file": [[member(v, data=b"x")]],
        "absolute whiteout": [[member(f"{v}/.wh.precious")]],
        "absolute opaque whiteout": [[member(f"{v}/.wh..wh..opq")]],
        "climbing whiteout": [[member(f"{up}/.wh.precious")]],
        "whiteout of the folder above": [[member(".wh...")]],
        "whiteout of the folder above a folder": [[member("a/.wh...")]],
        "whiteout of the folder above by a link": [[member("a", link="/", **sym)], [member("a/.wh...")]],
        "whiteout through a link": [[member("a", link=v, **sym)], [member("a/.wh.precious")]],
        "opaque through a link": [[member("a", link=v, **sym)], [member("a/.wh..wh..opq")]],
        "file through a link": [[member("a", link=v, **sym), member("a/precious", data=b"x")]],
        "file through a climbing link": [[member("a", link=up, **sym), member("a/precious", data=b"x")]],
        "folder through a link": [[member("a", link=v, **sym), member("a/new", kind=tarfile.DIRTYPE, mode=0o755)]],
        "hard link": [[member("h", kind=tarfile.LNKTYPE, link=f"{v}/precious", mode=0o4777)]],
        "hard link through a link": [
            [member("a", link=v, **sym), member("h", kind=tarfile.LNKTYPE, link="a/precious", mode=0o4777)]
        ],
    }


@pytest.mark.parametrize("case", hostile("x"))
def test_nothing_outside_is_touched(places, tmp_path, case):
    root, outside = places
    for layer in hostile(outside)[case]:
        try:
            unpack.lay(blob(tmp_path, *layer), TAR, root)
        except ProofError:
            break
    assert [p.name for p in outside.iterdir()] == ["precious"]
    assert (outside / "precious").read_text() == "p"
    assert (outside / "precious").stat().st_mode & 0o7777 == 0o600


def test_what_belongs_inside_goes_where_a_container_would_see_it(places, tmp_path):
    root, _ = places
    first = blob(
        tmp_path,
        member("usr/bin", kind=tarfile.DIRTYPE, mode=0o755),
        member("bin", kind=tarfile.SYMTYPE, link="/usr/bin"),
        member("bin/tool", data=b"old", mode=0o4755),
        member("tmp", kind=tarfile.DIRTYPE, mode=0o1777),
        member("etc/gone", data=b"x"),
        member("opt/a", data=b"1"),
        member("opt/b", kind=tarfile.LNKTYPE, link="opt/a"),
        member("dev/null", kind=tarfile.CHRTYPE),
    )
    second = blob(
        tmp_path, member("etc/.wh.gone"), member("bin/tool", data=b"new", mode=0o755), member("opt/.wh..wh..opq")
    )
    for layer in (first, second):
        unpack.lay(layer, TAR, root)
    assert (root / "usr/bin/tool").read_bytes() == b"new"
    assert (root / "tmp").stat().st_mode & 0o7777 == 0o1777
    assert not (root / "etc/gone").exists()
    assert list((root / "opt").iterdir()) == []
    assert not (root / "dev/null").exists()


def test_setuid_is_not_carried_over(places, tmp_path):
    root, _ = places
    unpack.lay(blob(tmp_path, member("su", data=b"x", mode=0o6755)), TAR, root)
    assert (root / "su").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("data", [b"", b"garbage" * 200])
@pytest.mark.parametrize("media_type", [TAR, TAR + "+zstd", TAR + "+gzip"])
def test_garbage_is_an_error_of_ours(places, tmp_path, data, media_type):
    (tmp_path / "layer0").write_bytes(data)
    with pytest.raises(ProofError):
        unpack.lay(tmp_path / "layer0", media_type, places[0])


@pytest.mark.parametrize("name", [".wh.", ".wh..", ".wh...", "a/.wh...", "a/.wh."])
def test_a_whiteout_without_a_name(places, tmp_path, name):
    with pytest.raises(ProofError, match="whiteout without a name"):
        unpack.lay(blob(tmp_path, member(name)), TAR, places[0])
    assert places[0].is_dir()


@pytest.mark.parametrize(
    "members",
    [
        [member("a" * 300, data=b"1")],
        [member("a", kind=tarfile.SYMTYPE, link="")],
        [member("a", data=b"1"), member("a/b/c", data=b"1")],
        [member("a", data=b"1"), member("a/b", kind=tarfile.DIRTYPE)],
        [member("a", kind=tarfile.SYMTYPE, link="x" * 5000)],
    ],
    ids=["long name", "empty link", "file below a file", "folder below a file", "long link"],
)
def test_what_no_file_system_takes_is_the_layers_fault(places, tmp_path, members):
    with pytest.raises(ProofError, match="a layer cannot be unpacked"):
        unpack.lay(blob(tmp_path, *members), TAR, places[0])


def test_links_without_end(places, tmp_path):
    root, _ = places
    loop = blob(tmp_path, member("a", kind=tarfile.SYMTYPE, link="b"), member("b", kind=tarfile.SYMTYPE, link="a"))
    unpack.lay(loop, TAR, root)
    with pytest.raises(ProofError, match="links without end"):
        unpack.lay(blob(tmp_path, member("a/x", data=b"1")), TAR, root)
