"""A layout on disk as a base: what is read off it, and how a damaged or hostile one is refused."""

from __future__ import annotations

import json
import os

import pytest

from support import layouts
from verlstack import layer
from verlstack.base import bases, dpkg, facts, layout, pull
from verlstack.cache import Cache
from verlstack.errors import BaseImageError, FetchError, HashMismatchError, UsageError
from verlstack.progress import Silent

FAST = layer.Compression(level=1, window_log=20, long_distance=False, library="1.5.7")


@pytest.fixture
def request_of(tmp_path):
    with Cache(tmp_path / "cache").use() as cache:
        yield bases.Request(
            wanted_python="3.10", debian_packages=(), registry_default=None, compression=FAST, epoch=1, cache=cache,
            interpreter=None, env={}, progress=Silent(), offline=True,
        )  # fmt: skip


def obtain(folder, request):
    return bases.obtain(f"oci:{folder}", request)


def test_a_layout_is_a_base(tmp_path, request_of):
    folder = layouts.write(tmp_path / "l", layouts.FIT, {"opt/x": b"y"})
    base = obtain(folder, request_of)
    assert (base.kind, base.python_home, base.python_version, len(base.layers)) == ("oci", "/usr/bin", "3.10.12", 2)
    assert base.reference == f"oci@{layout.opened(folder).digest}"
    assert str(tmp_path) not in base.reference
    assert base.packages == (("gcc", "4:12.2.0-3"), ("libc6", "2.36-9"))
    assert base.env == (("PATH", "/usr/bin"),)


@pytest.mark.parametrize(
    ("labels", "local"), [(None, True), ({bases.SCOPE: "local"}, True), ({bases.SCOPE: "pinned"}, False)]
)
def test_a_layouts_label_says_whether_it_is_local(tmp_path, request_of, labels, local):
    assert obtain(layouts.write(tmp_path / "l", layouts.FIT, labels=labels), request_of).local is local


def test_it_is_read_once_and_then_had_from_the_cache(tmp_path, request_of, monkeypatch):
    folder = layouts.write(tmp_path / "l", layouts.FIT)
    first = obtain(folder, request_of)
    monkeypatch.setattr(pull, "_pull", None)
    assert obtain(folder, request_of) == first


def test_what_an_image_holds(tmp_path, request_of):
    found = bases.look(f"oci:{layouts.write(tmp_path / 'l', layouts.FIT)}", request_of)
    known = found.facts
    assert (known.glibc, known.glibcxx, known.os_name, known.compiler) == (
        "2.36",
        "3.4.30",
        "Ubuntu 22.04",
        "/usr/bin/gcc",
    )
    gcc, libc = known.packages
    assert (gcc.source, gcc.source_version, gcc.installed_kib, gcc.licence) == ("gcc-defaults", "1.203", 50, None)
    assert (libc.source, libc.source_version, libc.licence) == ("glibc", "2.36-9", "/usr/share/doc/libc6/copyright")
    assert facts.Facts.from_json(json.loads(json.dumps(known.to_json()))) == known


def test_an_image_without_anything(tmp_path, request_of):
    known = bases.look(f"oci:{layouts.write(tmp_path / 'l', {'x': b''})}", request_of).facts
    assert (known.glibc, known.glibcxx, known.compiler, known.packages) == (None, None, None, ())
    with pytest.raises(BaseImageError, match="no C compiler"):
        obtain(tmp_path / "l", request_of)


def test_distroless_status_and_hostile_status():
    one = "Package: base-files\nVersion: 12\nArchitecture: all\n"
    bad = (
        "Package: a b\nVersion: 1\n\nPackage: ok\nVersion: 1 rm -rf\n\nPackage: zlib1g\nVersion: 1\nInstalled-Size: x\n"
    )
    assert [(p.name, p.installed_kib) for p in dpkg.parse(f"{one}\n{bad}")] == [("base-files", 0), ("zlib1g", 0)]


# -- refused


def blob_of(folder, digest):
    return folder / "blobs" / "sha256" / digest.removeprefix("sha256:")


def layers_of(folder):
    digest = json.loads((folder / "index.json").read_text())["manifests"][0]["digest"]
    return [one["digest"] for one in json.loads(blob_of(folder, digest).read_text())["layers"]]


def test_no_layout(tmp_path, request_of):
    with pytest.raises(BaseImageError, match="no OCI layout here") as caught:
        obtain(tmp_path / "none", request_of)
    assert "index.json" in caught.value.where


def test_two_images_in_one_layout(tmp_path, request_of):
    index = {"manifests": [{"digest": "sha256:" + c * 64} for c in "ab"]}
    with pytest.raises(BaseImageError, match="exactly one image"):
        obtain(layouts.write(tmp_path / "l", layouts.FIT, index=index), request_of)


@pytest.mark.parametrize(
    "index", [{"manifests": 1}, {"manifests": []}, {"manifests": [{"digest": "../../etc/passwd"}]}]
)
def test_an_index_of_nonsense(tmp_path, request_of, index):
    with pytest.raises(BaseImageError):
        obtain(layouts.write(tmp_path / "l", layouts.FIT, index=index), request_of)


def test_a_missing_blob(tmp_path, request_of):
    folder = layouts.write(tmp_path / "l", layouts.FIT)
    blob_of(folder, layers_of(folder)[0]).unlink()
    with pytest.raises(BaseImageError, match="lacks a blob"):
        obtain(folder, request_of)


def test_a_damaged_blob_is_named_and_nothing_is_kept(tmp_path, request_of):
    folder = layouts.write(tmp_path / "l", layouts.FIT)
    path = blob_of(folder, layers_of(folder)[0])
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(HashMismatchError, match="not what its digest says") as caught:
        obtain(folder, request_of)
    assert caught.value.where == str(path)
    assert list(request_of.cache.parts.iterdir()) == []


def described(folder):
    digest = json.loads((folder / "index.json").read_text())["manifests"][0]["digest"]
    return json.loads(blob_of(folder, digest).read_text())["layers"]


@pytest.mark.parametrize("more", [1, -1])
def test_a_manifest_that_lies_about_a_size(tmp_path, request_of, more):
    (one,) = described(layouts.write(tmp_path / "l", layouts.FIT))
    lie = {"layers": [one | {"size": one["size"] + more}]}
    with pytest.raises(BaseImageError, match=f"the manifest says {one['size'] + more}"):
        obtain(layouts.write(tmp_path / "l", layouts.FIT, manifest=lie), request_of)


def test_the_users_own_files_stay_as_they_are(tmp_path, request_of):
    folder = layouts.write(tmp_path / "l", layouts.FIT)
    path = blob_of(folder, layers_of(folder)[0])
    path.chmod(0o640)
    (blob,) = obtain(folder, request_of).layers
    path.write_bytes(b"changed")
    assert path.stat().st_mode & 0o777 == 0o640
    assert blob.path.stat().st_mode & 0o777 == 0o644
    assert blob.path.read_bytes() != b"changed"


def test_an_index_that_is_a_pipe_is_not_opened(tmp_path, request_of):
    folder = layouts.write(tmp_path / "l", layouts.FIT)
    (folder / "index.json").unlink()
    os.mkfifo(folder / "index.json")
    with pytest.raises(BaseImageError, match="no OCI layout here"):
        obtain(folder, request_of)


def test_an_index_without_measure(tmp_path, request_of, monkeypatch):
    monkeypatch.setattr("verlstack.base.transport.MAX_DOCUMENT", 20)
    with pytest.raises(BaseImageError, match="an index of this size"):
        obtain(layouts.write(tmp_path / "l", layouts.FIT), request_of)


def test_a_blob_that_is_a_link(tmp_path, request_of):
    folder = layouts.write(tmp_path / "l", layouts.FIT)
    path = blob_of(folder, layers_of(folder)[0])
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BaseImageError, match="lacks a blob"):
        obtain(folder, request_of)


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a": "\\ud800"}', b'{"a": 1e999}'], ids=["deep", "half", "inf"])
def test_a_manifest_that_is_no_json(tmp_path, request_of, data):
    folder = layouts.write(tmp_path / "l", layouts.FIT)
    blob_of(folder, layouts.sha(data)).write_bytes(data)
    (folder / "index.json").write_text(json.dumps({"manifests": [{"digest": layouts.sha(data)}]}))
    with pytest.raises(FetchError, match="no object in JSON"):
        obtain(folder, request_of)


@pytest.mark.parametrize(
    "manifest",
    [
        {"layers": [{"digest": "sha256:../../../x", "size": 1}]},
        {"layers": [{"digest": "sha256:" + "a" * 64, "size": -1}]},
        {"layers": ["x"]},
        {"layers": []},
        {"layers": [{"digest": "sha256:" + "a" * 64, "size": 1}] * 128},
        {"config": "x"},
    ],
)
def test_a_manifest_of_nonsense(tmp_path, request_of, manifest):
    with pytest.raises(BaseImageError):
        obtain(layouts.write(tmp_path / "l", layouts.FIT, manifest=manifest), request_of)


@pytest.mark.parametrize("size", [-1, 1 << 40, 10**400, True, 1.0, "1", None])
def test_a_size_that_is_none(tmp_path, request_of, size):
    lie = {"layers": [{"digest": "sha256:" + "a" * 64, "size": size}]}
    with pytest.raises(BaseImageError, match="a layer without digest or size"):
        obtain(layouts.write(tmp_path / "l", layouts.FIT, manifest=lie), request_of)


@pytest.mark.parametrize("config", [{"rootfs": 1}, {"rootfs": {"diff_ids": "x"}}, {"os": "windows"}])
def test_a_config_of_nonsense(tmp_path, request_of, config):
    with pytest.raises(BaseImageError):
        obtain(layouts.write(tmp_path / "l", layouts.FIT, config=config), request_of)


def test_another_architecture(tmp_path, request_of):
    with pytest.raises(BaseImageError, match="linux/arm64"):
        obtain(layouts.write(tmp_path / "l", layouts.FIT, architecture="arm64"), request_of)


def test_diff_ids_that_lie(tmp_path, request_of):
    config = {"rootfs": {"diff_ids": ["sha256:" + "0" * 64]}}
    with pytest.raises(HashMismatchError, match="its config says"):
        obtain(layouts.write(tmp_path / "l", layouts.FIT, config=config), request_of)


def test_paths_and_whiteouts_that_climb_stay_inside(tmp_path, request_of):
    hostile = {"../../usr/bin/gcc": b"elf", "../.wh.usr": b"", "etc/../../x": "-> ../../../y"}
    folder = layouts.write(tmp_path / "l", {"usr/keep": b""}, hostile | layouts.FIT)
    assert obtain(folder, request_of).python_home == "/usr/bin"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "l"]


def test_more_text_than_any_image_has(tmp_path, request_of, monkeypatch):
    monkeypatch.setattr("verlstack.base.imagescan._MAX_KEPT_SUM", 100)
    with pytest.raises(BaseImageError, match="more files than any image has"):
        obtain(layouts.write(tmp_path / "l", layouts.FIT), request_of)


def test_a_spec_without_folder():
    with pytest.raises(UsageError):
        bases.check("oci:")
