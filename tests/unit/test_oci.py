"""OCI documents and layouts: golden digests, and a folder that always holds one whole image."""

import errno
import hashlib
import io
import json
import os
import tarfile

import pytest

from support import layouts
from verlstack import canonical, oci
from verlstack.errors import LockError, StorageError, UsageError
from verlstack.layer import MEDIA_TYPES, Blob
from verlstack.oci import Image, NamedBlob

EPOCH = 1_741_046_400


def blob(folder, data):
    """A finished layer; nobody here looks into it."""
    folder.mkdir(exist_ok=True)
    digest = hashlib.sha256(data).hexdigest()
    path = folder / digest
    path.write_bytes(data)
    return Blob(
        path=path,
        digest=f"sha256:{digest}",
        diff_id=f"sha256:{hashlib.sha256(b'raw' + data).hexdigest()}",
        size=len(data),
        raw_size=3 + len(data),
        media_type=MEDIA_TYPES["zstd"],
    )


def image(folder, *data, **changes):
    fields = {
        "layers": tuple(
            NamedBlob(name=f"layer {n}", blob=blob(folder, d)) for n, d in enumerate(data or (b"one", b"two"))
        ),
        "env": (("LANG", "C.UTF-8"), ("PATH", "/opt/verl/bin:/bin")),
        "labels": (("dev.verlstack.stack", "demo"),),
        "epoch": EPOCH,
        "architecture": "amd64",
        "working_dir": "/",
        "command": ("bash",),
    }
    return Image(**fields | changes)


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_documents(tmp_path):
    made = image(tmp_path)
    config, manifest = json.loads(made.config), json.loads(made.manifest)
    assert config["created"] == "2025-03-04T00:00:00Z"
    assert config["rootfs"] == {"type": "layers", "diff_ids": [x.blob.diff_id for x in made.layers]}
    assert config["config"] == {
        "Cmd": ["bash"],
        "Env": ["LANG=C.UTF-8", "PATH=/opt/verl/bin:/bin"],
        "Labels": {"dev.verlstack.stack": "demo"},
        "WorkingDir": "/",
    }
    assert [h["created_by"] for h in config["history"]] == ["verlstack: layer 0", "verlstack: layer 1"]
    assert len(config["history"]) == len(config["rootfs"]["diff_ids"])
    assert (config["os"], config["architecture"]) == ("linux", "amd64")
    assert manifest["schemaVersion"] == 2
    assert manifest["config"]["digest"] == oci.digest(made.config)
    assert manifest["config"]["size"] == len(made.config)
    assert [x["size"] for x in manifest["layers"]] == [3, 3]
    assert made.digest == oci.digest(made.manifest)
    assert made.size == 6 + len(made.config) + len(made.manifest)


def test_the_known_digest_of_a_small_image(tmp_path):
    """Whoever changes this changes every image's digest, and so `format` in the lock."""
    assert image(tmp_path).digest == "sha256:0bdb4aa08365d06b538a1b9ecacf95cee20036279aaf80b4754f6b82b934fe17"


def test_documents_are_canonical(tmp_path):
    made = image(tmp_path)
    for document in (made.config, made.manifest):
        assert canonical.dumps(json.loads(document)) == document


def test_anything_said_changes_the_digest(tmp_path):
    variants = [
        image(tmp_path),
        image(tmp_path, b"one"),
        image(tmp_path, b"two", b"one"),
        image(tmp_path, env=()),
        image(tmp_path, labels=()),
        image(tmp_path, epoch=0),
        image(tmp_path, architecture="arm64"),
        image(tmp_path, working_dir="/root"),
        image(tmp_path, command=("sh",)),
    ]
    assert len({made.digest for made in variants}) == len(variants)


# -- layouts


def test_a_layout_is_complete(tmp_path):
    made = image(tmp_path / "cache")
    oci.write_layout(made, tmp_path / "dist", tag="demo")
    found = files(tmp_path / "dist")
    digests = [made.digest, oci.digest(made.config), *(x.blob.digest for x in made.layers)]
    assert set(found) == {"oci-layout", "index.json", *(oci.blob_path(d) for d in digests)}
    assert found["oci-layout"] == b'{"imageLayoutVersion":"1.0.0"}'
    (entry,) = json.loads(found["index.json"])["manifests"]
    assert (entry["digest"], entry["size"]) == (made.digest, len(made.manifest))
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == "demo" == oci.tag_of(tmp_path / "dist")
    for name, data in found.items():
        if name.startswith("blobs/"):
            assert hashlib.sha256(data).hexdigest() == name.rpartition("/")[2]


def test_a_layout_is_read_back(tmp_path):
    made = image(tmp_path / "cache")
    oci.write_layout(made, tmp_path / "dist", tag="demo")
    digest, manifest, config = oci.read_layout(tmp_path / "dist")
    assert digest == made.digest
    assert canonical.dumps(manifest) == made.manifest
    assert canonical.dumps(config) == made.config


def test_blobs_cost_their_bytes_once(tmp_path):
    made = image(tmp_path / "cache")
    oci.write_layout(made, tmp_path / "dist", tag="demo")
    for named in made.layers:
        assert (tmp_path / "dist" / oci.blob_path(named.blob.digest)).samefile(named.blob.path)


def test_writing_again_changes_nothing(tmp_path):
    made = image(tmp_path / "cache")
    oci.write_layout(made, tmp_path / "dist", tag="demo")
    before = files(tmp_path / "dist")
    oci.write_layout(made, tmp_path / "dist", tag="demo")
    assert files(tmp_path / "dist") == before


def test_blobs_of_the_old_image_are_removed(tmp_path):
    old, new = image(tmp_path / "cache", b"one", b"two"), image(tmp_path / "cache", b"one", b"three")
    oci.write_layout(old, tmp_path / "dist", tag="demo")
    oci.write_layout(new, tmp_path / "dist", tag="demo")
    oci.write_layout(new, tmp_path / "fresh", tag="demo")
    assert files(tmp_path / "dist") == files(tmp_path / "fresh")
    assert old.layers[1].blob.path.read_bytes() == b"two"  # the cache keeps its own link


def test_leftovers_of_a_killed_build_are_removed(tmp_path):
    made = image(tmp_path / "cache")
    oci.write_layout(made, tmp_path / "dist", tag="demo")
    before = files(tmp_path / "dist")
    (tmp_path / "dist/blobs/sha256/.half.123").write_bytes(b"x")
    oci.write_layout(made, tmp_path / "dist", tag="demo")
    assert files(tmp_path / "dist") == before


def whole(folder, made):
    digest, manifest, _ = oci.read_layout(folder)
    assert digest == made.digest
    for x in manifest["layers"]:
        assert oci.digest((folder / oci.blob_path(x["digest"])).read_bytes()) == x["digest"]


def cross_device(*_):
    raise OSError(errno.EXDEV, "Invalid cross-device link")


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("step", range(8))
def test_until_the_last_step_the_old_image_is_whole(tmp_path, monkeypatch, step, copied):
    """The n-th rename fails, as if killed there: 2 blobs, config, manifest, oci-layout, index.json."""
    if copied:
        monkeypatch.setattr(os, "link", cross_device)  # so that the blob which both share is written anew
    old, new = image(tmp_path / "cache", b"one", b"two"), image(tmp_path / "cache", b"four", b"two")
    oci.write_layout(old, tmp_path / "dist", tag="demo")
    calls = iter(range(100))
    real = type(tmp_path).replace

    def replace(path, target):
        if next(calls) == step:
            raise KeyboardInterrupt
        return real(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(type(tmp_path), "replace", replace)
        try:
            oci.write_layout(new, tmp_path / "dist", tag="demo")
        except KeyboardInterrupt:
            whole(tmp_path / "dist", old)
        else:
            assert step >= (6 if copied else 5)
    oci.write_layout(new, tmp_path / "dist", tag="demo")
    whole(tmp_path / "dist", new)
    assert len(files(tmp_path / "dist")) == 6


def test_another_file_system(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", cross_device)
    made = image(tmp_path / "cache")
    for _ in range(2):
        oci.write_layout(made, tmp_path / "dist", tag="demo")
    whole(tmp_path / "dist", made)
    path = tmp_path / "dist" / oci.blob_path(made.layers[0].blob.digest)
    assert not path.samefile(made.layers[0].blob.path)
    assert len(files(tmp_path / "dist")) == 6


@pytest.mark.parametrize(
    ("code", "says"), [(errno.ENOSPC, "no space left"), (errno.EROFS, "read-only"), (errno.EACCES, "permission")]
)
def test_a_disk_that_refuses(tmp_path, monkeypatch, code, says):
    def refuse(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr("verlstack.oci.shutil.copyfileobj", refuse)
    with pytest.raises(StorageError, match=says) as e:
        oci.write_layout(image(tmp_path / "cache"), tmp_path / "dist", tag="demo", todo="choose another")
    assert e.value.todo == "choose another"


def test_a_disk_that_refuses_the_last_document(tmp_path, monkeypatch):
    def refuse(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("verlstack.cache.os.fsync", refuse)
    with pytest.raises(StorageError, match="no space left") as e:
        oci.write_layout(image(tmp_path / "cache"), tmp_path / "dist", tag="demo", todo="choose another")
    assert e.value.todo == "choose another"


# -- archives


def packed(folder, **kwargs):
    data = b"".join(oci.archive(folder, tag="demo", **kwargs))
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as t:
        return data, {m.name: t.extractfile(m).read() for m in t if m.isfile()}, {m.mtime for m in t}


def test_an_oci_archive_holds_the_layout(tmp_path):
    oci.write_layout(image(tmp_path / "cache"), tmp_path / "dist", tag="demo")
    data, found, times = packed(tmp_path / "dist", docker=False)
    assert found == files(tmp_path / "dist")
    assert times == {EPOCH}
    assert packed(tmp_path / "dist", docker=False)[0] == data


def test_a_docker_archive_has_its_own_table_besides(tmp_path):
    made = image(tmp_path / "cache")
    oci.write_layout(made, tmp_path / "dist", tag="demo")
    _, found, _ = packed(tmp_path / "dist", docker=True)
    (row,) = json.loads(found.pop("manifest.json"))
    assert found == files(tmp_path / "dist")
    assert row["RepoTags"] == ["verlstack:demo"]
    assert row["Config"] == oci.blob_path(oci.digest(made.config))
    assert row["Layers"] == [oci.blob_path(x.blob.digest) for x in made.layers]


def test_an_image_that_was_mirrored_by_its_digest(tmp_path):
    """Its name is a digest, which no engine takes for a tag; what refers to it is not in an archive."""
    made = image(tmp_path / "cache")
    oci.write_layout(made, tmp_path / "dist", tag="demo")
    digest = made.digest
    assert oci.engine_tag(tmp_path / "dist") == "demo"
    index = json.loads((tmp_path / "dist" / "index.json").read_text())
    index["manifests"][0]["annotations"] = {oci.REF_NAME: digest}
    notes = {oci.REF_NAME: f"sha256-{'1' * 64}.sig"}
    index["manifests"].append(
        {"digest": f"sha256:{'1' * 64}", "mediaType": oci.MANIFEST, "size": 1, "annotations": notes}
    )
    (tmp_path / "dist" / "index.json").write_text(json.dumps(index))
    tag = oci.engine_tag(tmp_path / "dist")
    assert tag == f"sha256-{digest[7:19]}"
    data = b"".join(oci.archive(tmp_path / "dist", tag=tag, docker=True))
    with tarfile.open(fileobj=io.BytesIO(data)) as t:
        (entry,) = json.load(t.extractfile("index.json"))["manifests"]
        (row,) = json.load(t.extractfile("manifest.json"))
    assert entry["annotations"][oci.REF_NAME] == tag
    assert row["RepoTags"] == [f"verlstack:{tag}"]


def test_the_same_layer_twice_is_packed_once(tmp_path):
    oci.write_layout(image(tmp_path / "cache", b"one", b"one"), tmp_path / "dist", tag="demo")
    _, found, _ = packed(tmp_path / "dist", docker=True)
    assert len(json.loads(found["manifest.json"])[0]["Layers"]) == 2


def test_a_damaged_blob_is_not_packed(tmp_path):
    made = image(tmp_path / "cache")
    oci.write_layout(made, tmp_path / "dist", tag="demo")
    path = tmp_path / "dist" / oci.blob_path(made.layers[0].blob.digest)
    path.unlink()
    path.write_bytes(b"0ne")
    with pytest.raises(StorageError, match="changed"):
        packed(tmp_path / "dist", docker=False)


# -- garbage

GARBAGE = [
    None, b"", b"{", b"[]", b"null", b"3", b"{}", b"\xff", b'{"manifests": []}', b'{"manifests": [{}]}',
    b'{"manifests": 3}',
    b'{"manifests": [{"digest": "sha256:00"}]}', b'{"manifests": [{"digest": "sha256:../../../etc/passwd"}, {}]}',
]  # fmt: skip


@pytest.mark.parametrize("index", GARBAGE)
def test_no_layout(tmp_path, index):
    if index is not None:
        (tmp_path / "index.json").write_bytes(index)
    with pytest.raises(UsageError, match="no OCI layout with one image here") as e:
        oci.read_layout(tmp_path)
    assert (e.value.where, "make image" in e.value.todo) == (str(tmp_path), True)
    assert e.value.what.endswith("nothing was built" if index is None else "names none, or several")


@pytest.mark.parametrize("document", [b"[]", b"3", b"{", b"{}", b'{"config": {}}', b'{"config": 3}'])
def test_a_manifest_that_is_none(tmp_path, document):
    (tmp_path / "blobs/sha256").mkdir(parents=True)
    (tmp_path / oci.blob_path(oci.digest(document))).write_bytes(document)
    (tmp_path / "index.json").write_bytes(canonical.dumps({"manifests": [{"digest": oci.digest(document)}]}))
    with pytest.raises(UsageError, match="no OCI layout"):
        oci.read_layout(tmp_path)


@pytest.mark.parametrize("which", ["manifest", "config"])
def test_a_document_that_was_changed(tmp_path, which):
    made = image(tmp_path / "cache")
    oci.write_layout(made, tmp_path / "dist", tag="demo")
    path = tmp_path / "dist" / oci.blob_path(oci.digest(getattr(made, which)))
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(LockError, match="a blob is not what its digest says") as e:
        oci.read_layout(tmp_path / "dist")
    assert e.value.where == str(path)


OUTSIDE = "sha256:../../../victim"


def of_layer(**changes):
    return lambda manifest, config: manifest["layers"][0].update(changes)


def of_config(**changes):
    return lambda manifest, config: config.update(changes)


@pytest.mark.parametrize(
    "change",
    [
        *(of_layer(digest=x) for x in (OUTSIDE, None, 3, "sha256:" + "A" * 64, "sha512:" + "a" * 128)),
        *(of_layer(size=x) for x in ("a", None, True, -1, 1 << 40, 1.5)),
        *(of_layer(mediaType=x) for x in (None, 3)),
        *(lambda manifest, config, x=x: manifest.update(layers=x) for x in (None, {}, "ab", [None], [3])),
        lambda manifest, config: manifest["config"].update(size="a"),
        lambda manifest, config: config["rootfs"]["diff_ids"].pop(),
        *(of_config(rootfs=x) for x in (None, {}, {"diff_ids": None}, {"diff_ids": ["x", "y"]})),
        *(of_config(config=x) for x in (None, [], {"Labels": "x"})),
        *(of_config(config={"Env": x}) for x in ("A=1", {"A": "1"}, [1], [None], ["NOEQUALS"], ["=1"], 3)),
        *(of_config(config={"Env": [x]}) for x in ("A=\0", "A\0=1")),
        of_config(architecture=None),
    ],
)
def test_what_no_image_says(tmp_path, change):
    oci.write_layout(image(tmp_path / "cache"), tmp_path / "dist", tag="demo")
    layouts.change(tmp_path / "dist", change)
    with pytest.raises(LockError) as e:
        oci.read_layout(tmp_path / "dist")
    assert e.value.where == str(tmp_path / "dist")


@pytest.mark.parametrize("inner", [{"Env": ["A=\ud800"]}, {"Labels": {"a": "\ud800"}}, {"a": float("inf")}])
def test_what_could_not_be_written_again_is_not_read(tmp_path, inner):
    oci.write_layout(image(tmp_path / "cache"), tmp_path / "dist", tag="demo")
    layouts.change(tmp_path / "dist", of_config(config=inner))
    with pytest.raises(UsageError, match="no OCI layout"):
        oci.read_layout(tmp_path / "dist")


@pytest.mark.parametrize("inner", [{}, {"Env": None}, {"Env": []}, {"Env": ["A=", "B=a=b\n"]}])
def test_an_image_may_set_nothing(tmp_path, inner):
    oci.write_layout(image(tmp_path / "cache"), tmp_path / "dist", tag="demo")
    layouts.change(tmp_path / "dist", of_config(config=inner))
    assert oci.read_layout(tmp_path / "dist")[2]["config"] == inner


@pytest.mark.parametrize("tag", ["\x1b[2J", "a b", "a\n", "", "-x", "\u202ea", "x" * 300])
def test_a_name_that_no_image_has(tmp_path, tag):
    oci.write_layout(image(tmp_path / "cache"), tmp_path / "dist", tag=tag)
    with pytest.raises(LockError, match="a name that no image has"):
        oci.tag_of(tmp_path / "dist")


@pytest.mark.parametrize("which", ["manifest", "config"])
def test_a_document_outside_the_layout(tmp_path, which):
    (tmp_path / "victim").write_bytes(b"{}")
    oci.write_layout(image(tmp_path / "cache"), tmp_path / "dist", tag="demo")
    if which == "manifest":
        (tmp_path / "dist/index.json").write_bytes(canonical.dumps({"manifests": [{"digest": OUTSIDE}]}))
    else:
        layouts.change(tmp_path / "dist", lambda manifest, config: manifest["config"].update(digest=OUTSIDE))
    with pytest.raises(UsageError, match="no OCI layout"):
        oci.read_layout(tmp_path / "dist")


@pytest.mark.parametrize("created", [None, 3, "yesterday"])
def test_an_image_of_no_time_is_not_packed(tmp_path, created):
    oci.write_layout(image(tmp_path / "cache"), tmp_path / "dist", tag="demo")
    layouts.change(tmp_path / "dist", of_config(created=created))
    with pytest.raises(LockError, match="when the image was made"):
        packed(tmp_path / "dist", docker=False)


@pytest.mark.parametrize("index", [*GARBAGE, b'{"manifests": [{"annotations": null}]}', b'{"manifests": [3]}'])
def test_an_image_without_a_name(tmp_path, index):
    if index is not None:
        (tmp_path / "index.json").write_bytes(index)
    with pytest.raises(UsageError):
        oci.tag_of(tmp_path)


def test_an_index_that_would_fill_the_stack(tmp_path):
    (tmp_path / "index.json").write_bytes(b"[" * 100_000)
    with pytest.raises(UsageError):
        oci.read_layout(tmp_path)


def test_an_index_that_would_fill_the_memory(tmp_path, monkeypatch):
    oci.write_layout(image(tmp_path / "cache"), tmp_path / "dist", tag="demo")
    monkeypatch.setattr(oci, "_MOST", (tmp_path / "dist/index.json").stat().st_size - 1)
    with pytest.raises(UsageError):
        oci.tag_of(tmp_path / "dist")


def test_a_digest_that_is_no_string(tmp_path):
    (tmp_path / "index.json").write_bytes(b'{"manifests": [{"digest": 3}]}')
    with pytest.raises(UsageError):
        oci.read_layout(tmp_path)


def test_a_folder_among_the_blobs(tmp_path):
    (tmp_path / "dist/blobs/sha256/mine").mkdir(parents=True)
    oci.write_layout(image(tmp_path / "cache"), tmp_path / "dist", tag="demo")


def test_leftovers_beside_the_index(tmp_path):
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist/.index.json.abcdef").write_bytes(b"{")
    oci.write_layout(image(tmp_path / "cache"), tmp_path / "dist", tag="demo")
    assert len(files(tmp_path / "dist")) == 6
