"""OCI documents and layouts: config, manifest, index, and the archives made of them (image-spec 1.1)."""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from verlstack import canonical, layer, reading, tar
from verlstack.base.reference import TAG
from verlstack.cache import CHUNK, atomic, sha256_file, storage_errors
from verlstack.content import Inline, OnDisk
from verlstack.errors import LockError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from verlstack.layer import Blob

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
_VARIABLE = re.compile(r"[^=\0\ud800-\udfff]+=[^\0\ud800-\udfff]*")
_LAYOUT = {"imageLayoutVersion": "1.0.0"}
NAME = "verlstack"  # repository name of an image in archives and engines
REF_NAME = "org.opencontainers.image.ref.name"
# Names of what refers to an image: the fallback tag of the distribution specification, and cosign's tags.
_SHORT = len("sha256-") + 12
_ABOUT = re.compile(r"sha256-[0-9a-f]{64}(\.\w+)?")
_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+/-]{0,254}")  # image-spec, "Pre-Defined Annotation Keys", roughly
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")  # the specification allows others, which nobody uses
_MOST = 1 << 24  # bytes of a document; that of cu121 has 20 kB
_MOST_BLOB = 1 << 40  # bytes of a blob


@dataclass(frozen=True, kw_only=True)
class NamedBlob:
    """A layer with the name under which tables, history and people know it."""

    name: str
    blob: Blob


@dataclass(frozen=True, kw_only=True)
class Image:
    """Everything that an image's config and manifest say."""

    layers: tuple[NamedBlob, ...]
    env: tuple[tuple[str, str], ...]
    labels: tuple[tuple[str, str], ...]
    epoch: int
    architecture: str
    working_dir: str
    command: tuple[str, ...]

    @property
    def config(self) -> bytes:
        """The config document; its digest is the image id of classic engines."""
        created = dt.datetime.fromtimestamp(self.epoch, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return canonical.dumps(
            {
                "architecture": self.architecture,
                "config": {
                    "Cmd": list(self.command),
                    "Env": [f"{name}={value}" for name, value in self.env],
                    "Labels": dict(self.labels),
                    "WorkingDir": self.working_dir,
                },
                "created": created,
                "history": [{"created": created, "created_by": f"verlstack: {x.name}"} for x in self.layers],
                "os": "linux",
                "rootfs": {"diff_ids": [x.blob.diff_id for x in self.layers], "type": "layers"},
            }
        )

    @property
    def described(self) -> dict[str, Any]:
        """The descriptor of its manifest."""
        size, digest = len(self.manifest), self.digest
        platform = {"architecture": self.architecture, "os": "linux"}
        return {"digest": digest, "mediaType": MANIFEST, "platform": platform, "size": size}

    @property
    def manifest(self) -> bytes:
        """The manifest document; its digest is the image's digest."""
        config = self.config
        return canonical.dumps(
            {
                "config": {"digest": digest(config), "mediaType": CONFIG, "size": len(config)},
                "layers": [
                    {"digest": x.blob.digest, "mediaType": x.blob.media_type, "size": x.blob.size} for x in self.layers
                ],
                "mediaType": MANIFEST,
                "schemaVersion": 2,
            }
        )

    @property
    def digest(self) -> str:
        """`sha256:…` of the manifest."""
        return digest(self.manifest)

    @property
    def size(self) -> int:
        """Bytes a registry stores for this image."""
        return sum(x.blob.size for x in self.layers) + len(self.config) + len(self.manifest)


def digest(data: bytes) -> str:
    """`sha256:…` of some bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def write_layout(image: Image, folder: Path, *, tag: str, todo: str | None = None) -> None:
    """Write or update an OCI layout; until its last step the folder still holds the previous image, whole.

    Blobs are hard links into the cache where the file system allows, so an image costs its bytes once.

    Args:
        image: what to write; its blobs must have been verified.
        folder: the layout.
        tag: name for `org.opencontainers.image.ref.name`.
        todo: advice for a disk that refuses, where `folder` is not in the cache.

    Raises:
        StorageError: the disk is full, read-only or forbidden.
    """
    blobs = folder / "blobs" / "sha256"
    with storage_errors(folder, todo=todo):
        blobs.mkdir(parents=True, exist_ok=True)
    with storage_errors(folder, todo=todo), _alone(folder):
        for named in image.layers:
            _place(named.blob.path, blobs / named.blob.digest.removeprefix("sha256:"))
        for document in (image.config, image.manifest):
            _write(blobs / digest(document).removeprefix("sha256:"), document, todo)
        _write(folder / "oci-layout", canonical.dumps(_LAYOUT), todo)
        _write(folder / "index.json", _index(image.described, tag), todo)  # from here on the layout holds the new image
        keep = {x.blob.digest for x in image.layers} | {digest(image.config), image.digest}
        # What an earlier image had, and what a killed build left; folders are not ours.
        for path in (*blobs.iterdir(), *folder.glob(".index.json.*"), *folder.glob(".oci-layout.*")):
            if f"sha256:{path.name}" not in keep and path.is_file():
                path.unlink()


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other builds out of a layout: their clean-up would remove our blobs."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _index(described: dict[str, Any], tag: str) -> bytes:
    # containerd (and so `docker load`) names the image by the first annotation, everybody else by the second
    notes = {"io.containerd.image.name": f"docker.io/library/{NAME}:{tag}", REF_NAME: tag}
    return canonical.dumps({"manifests": [{**described, "annotations": notes}], "mediaType": INDEX, "schemaVersion": 2})


def _write(path: Path, data: bytes, todo: str | None) -> None:
    with atomic(path, todo=todo) as f:
        f.write(data)


def _place(source: Path, target: Path) -> None:
    """Hard-link a blob into the layout, or copy it across file systems, atomically."""
    if target.exists() and target.samefile(source):
        return
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        unfinished.unlink()
    try:
        os.link(source, unfinished)
    except OSError:
        with source.open("rb") as f, unfinished.open("wb") as out:
            shutil.copyfileobj(f, out, CHUNK)
            out.flush()
            os.fsync(out.fileno())
    unfinished.replace(target)


def archive(folder: Path, *, tag: str, docker: bool) -> Iterator[bytes]:
    """The one image of a layout as a tar stream: an oci-archive, or, with `docker`, one that engines of any age load.

    Args:
        folder: the layout.
        tag: name of the image in the archive.
        docker: add the `manifest.json` of `docker save`.

    Raises:
        UsageError: there is no image in the layout.
        StorageError: a blob is not what its digest says.
    """
    digest, manifest, config = read_layout(folder)
    index = Inline(data=_index(_entry(folder), tag))  # what else the layout's names would be missing blobs here
    entries = [tar.file("oci-layout", _small(folder / "oci-layout")), tar.file("index.json", index)]
    for descriptor in (manifest["config"], *manifest["layers"]):
        path = folder / blob_path(descriptor["digest"])
        content = OnDisk(path=path, size=descriptor["size"], sha256=path.name)
        entries.append(tar.file(blob_path(descriptor["digest"]), content))
    entries.append(tar.file(blob_path(digest), _small(folder / blob_path(digest))))
    if docker:
        layers = [blob_path(x["digest"]) for x in manifest["layers"]]
        row = {"Config": blob_path(manifest["config"]["digest"]), "Layers": layers, "RepoTags": [f"{NAME}:{tag}"]}
        entries.append(tar.file("manifest.json", Inline(data=canonical.dumps([row]))))
    return layer.stream(layer.arrange(entries), epoch=epoch(config, folder))


def epoch(config: dict[str, Any], folder: Path) -> int:
    """When an image was made, in seconds since 1970.

    Raises:
        LockError: its config does not say.
    """
    try:
        return int(dt.datetime.fromisoformat(config["created"]).timestamp())
    except (KeyError, TypeError, ValueError, OverflowError) as e:
        raise _damaged("the config does not say when the image was made", folder) from e


def _small(path: Path) -> Inline:
    return Inline(data=reading.data(path))


def blob_path(name: str) -> str:
    """Where a layout keeps the blob of a digest."""
    return f"blobs/sha256/{name.removeprefix('sha256:')}"


def read_layout(folder: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """(digest, manifest, config) of the one image in a layout, both documents checked against their digests.

    Every descriptor then has a digest that is one, a size and a media type; config and manifest name as many layers.

    Raises:
        UsageError: the folder holds no layout with one image.
        LockError: a document is not what its digest says, or describes what no image has.
    """
    try:
        name = _entry(folder)["digest"]
        manifest = _document(folder, name)
        config = _document(folder, manifest["config"]["digest"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise _none(folder) from e
    _check_manifest(manifest, folder)
    _check_config(config, len(manifest["layers"]), folder)
    return name, manifest, config


def tag_of(folder: Path) -> str:
    """The name that the layout's index gives its image.

    Raises:
        UsageError: the folder holds no layout with one image, or it has no name.
        LockError: the name is none that the specification allows.
    """
    try:
        tag = str(_entry(folder)["annotations"]["org.opencontainers.image.ref.name"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
        raise _none(folder) from e
    if not _REF.fullmatch(tag):
        raise _damaged("the layout gives its image a name that no image has", folder)
    return tag


def engine_tag(folder: Path) -> str:
    """A tag for an engine: the layout's own name, or the digest's beginning where no engine takes that name for a tag.

    Raises:
        UsageError, LockError: as of `tag_of` and `read_layout`.
    """
    tag = tag_of(folder)
    return tag if TAG.fullmatch(tag) else read_layout(folder)[0].replace(":", "-")[:_SHORT]


def _none(folder: Path) -> UsageError:
    why = "its index.json names none, or several" if (folder / "index.json").exists() else "nothing was built"
    return UsageError(f"no OCI layout with one image here: {why}", where=str(folder), todo="run `make image` first")


def _damaged(what: str, where: Path) -> LockError:
    return LockError(what, where=str(where), todo="delete the folder and build again")


def _entry(folder: Path) -> dict[str, Any]:
    entries = _object(folder / "index.json")["manifests"]
    if not all(isinstance(one, dict) for one in entries):
        raise TypeError("not an object")
    (entry,) = (one for one in entries if not is_about(one))
    return dict(entry)


def is_about(entry: dict[str, Any]) -> bool:
    """Whether an entry of a layout's index is no image, but what refers to one."""
    return bool(_ABOUT.fullmatch(name_in(entry)))


def name_in(entry: dict[str, Any]) -> str:
    """The name that an entry of a layout's index gives what it describes; nothing where it gives none."""
    notes = entry.get("annotations")
    return str(notes.get(REF_NAME, "")) if isinstance(notes, dict) else ""


def _document(folder: Path, name: str) -> dict[str, Any]:
    if not DIGEST.fullmatch(name):
        raise ValueError("not a digest")
    path = folder / blob_path(name)
    if f"sha256:{sha256_file(path)}" != name:
        raise _damaged("a blob is not what its digest says", path)
    return _object(path)


def _object(path: Path) -> dict[str, Any]:
    with reading.opened(path) as f:
        data = f.read(_MOST + 1)
    if len(data) > _MOST:
        raise ValueError("too long")
    document = canonical.loads(data)
    if not isinstance(document, dict):
        raise TypeError("not an object")
    return document


def _check_manifest(manifest: dict[str, Any], folder: Path) -> None:
    """Refuse descriptors that would lead out of the layout, or that nobody can work with."""
    layers = manifest.get("layers")
    if not isinstance(layers, list) or not all(map(is_descriptor, (manifest["config"], *layers))):
        raise _damaged("the manifest describes blobs that no image has", folder)


def is_descriptor(one: object) -> bool:
    """Whether a part of a document describes a blob: digest, size and media type, each of its form."""
    if not isinstance(one, dict):
        return False
    size = one.get("size")
    if type(size) is not int or not 0 <= size < _MOST_BLOB:  # JSON's true would be an int
        return False
    return isinstance(one.get("mediaType"), str) and _is_digest(one.get("digest"))


def _is_digest(one: object) -> bool:
    return isinstance(one, str) and bool(DIGEST.fullmatch(one))


def _is_environment(env: object) -> bool:
    """Whether it is a list of NAME=VALUE that a program can be given."""
    return isinstance(env, list) and all(isinstance(x, str) and _VARIABLE.fullmatch(x) for x in env)


def _check_config(config: dict[str, Any], layers: int, folder: Path) -> None:
    """Refuse a config without the facts that every image has, of the types that they have."""
    inner, root = config.get("config"), config.get("rootfs")
    labels = inner.get("Labels") or {} if isinstance(inner, dict) else None  # docker writes null for none
    diff_ids = root.get("diff_ids") if isinstance(root, dict) else None
    env = inner.get("Env") or [] if isinstance(inner, dict) else None
    if not isinstance(labels, dict) or not isinstance(config.get("architecture"), str) or not _is_environment(env):
        raise _damaged("the config does not say what every image says", folder)
    if not isinstance(diff_ids, list) or len(diff_ids) != layers or not all(map(_is_digest, diff_ids)):
        raise _damaged("manifest and config do not name the same layers", folder)
