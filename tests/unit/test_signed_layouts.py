"""Images on disk with their signatures, in folders and archives: found, and refused where anything was changed."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile

import pytest

from support import layouts
from support.signatures import Memory, loaded, verify
from verlstack import oci
from verlstack.errors import SignatureError, UsageError
from verlstack.signing import stores


@pytest.fixture
def one(tmp_path):
    return loaded(tmp_path, "one")


@pytest.fixture
def signed(tmp_path, one):
    """A layout with one signed image, as `verlstack mirror` and skopeo leave it."""
    return sign(layouts.write(tmp_path / "image", {"a": b"1"}, {"b": b"2"}), one[0])


def sign(folder, key, **how):
    index = json.loads((folder / "index.json").read_text())
    digest = index["manifests"][0]["digest"]
    store = Memory(digest=digest)
    store.sign(key, **({"digest": digest} | how))
    for name, data in store.blobs.items():
        (folder / oci.blob_path(name)).write_bytes(data)
    (entry,) = store.entries
    tag = f"{digest.replace(':', '-')}.sig"
    notes = {"org.opencontainers.image.ref.name": tag}
    index["manifests"].append({"mediaType": oci.MANIFEST, "annotations": notes, **entry})
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def run(path, *keys, **how):
    with stores.opened(str(path), path, {}, insecure=False) as store:
        return verify(store, keys, **how)


def packed(folder, path, **changed):
    """An archive of a layout; `changed` are files by name, appended."""
    with tarfile.open(path, "w") as out:
        for one in sorted(folder.iterdir()):
            out.add(one, one.name)
        for name, data in changed.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return path


def test_a_folder_and_an_archive(signed, one, two_files):
    for path in (signed, two_files):
        report = run(path, one[1])
        assert report.digest == json.loads((signed / "index.json").read_text())["manifests"][0]["digest"]
        assert report.signed


@pytest.fixture
def two_files(signed, tmp_path):
    return packed(signed, tmp_path / "image.tar")


def test_as_cosign_saves_it(signed, one):
    index = json.loads((signed / "index.json").read_text())
    for entry, kind in zip(index["manifests"], ("image", "sigs"), strict=True):
        entry["annotations"] = {"kind": f"dev.cosignproject.cosign/{kind}"}
    (signed / "index.json").write_text(json.dumps(index))
    assert run(signed, one[1]).signed


def test_a_signature_in_a_list_of_referrers(signed, one):
    index = json.loads((signed / "index.json").read_text())
    image, entry = index["manifests"]
    data = json.dumps({"manifests": [entry], "mediaType": oci.INDEX, "schemaVersion": 2}).encode()
    (signed / oci.blob_path(oci.digest(data))).write_bytes(data)
    notes = {"org.opencontainers.image.ref.name": image["digest"].replace(":", "-")}
    listed = {"digest": oci.digest(data), "size": len(data), "mediaType": oci.INDEX, "annotations": notes}
    (signed / "index.json").write_text(json.dumps({"manifests": [image, listed]}))
    assert run(signed, one[1]).signed


def blobs_of_the_image(folder):
    index = json.loads((folder / "index.json").read_text())
    own = index["manifests"][0]["digest"]
    manifest = json.loads((folder / oci.blob_path(own)).read_bytes())
    return [own, manifest["config"]["digest"], *(x["digest"] for x in manifest["layers"])]


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("how", ["changed", "longer", "gone", "link"])
@pytest.mark.parametrize("archive", [False, True])
def test_a_tampered_blob(signed, one, tmp_path, number, how, archive):
    path = signed / oci.blob_path(blobs_of_the_image(signed)[number])
    data = path.read_bytes()
    path.unlink()
    if how == "changed":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif how == "longer":
        path.write_bytes(data + b" ")
    elif how == "link":
        (tmp_path / "elsewhere").write_bytes(data)
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SignatureError):
        run(packed(signed, tmp_path / "image.tar") if archive else signed, one[1])


def test_another_image_under_the_old_signature(signed, one, tmp_path):
    other = layouts.write(tmp_path / "other", {"a": b"evil"})
    index = json.loads((signed / "index.json").read_text())
    index["manifests"][0] = json.loads((other / "index.json").read_text())["manifests"][0]
    (signed / "index.json").write_text(json.dumps(index))
    shutil.copytree(other / "blobs", signed / "blobs", dirs_exist_ok=True)
    with pytest.raises(SignatureError, match="for another image"):
        run(signed, one[1])


def test_two_images_are_ambiguous(signed, one, tmp_path):
    other = layouts.write(tmp_path / "other", {"a": b"evil"})
    index = json.loads((signed / "index.json").read_text())
    index["manifests"] += json.loads((other / "index.json").read_text())["manifests"]
    (signed / "index.json").write_text(json.dumps(index))
    with pytest.raises(SignatureError, match="exactly one image"):
        run(signed, one[1])


COSIGN = "dev.cosignproject.cosign"
NAME = oci.REF_NAME


@pytest.mark.parametrize(
    ("image", "other"),
    [
        ({"kind": f"{COSIGN}/image"}, {NAME: "verl"}),
        ({"kind": f"{COSIGN}/image"}, {}),
        ({"kind": f"{COSIGN}/image"}, {"kind": f"{COSIGN}/sigs", NAME: "verl"}),
        ({"kind": f"{COSIGN}/imageIndex"}, {"kind": f"{COSIGN}/image"}),
        ({NAME: "verl"}, {NAME: f"sha256-{'1' * 64}", "io.containerd.image.name": "docker.io/library/verl:stable"}),
        ({NAME: "verl"}, {"kind": f"{COSIGN}/atts", "io.containerd.image.name": "docker.io/library/verl:stable"}),
    ],
)
def test_what_an_engine_would_load_beside_the_signed_image(signed, one, tmp_path, image, other):
    """An engine loads whatever has a name, and `docker load` several: none may pass as a signature of another."""
    evil = layouts.write(tmp_path / "other", {"a": b"evil"})
    index = json.loads((signed / "index.json").read_text())
    index["manifests"][0]["annotations"] = image
    (entry,) = json.loads((evil / "index.json").read_text())["manifests"]
    index["manifests"].append(entry | {"annotations": other})
    (signed / "index.json").write_text(json.dumps(index))
    shutil.copytree(evil / "blobs", signed / "blobs", dirs_exist_ok=True)
    with pytest.raises(SignatureError, match="exactly one image"):
        run(signed, one[1])


def test_a_file_that_is_twice_in_an_archive(signed, one, tmp_path):
    path = packed(signed, tmp_path / "image.tar", **{"index.json": (signed / "index.json").read_bytes()})
    with pytest.raises(SignatureError, match="twice"):
        run(path, one[1])


def older(folder, layers=None):
    own, config, *rows = blobs_of_the_image(folder)
    del own
    named = [oci.blob_path(x) for x in (rows if layers is None else layers)]
    return json.dumps([{"Config": oci.blob_path(config), "Layers": named, "RepoTags": []}]).encode()


def test_what_engines_of_before_oci_read_must_be_the_same_image(signed, one, tmp_path):
    path = packed(signed, tmp_path / "good.tar", **{"manifest.json": older(signed)})
    assert run(path, one[1]).signed
    legacy = packed(signed, tmp_path / "legacy.tar", repositories=b'{"verl": {"stable": "1"}}')
    with pytest.raises(SignatureError, match="repositories"):
        run(legacy, one[1])
    for number, data in enumerate((older(signed, []), b"[]", b"{", older(signed) + b"]", b"[1]")):
        path = packed(signed, tmp_path / f"{number}.tar", **{"manifest.json": data})
        with pytest.raises(SignatureError, match=r"manifest\.json"):
            run(path, one[1])


@pytest.mark.parametrize("data", [b"", b"x" * 2000, b"\x1f\x8b" + b"x" * 600])
def test_what_is_no_archive(tmp_path, one, data):
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    with pytest.raises((SignatureError, UsageError)):
        run(path, one[1])


def test_an_archive_that_ends_too_soon(two_files, one):
    two_files.write_bytes(two_files.read_bytes()[:4000])
    with pytest.raises(SignatureError):
        run(two_files, one[1])


@pytest.mark.parametrize(
    "index", [b"", b"[]", b"{}", b'{"manifests": [1]}', b'{"manifests": []}', b"[" * 100_000, b" " * (5 << 20)]
)
def test_an_index_that_is_none(signed, one, index):
    (signed / "index.json").write_bytes(index)
    with pytest.raises(SignatureError):
        run(signed, one[1])


def test_a_pipe_is_not_waited_for(tmp_path, one):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="neither"):
        run(tmp_path / "pipe", one[1])


def test_a_folder_without_image(tmp_path, one):
    with pytest.raises(UsageError, match="no OCI layout"):
        run(tmp_path, one[1])
    with pytest.raises(UsageError):
        run(tmp_path / "nothing", one[1])


@pytest.mark.parametrize("layers", [None, 1, [1], [{"digest": "sha256:../../etc", "size": 1, "mediaType": "x"}]])
def test_a_signed_manifest_that_describes_no_image(tmp_path, one, layers):
    folder = layouts.write(tmp_path / "image", {"a": b"1"}, manifest={"layers": layers})
    with pytest.raises(SignatureError, match="that no image has"):
        run(sign(folder, one[0]), one[1])


def test_a_signed_manifest_that_lies_about_a_size(tmp_path, one):
    folder = layouts.write(tmp_path / "image", {"a": b"1"})
    layouts.change(folder, lambda manifest, _: manifest["layers"][0].update(size=1))
    with pytest.raises(SignatureError, match="not what its digest says"):
        run(sign(folder, one[0]), one[1])
