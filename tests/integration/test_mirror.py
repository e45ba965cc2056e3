"""Images with all that refers to them, from registry to registry and over an air gap."""

from __future__ import annotations

import errno
import json
import os

import pytest

from support.fake_registry import OCI_MANIFEST
from support.published import LAYERS, TAG, image
from support.referred import source, statement, writer
from support.writable_registry import Fault
from verlstack import images, mirror, oci
from verlstack.errors import FetchError, HashMismatchError, PublishError, StorageError, UsageError


def check(place, digest, tag):
    """Everything is there, and every blob of it right."""
    with writer(place) as client:
        assert client.resolve(tag) == digest
        assert client.resolve(f"{digest.replace(':', '-')}.sig")
        rows = client.referrers(digest)
        assert len(rows) == 2
        inner = [x for row in rows for x in client.referrers(row["digest"])]
        assert len(inner) == 1
        for row in (*rows, *inner, {"digest": digest}):
            manifest = client.manifest(row["digest"])
            for part in (manifest["config"], *manifest["layers"]):
                client.raw("blobs", part["digest"])


@pytest.mark.parametrize("api", [True, False])
def test_from_registry_to_registry(fakes, shop, tmp_path, api):
    """With the referrers API on one side alone, too."""
    one, other = fakes
    one.has_referrers, other.has_referrers = api, not api
    digest = source(f"{one.host}/team/base", tmp_path, shop)
    target = f"{other.host}/team/base:here"
    done = mirror.mirror(
        f"{one.host}/team/base:{TAG}", target, shop, dist=tmp_path, insecure=True
    )  # fmt: skip
    assert (done.digest, done.referrers) == (digest, 3)
    check(f"{other.host}/team/base", digest, "here")
    assert other.order[-1] == "here", "the name comes last"
    again = mirror.mirror(f"{one.host}/team/base@{digest}", target, shop, dist=tmp_path, insecure=True)
    assert (again.blobs.pushed, again.blobs.sent) == (0, 0)
    assert list((tmp_path / "cache" / "parts").iterdir()) == []


def test_over_an_air_gap_and_back(fakes, real, shop, tmp_path):
    """Debian's registry has no referrers API; the folder is read by skopeo, too."""
    digest = source(f"{real.host}/team/verl", tmp_path, shop)
    folder = tmp_path / "carried"
    words = {"dist": tmp_path, "insecure": True}
    done = mirror.mirror(f"{real.host}/team/verl:{TAG}", str(folder), shop, **words)
    assert done.referrers == 3
    assert (oci.read_layout(folder)[0], oci.tag_of(folder)) == (digest, TAG)
    images.check_blobs(folder, 1)
    before = sorted((path, path.read_bytes()) for path in folder.rglob("*") if path.is_file())
    mirror.mirror(f"{real.host}/team/verl:{TAG}", str(folder), shop, **words)
    assert sorted((path, path.read_bytes()) for path in folder.rglob("*") if path.is_file()) == before
    mirror.mirror(str(folder), f"{fakes[0].host}/team/base:{TAG}", shop, **words)
    check(f"{fakes[0].host}/team/base", digest, TAG)


def test_within_one_registry_nothing_is_sent(real, shop, tmp_path):
    digest = source(f"{real.host}/team/verl", tmp_path, shop)
    target = f"{real.host}/mirror/verl:{TAG}"
    done = mirror.mirror(f"{real.host}/team/verl@{digest}", target, shop, dist=tmp_path, insecure=True)
    assert (done.blobs.pushed, done.blobs.sent) == (0, 0)
    assert done.blobs.mounted > 6
    check(f"{real.host}/mirror/verl", digest, TAG)


def test_an_index_comes_whole(fakes, shop, tmp_path):
    one, other = fakes
    members = []
    for number in range(2):
        folder = image(tmp_path / str(number), LAYERS | {"smoke": {"a": str(number).encode()}})
        for path in (folder / "blobs/sha256").iterdir():
            one.put(path.read_bytes())
        digest = oci.read_layout(folder)[0]
        members.append({"digest": digest, "mediaType": OCI_MANIFEST, "size": len(one.blobs[digest])})
    index = one.put({"schemaVersion": 2, "mediaType": oci.INDEX, "manifests": members})
    mirror.mirror(f"{one.host}/team/base@{index}", f"{other.host}/team/base", shop, dist=tmp_path, insecure=True)
    assert set(one.blobs) == set(other.blobs)
    assert other.tags == {}


def test_a_base_may_go_where_an_image_on_a_local_one_may_not(fakes, shop, tmp_path):
    local = {"dev.verlstack.base.scope": "local"}
    base = image(tmp_path / "base", labels=local | {"dev.verlstack.stack": None, "dev.verlstack.lock": None})
    place = f"{fakes[0].host}/team/base:base"
    (base / "index.json").write_text(named(base, "base-cu121"))
    mirror.mirror(str(base), place, shop, dist=tmp_path, insecure=True)
    folder = image(tmp_path / "image", labels=local)
    with pytest.raises(PublishError, match="local"):
        mirror.mirror(str(folder), place, shop, dist=tmp_path, insecure=True)


def named(folder, name):
    index = json.loads((folder / "index.json").read_text())
    index["manifests"][0]["annotations"] = {oci.REF_NAME: name}
    return json.dumps(index)


def test_an_immutable_tag_does_not_move(fakes, shop, tmp_path):
    one, other = fakes
    digest = source(f"{one.host}/team/base", tmp_path, shop)
    theirs = other.put({"schemaVersion": 2, "layers": []})
    other.tags = {TAG: theirs, "stable": theirs}
    origin = f"{one.host}/team/base:{TAG}"
    with pytest.raises(PublishError, match="never moves"):
        mirror.mirror(origin, f"{other.host}/team/base:{TAG}", shop, dist=tmp_path, insecure=True)
    mirror.mirror(origin, f"{other.host}/team/base:stable", shop, dist=tmp_path, insecure=True)
    assert other.tags["stable"] == digest
    assert other.tags[TAG] == theirs


def test_what_lies_is_not_mirrored(fakes, shop, tmp_path):
    one, other = fakes
    digest = source(f"{one.host}/team/base", tmp_path, shop)
    words = (f"{one.host}/team/base:{TAG}", f"{other.host}/team/base:here", shop)
    layer = json.loads(one.blobs[digest])["layers"][0]["digest"]
    sound = one.blobs[layer]
    one.blobs[layer] = bytes(len(sound))
    with pytest.raises(HashMismatchError):
        mirror.mirror(*words, dist=tmp_path, insecure=True)
    one.blobs[layer] = sound
    stranger, _ = statement(f"sha256:{'0' * 64}", 9)
    row = {"digest": one.put(stranger), "mediaType": OCI_MANIFEST, "size": len(stranger)}
    one.referring[digest].append(row)
    with pytest.raises(FetchError, match="does not"):
        mirror.mirror(*words, dist=tmp_path, insecure=True)
    one.referring[digest].pop()
    one.planted.append(Fault(method="GET", path=f"/manifests/{digest}", status=200, body=b'{"config": 1}'))
    with pytest.raises(HashMismatchError):
        mirror.mirror(f"{one.host}/team/base@{digest}", words[1], shop, dist=tmp_path, insecure=True)
    assert other.tags == {}
    mirror.mirror(*words, dist=tmp_path, insecure=True)
    check(f"{other.host}/team/base", digest, "here")


@pytest.mark.parametrize("document", [{"config": 1}, {"layers": [1]}, {"layers": 1}, {"manifests": [{}]}, None])
def test_a_manifest_that_describes_nothing(fakes, shop, tmp_path, document):
    one, other = fakes
    digest = one.put(document or b"[]")
    with pytest.raises(FetchError):
        mirror.mirror(f"{one.host}/team/base@{digest}", f"{other.host}/team/base", shop, dist=tmp_path, insecure=True)


@pytest.mark.parametrize("target", ["reg.io/x@sha256:" + "1" * 64, "nowhere"])
def test_targets_that_are_none(fakes, shop, tmp_path, target):
    source(f"{fakes[0].host}/team/base", tmp_path, shop)
    with pytest.raises(UsageError):
        mirror.mirror(f"{fakes[0].host}/team/base:{TAG}", target, shop, dist=tmp_path, insecure=True)


def test_a_folder_holds_one_image(fakes, shop, tmp_path):
    source(f"{fakes[0].host}/team/base", tmp_path, shop)
    folder = tmp_path / "carried"
    mirror.mirror(f"{fakes[0].host}/team/base:{TAG}", str(folder), shop, dist=tmp_path, insecure=True)
    fakes[0].tags["other"] = fakes[0].tags[TAG]
    with pytest.raises(UsageError, match="another image"):
        mirror.mirror(f"{fakes[0].host}/team/base:other", str(folder), shop, dist=tmp_path, insecure=True)
    with pytest.raises(UsageError, match="names no image"):
        mirror.mirror(f"{fakes[0].host}/team/base", str(folder), shop, dist=tmp_path, insecure=True)


def test_a_layout_with_a_pipe_for_a_layer_is_not_waited_for(fakes, shop, tmp_path):
    folder = image(tmp_path / "image")
    (folder / "index.json").write_text(named(folder, "x"))
    path = folder / oci.blob_path(oci.read_layout(folder)[1]["layers"][0]["digest"])
    path.unlink()
    os.mkfifo(path)
    for target in (f"{fakes[0].host}/team/base", str(tmp_path / "other")):
        with pytest.raises(OSError, match="no regular file"):
            mirror.mirror(str(folder), target, shop, dist=tmp_path, insecure=True)


def test_a_folder_that_is_full_is_named_and_not_the_cache(fakes, shop, tmp_path, monkeypatch):
    source(f"{fakes[0].host}/team/base", tmp_path, shop)

    def full(handle):
        raise OSError(errno.ENOSPC, "as fsync says it")

    monkeypatch.setattr("verlstack.cache.os.fsync", full)
    folder = tmp_path / "carried"
    with pytest.raises(StorageError, match="no space left") as e:
        mirror.mirror(f"{fakes[0].host}/team/base:{TAG}", str(folder), shop, dist=tmp_path, insecure=True)
    assert e.value.where.startswith(f"{folder}/")
    assert e.value.todo == "see that this folder can be written and has space, or name another"


def test_a_folder_whose_index_could_not_be_written_again(fakes, shop, tmp_path):
    digest = source(f"{fakes[0].host}/team/base", tmp_path, shop)
    (tmp_path / "carried").mkdir()
    row = {"digest": digest, "mediaType": OCI_MANIFEST, "size": 1, "annotations": {"a": "\ud800"}}
    (tmp_path / "carried" / "index.json").write_text(json.dumps({"manifests": [row]}))
    with pytest.raises(UsageError, match="not an OCI layout"):
        mirror.mirror(f"{fakes[0].host}/team/base:{TAG}", str(tmp_path / "carried"), shop, dist=tmp_path, insecure=True)
