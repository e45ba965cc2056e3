"""Images read from a registry by tag and digest, on loopback, and registries that do not give them."""

from __future__ import annotations

import json

import pytest

from support import layouts
from support.fake_registry import OCI_ZSTD, Fake, sha, tarball
from verlstack import closurediff, images, oci, sides
from verlstack.errors import BaseImageError, FetchError, HashMismatchError, LockError, UsageError
from verlstack.progress import Silent

ENV = {"HOME": "/nonexistent"}


@pytest.fixture
def fake():
    with Fake() as registry:
        yield registry


def offer(fake, folder, *layers):
    """Put an image with these layers into the registry; its digest."""
    layouts.write(folder, *layers)
    for path in (folder / "blobs" / "sha256").iterdir():
        fake.put(path.read_bytes())
    return json.loads((folder / "index.json").read_text())["manifests"][0]["digest"]


@pytest.fixture
def image(fake, tmp_path):
    """Digest of an image of two layers; the tag `one` names an index that has it."""
    digest = offer(fake, tmp_path / "made", {"a": b"1"}, {"b": b"2"})
    others = {"digest": sha(b"x"), "platform": {"os": "linux", "architecture": "arm64"}}
    index = {"manifests": [others, {"digest": digest, "platform": {"os": "linux", "architecture": "amd64"}}]}
    fake.index = fake.put(index)
    fake.blobs["one"] = fake.blobs[fake.index]
    return digest


def remote(fake, name, folder):
    image = images.remote(f"{fake.host}/team/base{name}", folder, ENV, offline=False)
    image.client.session.close()
    return image


def test_a_tag_and_a_digest_name_the_same_image(fake, image, tmp_path):
    for number, name in enumerate((":one", f"@{image}", f"@{fake.index}")):
        folder = tmp_path / str(number)
        remote(fake, name, folder)
        assert oci.read_layout(folder)[0] == image
        side = sides.of_layout(folder, name, {}, here=False)
        assert [x.name for x in side.layers] == ["layer 1", "layer 2"]  # no history tells
        described = json.loads(fake.blobs[image])["config"]["digest"]
        assert side.documents == len(fake.blobs[image]) + len(fake.blobs[described])
    assert not [path for path, _ in fake.requests if any(layer.digest in path for layer in side.layers)]


def test_its_layers_are_verified(fake, image, tmp_path):
    found = images.remote(f"{fake.host}/team/base:one", tmp_path / "a", ENV, offline=False)
    with found.client:
        images.check_blobs(images.download(found, Silent()), 2)
    digest = json.loads(fake.blobs[image])["layers"][1]["digest"]
    fake.blobs[digest] = bytes(len(fake.blobs[digest]))
    found = images.remote(f"{fake.host}/team/base:one", tmp_path / "b", ENV, offline=False)
    with found.client, pytest.raises(HashMismatchError):
        images.download(found, Silent())


def test_layers_in_a_layout_are_hashed(fake, image, tmp_path):
    blob = tmp_path / "made" / oci.blob_path(json.loads(fake.blobs[image])["layers"][0]["digest"])
    images.check_blobs(tmp_path / "made", 2)
    data = blob.read_bytes()
    for wrong in (data[:-1], bytes([data[0] ^ 1]) + data[1:]):
        blob.write_bytes(wrong)
        with pytest.raises(LockError, match="not what its digest says"):
            images.check_blobs(tmp_path / "made", 2)
    blob.unlink()
    with pytest.raises(LockError, match="missing"):
        images.check_blobs(tmp_path / "made", 2)


def test_somebody_elses_images_are_compared_by_layers(fake, image, tmp_path):
    other = offer(fake, tmp_path / "other", {"a": b"1"}, {"b": b"3"})
    remote(fake, ":one", tmp_path / "a")
    remote(fake, f"@{other}", tmp_path / "b")
    found = closurediff.compare(*(sides.of_layout(tmp_path / x, x, {}, here=False) for x in "ab"))
    assert [x.name for x in found.layers] == ["layer 2"]
    assert found.packages is None
    assert "not known" in found.notes[0]


def test_what_the_registry_lacks(fake, image, tmp_path):
    with pytest.raises(FetchError, match="404"):
        remote(fake, ":two", tmp_path / "a")
    with pytest.raises(FetchError, match="404"):
        remote(fake, f"@sha256:{'1' * 64}", tmp_path / "b")


def test_other_bytes_than_asked_for(fake, image, tmp_path):
    fake.blobs[image] += b" "
    with pytest.raises(HashMismatchError):
        remote(fake, f"@{image}", tmp_path / "a")


def test_no_image_for_this_platform(fake, tmp_path):
    ref = fake.image([(OCI_ZSTD, tarball(a=b"1"))], platforms=("arm64",))
    with pytest.raises(BaseImageError, match="linux/amd64"):
        remote(fake, f"@{ref.digest}", tmp_path / "a")


@pytest.mark.parametrize(
    "config", [{}, {"digest": "../../etc/passwd"}, {"digest": f"sha256:{'../' * 20}0000", "size": 1}, None, "x"]
)
def test_a_manifest_that_describes_no_image(fake, tmp_path, config):
    digest = fake.put({"schemaVersion": 2, "config": config, "layers": []})
    with pytest.raises((BaseImageError, LockError)):
        remote(fake, f"@{digest}", tmp_path / "a")
    assert not (tmp_path / "etc").exists()


def test_layers_that_would_lead_out_of_the_layout(fake, tmp_path):
    config = fake.put({"architecture": "amd64", "config": {}, "rootfs": {"diff_ids": [sha(b"")]}})
    layer = {"digest": "sha256:../../../x", "size": 1, "mediaType": OCI_ZSTD}
    described = {"digest": config, "size": 1, "mediaType": oci.CONFIG}
    digest = fake.put({"schemaVersion": 2, "config": described, "layers": [layer]})
    with pytest.raises(LockError):
        remote(fake, f"@{digest}", tmp_path / "a")


@pytest.mark.parametrize("name", ["word", "host.example/team/base", "host.example:5000/team/base", "../x", ""])
def test_what_is_no_reference(name, tmp_path):
    with pytest.raises(UsageError):
        images.remote(name, tmp_path / "a", ENV, offline=False)


def test_offline_no_registry_is_asked(fake, tmp_path):
    with pytest.raises(FetchError, match="--offline"):
        images.remote(f"{fake.host}/team/base:one", tmp_path / "a", ENV, offline=True)
    assert fake.requests == []
