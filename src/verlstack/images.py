"""An image wherever it lies, as a layout: a folder, a digest among the built ones, or pulled from a registry."""

from __future__ import annotations

import dataclasses
import re
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verlstack import canonical, oci, told
from verlstack.base import reference, registry
from verlstack.cache import atomic, sha256_file, storage_errors
from verlstack.errors import BaseImageError, FetchError, LockError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from verlstack.progress import Progress

_NAME = "verlstack: "  # before a layer's name in our history
_STREAMS = 4  # layers at once, as for bases
FORMS = "a stack, a folder with a layout, sha256:… of one in dist, or HOST/REPOSITORY:TAG or @sha256:… in a registry"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remote:
    """An image in a registry whose documents were read.

    Attributes:
        client: to read its layers with.
        layout: holds index, manifest and config, and the layers once `download` was called.
    """

    client: registry.Client
    layout: Path


def find(text: str, dist: Path) -> Path | None:
    """The layout that a user means: a folder, a name in `dist`, or `sha256:…` of an image there; None if neither.

    Raises:
        UsageError: a digest that no image in `dist` has, or a part of one.
    """
    for folder in (Path(text), dist / text):
        if (folder / "oci-layout").is_file():
            return folder.absolute()
    reference.check_whole(text)
    if not oci.DIGEST.fullmatch(text):
        return None
    if (found := of_digest(text, dist)) is None:
        what = f"no image in {dist} has the digest {text}"
        raise UsageError(what, todo="give its registry and repository too: HOST/REPOSITORY@sha256:…")
    return found


def of_digest(digest: str, dist: Path) -> Path | None:
    """The layout below `dist` that holds the image of a digest."""
    for index in sorted(dist.glob("*/index.json")):
        try:
            if oci.read_layout(index.parent)[0] == digest:
                return index.parent
        except (UsageError, LockError):
            continue  # somebody else's folder, or a damaged one
    return None


def remote(text: str, folder: Path, env: Mapping[str, str], *, offline: bool) -> Remote:
    """Read an image's documents from a registry into a layout without layers.

    Args:
        text: `HOST/REPOSITORY:TAG` or `HOST/REPOSITORY@sha256:…`.
        folder: where to put them.
        env: HOME or DOCKER_CONFIG tell the credentials.
        offline: ask nobody.

    Raises:
        UsageError: no reference, or one with neither tag nor digest.
        FetchError, HashMismatchError: the registry does not give it, or may not be asked.
        LockError: its documents describe what no image has.
    """
    ref = _reference(text)
    if offline:
        what = "this image is in a registry, which --offline does not ask"
        raise FetchError(what, where=f"{ref.host}/{ref.repository}", todo="name a layout's folder, or leave it out")
    client = registry.connect(ref, env)
    if ref.digest == reference.NO_DIGEST:
        client.reference = dataclasses.replace(ref, digest=named(client))
    digest, manifest = _of_our_platform(client)
    described = manifest.get("config")
    if not isinstance(described, dict) or not oci.DIGEST.fullmatch(str(described.get("digest"))):
        raise BaseImageError("not an image manifest (schema 2)", where=client.name, todo="name an image")
    _write(folder, client, digest, str(described["digest"]))
    oci.read_layout(folder)  # which checks both documents
    return Remote(client=client, layout=folder)


def _reference(text: str) -> reference.Reference:
    if "@" in text:
        return reference.parse(text)
    if not re.search(r":[^/]+$", text):
        raise UsageError(f"there is no image or lock {text!r}", todo=f"write {FORMS}")
    return reference.parse(f"{text}@{reference.NO_DIGEST}")


def named(client: registry.Client) -> str:
    """The digest of what the client's tag names now.

    Raises:
        FetchError: nothing; or refused, unreachable.
    """
    if digest := client.resolve(client.reference.tag or ""):
        return digest
    ref = client.reference
    what = f"the registry has no such image (404): {ref.host}/{ref.repository}:{ref.tag}"
    raise FetchError(what, where=ref.api, todo="check name and tag")


def _of_our_platform(client: registry.Client) -> tuple[str, dict[str, Any]]:
    """Digest and manifest of the image for linux/amd64: what was asked for, or what its index names."""
    document = client.manifest(client.digest)
    if not isinstance(members := document.get("manifests"), list):
        return client.digest, document
    for one in members:
        platform = one.get("platform") if isinstance(one, dict) else None
        if isinstance(platform, dict) and (platform.get("os"), platform.get("architecture")) == ("linux", "amd64"):
            digest = str(one.get("digest"))
            if oci.DIGEST.fullmatch(digest):
                return digest, client.manifest(digest)
    raise BaseImageError("no image for linux/amd64", where=client.name, todo="name another image")


def _write(folder: Path, client: registry.Client, digest: str, config: str) -> None:
    """Keep the very bytes, for their digests; `Client` has verified them already."""
    blobs = folder / "blobs" / "sha256"
    with storage_errors(folder):
        blobs.mkdir(parents=True)
    for name, kind in ((digest, "manifests"), (config, "blobs")):
        with atomic(folder / oci.blob_path(name)) as out:
            out.write(client.raw(kind, name))
    entry = {"digest": digest, "mediaType": oci.MANIFEST, "size": (folder / oci.blob_path(digest)).stat().st_size}
    entry["annotations"] = {"org.opencontainers.image.ref.name": client.reference.tag or digest}
    for name, document in (
        ("index.json", {"manifests": [entry], "mediaType": oci.INDEX, "schemaVersion": 2}),
        ("oci-layout", {"imageLayoutVersion": "1.0.0"}),
    ):
        with atomic(folder / name) as out:
            out.write(canonical.dumps(document))


def download(image: Remote, progress: Progress) -> Path:
    """Fetch the layers of an image into its layout, each verified, several at once; returns the folder.

    Raises:
        FetchError, HashMismatchError, StorageError: from the registry, or the disk.
    """
    _, manifest, _ = oci.read_layout(image.layout)
    layers = {entry["digest"]: entry["size"] for entry in manifest["layers"]}
    progress.start("pull", sum(layers.values()))
    with futures.ThreadPoolExecutor(_STREAMS) as pool:
        jobs = [
            pool.submit(image.client.blob, digest, size, image.layout / oci.blob_path(digest), lambda _: None)
            for digest, size in layers.items()
        ]
        for job, size in zip(jobs, layers.values(), strict=True):
            job.result()
            progress.advance("pull", size)
    progress.finish("pull", f"{len(layers)} layers")
    return image.layout


def names(manifest: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of an image's layers from its history, fit to be shown; numbers where it does not tell."""
    history = config.get("history")
    rows = history if isinstance(history, list) else []
    made = [x for x in rows if isinstance(x, dict) and not x.get("empty_layer")]
    if len(made) != len(manifest["layers"]):
        return tuple(f"layer {number}" for number in range(1, len(manifest["layers"]) + 1))
    return tuple(told.escaped(str(x.get("created_by", "")).removeprefix(_NAME)) for x in made)


def labels(config: Mapping[str, Any]) -> dict[str, str]:
    """The labels of an image, none where it has none."""
    return {str(k): str(v) for k, v in (config["config"].get("Labels") or {}).items()}


def check_blobs(layout: Path, workers: int) -> None:
    """Hash every layer of a layout.

    Raises:
        LockError: naming the first that is missing or not what its digest says.
    """
    digests = [entry["digest"] for entry in oci.read_layout(layout)[1]["layers"]]
    with futures.ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda digest: check_blob(layout, digest), digests))


def check_blob(layout: Path, digest: str) -> None:
    """Hash one layer of a layout.

    Raises:
        LockError: it is missing, or not what its digest says.
    """
    path = layout / oci.blob_path(digest)
    if not path.is_file() or f"sha256:{sha256_file(path)}" != digest:
        what = "a layer is missing, or is not what its digest says"
        raise LockError(what, where=str(path), todo="copy or build the image again")
