"""A base image pulled by digest, without an engine: chosen for amd64, verified, scanned once, kept in the cache."""

from __future__ import annotations

import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from verlstack import layer
from verlstack.base import aptsources, imagescan
from verlstack.base.basestore import load, save
from verlstack.errors import BaseImageError, FetchError, HashMismatchError

if TYPE_CHECKING:
    from verlstack.base.reference import Reference
    from verlstack.base.registry import Client
    from verlstack.cache import Cache
    from verlstack.progress import Progress

ARCHITECTURE = "amd64"
_RECIPE = 1  # part of the cache key: raise it when the scan learns something new
_STREAMS = 4  # layers at once: one is rarely enough to fill a line, more gain nothing
_PATCH_LEVEL = re.compile(r'^#define\s+PY_VERSION\s+"([\d.]+)', re.MULTILINE)

# Docker's media types and their OCI names; the bytes are the same.
_LAYER_KINDS: dict[str, Literal["zstd", "gzip", "none"]] = {
    "application/vnd.docker.image.rootfs.diff.tar.gzip": "gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd": "zstd",
    "application/vnd.docker.image.rootfs.diff.tar": "none",
    **{media_type: kind for kind, media_type in layer.MEDIA_TYPES.items()},
}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a scan found in an image.

    Attributes:
        env: the config's environment, in its order.
        compiler: whether `cc` or `gcc` is there.
        python_home: folder of the wanted Python, or None.
        python_version: all three numbers, where its headers say so.
        headers: whether that Python's Python.h is there.
        os_id: ID of os-release.
        os_version: VERSION_ID of os-release.
        libraries: names in the loader's default folders.
    """

    env: tuple[tuple[str, str], ...]
    compiler: bool
    python_home: str | None
    python_version: str | None
    headers: bool
    os_id: str
    os_version: str
    libraries: frozenset[str]


def pull(
    reference: Reference, *, wanted_python: str, client: Client, cache: Cache, progress: Progress, offline: bool
) -> tuple[tuple[layer.Blob, ...], Facts]:
    """The layers of an image and what is in it, from the cache or from its registry.

    Raises:
        FetchError: not to be had, or offline and not in the cache.
        HashMismatchError: a manifest, config, layer or diff_id is not what it should be.
        BaseImageError: not an image for linux/amd64, or a layer of a kind we do not know.
        StorageError: the disk is full, read-only or forbidden.
    """
    key = hashlib.sha256(f"registry {_RECIPE} {wanted_python} {reference.digest}".encode()).hexdigest()
    with cache.lock(f"base-{key[:32]}"):
        known = load(cache.bases / key)
        if known is None:
            if offline:
                raise FetchError(f"{reference} is not in the cache", todo="run without --offline once")
            blobs, facts = _pull(reference, wanted_python, client, cache, progress)
            known = save(cache.bases / key, blobs, facts)
    blobs, facts = known
    env = tuple((name, value) for name, value in facts["env"])
    return blobs, Facts(**facts | {"env": env, "libraries": frozenset(facts["libraries"])})


def _pull(
    reference: Reference, wanted: str, client: Client, cache: Cache, progress: Progress
) -> tuple[tuple[layer.Blob, ...], dict[str, Any]]:
    manifest = _for_amd64(client, client.manifest(reference.digest), reference)
    config = client.config(manifest["config"]["digest"])
    _check_platform(config.get("os"), config.get("architecture"), reference)
    kinds = [_kind(one, reference) for one in manifest["layers"]]
    diff_ids = config.get("rootfs", {}).get("diff_ids", [])
    if len(diff_ids) != len(kinds):
        raise BaseImageError(f"{len(kinds)} layers, but {len(diff_ids)} diff_ids", where=str(reference))
    parts = _download(client, manifest["layers"], cache, progress)
    tree = imagescan.Tree()
    blobs = []
    for part, kind, described, diff_id in zip(parts, kinds, manifest["layers"], diff_ids, strict=True):
        have, raw_size = imagescan.lay(tree, part, kind)
        if have != diff_id:
            raise HashMismatchError(
                f"a layer unpacks to {have}, its config says {diff_id}", where=str(reference), todo="use another image"
            )
        blobs.append(
            layer.Blob(
                path=part,
                digest=described["digest"],
                diff_id=diff_id,
                size=described["size"],
                raw_size=raw_size,
                media_type=layer.MEDIA_TYPES[kind],
            )
        )
    return tuple(blobs), _facts(tree, config, wanted)


def _for_amd64(client: Client, document: dict[str, Any], reference: Reference) -> dict[str, Any]:
    """The image manifest for linux/amd64: the document itself, or the one its index names."""
    if "manifests" in document:
        platforms = [one.get("platform", {}) for one in document["manifests"]]
        for one, platform in zip(document["manifests"], platforms, strict=True):
            if (platform.get("os"), platform.get("architecture")) == ("linux", ARCHITECTURE):
                return client.manifest(one["digest"])
        names = ", ".join(f"{p.get('os')}/{p.get('architecture')}" for p in platforms)
        raise BaseImageError(f"no image for linux/{ARCHITECTURE}; there is {names or 'none'}", where=str(reference))
    if "config" not in document or "layers" not in document:
        raise BaseImageError("not an image manifest (schema 2)", where=str(reference), todo="use another image")
    return document


def _check_platform(system: object, architecture: object, reference: Reference) -> None:
    if (system, architecture) != ("linux", ARCHITECTURE):
        raise BaseImageError(
            f"this image is for {system}/{architecture}, the wheels are for linux/{ARCHITECTURE}", where=str(reference)
        )


def _kind(described: dict[str, Any], reference: Reference) -> Literal["zstd", "gzip", "none"]:
    kind = _LAYER_KINDS.get(described["mediaType"])
    if kind is None:
        raise BaseImageError(f"a layer of unknown kind {described['mediaType']}", where=str(reference))
    return kind


def _download(client: Client, layers: list[dict[str, Any]], cache: Cache, progress: Progress) -> list[Any]:
    """Fetch all layers into `parts/`, several at once; a layer named twice is fetched once."""

    def fetch(numbered: tuple[int, dict[str, Any]]) -> Any:
        number, described = numbered
        part = cache.parts / f"{described['digest'].removeprefix('sha256:')}.part"
        task = f"base layer {number} of {len(layers)}"
        progress.start(task, described["size"])
        with cache.lock(f"blob-{part.stem[:32]}"):
            client.blob(described["digest"], described["size"], part, lambda n: progress.advance(task, n))
        progress.finish(task, f"{described['size'] / 1e6:.0f} MB")
        return part

    with ThreadPoolExecutor(_STREAMS) as pool:
        return list(pool.map(fetch, enumerate(layers, 1)))


def _facts(tree: imagescan.Tree, config: dict[str, Any], wanted: str) -> dict[str, Any]:
    """The fields of Facts as JSON can hold them."""
    release = aptsources.parse_release(tree.text("etc/os-release"))
    home = _python_home(tree, wanted)
    include = f"{home}/../include/python{wanted}" if home else ""
    version = _PATCH_LEVEL.search(tree.text(f"{include}/patchlevel.h"))
    env = (entry.partition("=") for entry in (config.get("config") or {}).get("Env") or [])
    return {
        "env": [[name, value] for name, _, value in env],
        "compiler": any(
            tree.is_file(f"{folder}/{cc}") for folder in ("usr/bin", "usr/local/bin") for cc in ("cc", "gcc")
        ),
        "python_home": home,
        "python_version": version[1] if version else None,
        "headers": tree.is_file(f"{include}/Python.h"),
        "os_id": release.id,
        "os_version": release.version,
        "libraries": tree.libraries(),
    }


def _python_home(tree: imagescan.Tree, wanted: str) -> str | None:
    deeper = sorted(
        {path.rpartition("/")[0] for path in tree.links if re.fullmatch(rf"opt/[^/]+/bin/python{wanted}", path)}
    )
    for folder in ("usr/local/bin", "usr/bin", *deeper):
        if tree.is_file(f"{folder}/python{wanted}"):
            return f"/{folder}"
    return None
