"""A base image by digest, from a registry or a layout on disk: chosen, verified, scanned once, kept in the cache."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, Protocol

from verlstack import layer
from verlstack.base import facts as reading
from verlstack.base import imagescan, registry
from verlstack.base.basestore import load, save
from verlstack.base.facts import Facts
from verlstack.errors import BaseImageError, FetchError, HashMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from verlstack.cache import Cache
    from verlstack.progress import Progress

ARCHITECTURE = "amd64"
_RECIPE = 4  # part of the cache key: raise it when the scan learns something new
_STREAMS = 4  # layers at once: one is rarely enough to fill a line, more gain nothing
_MAX_LAYERS = 127  # what overlayfs stacks, and so every engine
_MAX_SIZE = 1 << 40  # bytes of a stored layer; beyond what a disk counts, numbers overflow

# Docker's media types and their OCI names; the bytes are the same.
_LAYER_KINDS: dict[str, Literal["zstd", "gzip", "none"]] = {
    "application/vnd.docker.image.rootfs.diff.tar.gzip": "gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd": "zstd",
    "application/vnd.docker.image.rootfs.diff.tar": "none",
    **{media_type: kind for kind, media_type in layer.MEDIA_TYPES.items()},
}


class Source(Protocol):
    """Where an image is read from: a registry, or a layout on disk; each document and blob is verified there."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def digest(self) -> str:
        """`sha256:…` of the manifest or index asked for."""

    def manifest(self, digest: str) -> dict[str, Any]:
        """A manifest or index."""

    def config(self, digest: str) -> dict[str, Any]:
        """An image's config."""

    def blob(self, digest: str, size: int, part: Path, advance: Callable[[int], None]) -> None:
        """Have a blob at `part`."""


def pull(
    source: Source, *, wanted_python: str, cache: Cache, progress: Progress, offline: bool
) -> tuple[tuple[layer.Blob, ...], Facts]:
    """The layers of an image and what is in it, from the cache or from its source.

    Raises:
        FetchError: not to be had, or offline and not in the cache.
        HashMismatchError: a manifest, config, layer or diff_id is not what it should be.
        BaseImageError: not an image for linux/amd64, or a layer of a kind we do not know.
        StorageError: the disk is full, read-only or forbidden.
    """
    key = hashlib.sha256(f"registry {_RECIPE} {wanted_python} {source.digest}".encode()).hexdigest()
    with cache.lock(f"base-{key[:32]}"):
        known = load(cache.bases / key)
        if known is None:
            if offline:
                raise FetchError(f"{source.name} is not in the cache", todo="run without --offline once")
            with cache.lock("pull"):  # two images may have a layer in common, and parts are named by their hash
                blobs, facts = _pull(source, wanted_python, cache, progress)
                known = save(cache.bases / key, blobs, facts.to_json())
    return known[0], Facts.from_json(known[1])


def _pull(source: Source, wanted: str, cache: Cache, progress: Progress) -> tuple[tuple[layer.Blob, ...], Facts]:
    manifest = _for_amd64(source, source.manifest(source.digest))
    layers = _described(manifest, source.name)
    config = source.config(manifest["config"]["digest"])
    _check_platform(config.get("os"), config.get("architecture"), source.name)
    kinds = [_kind(one, source.name) for one in layers]
    diff_ids = _diff_ids(config, len(layers), source.name)
    parts = _download(source, layers, cache, progress)
    tree = imagescan.Tree()
    blobs = []
    for part, kind, described, diff_id in zip(parts, kinds, layers, diff_ids, strict=True):
        have, raw_size = imagescan.lay(tree, part, kind)
        if have != diff_id:
            raise HashMismatchError(
                f"a layer unpacks to {have}, its config says {diff_id}", where=source.name, todo="use another image"
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
    return tuple(blobs), reading.read(tree, config, wanted)


def _for_amd64(source: Source, document: dict[str, Any]) -> dict[str, Any]:
    """The image manifest for linux/amd64: the document itself, or the one its index names."""
    if isinstance(members := document.get("manifests"), list):
        members = [one for one in members if _is_descriptor(one)]
        platforms = [one["platform"] if isinstance(one.get("platform"), dict) else {} for one in members]
        for one, platform in zip(members, platforms, strict=True):
            if (platform.get("os"), platform.get("architecture")) == ("linux", ARCHITECTURE):
                return source.manifest(one["digest"])
        names = ", ".join(f"{p.get('os')}/{p.get('architecture')}" for p in platforms)
        raise BaseImageError(f"no image for linux/{ARCHITECTURE}; there is {names or 'none'}", where=source.name)
    return document


def _described(manifest: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The descriptors of a manifest's layers; digests become file names, so their form is checked."""
    layers = manifest.get("layers")
    if not _is_descriptor(manifest.get("config")) or not isinstance(layers, list) or not 0 < len(layers) <= _MAX_LAYERS:
        raise BaseImageError("not an image manifest (schema 2)", where=name, todo="use another image")
    for one in layers:
        size = one.get("size") if _is_descriptor(one) else None
        if type(size) is not int or not 0 <= size < _MAX_SIZE:  # JSON's true would be an int
            raise BaseImageError("a layer without digest or size", where=name, todo="use another image")
    return layers


def _is_descriptor(one: object) -> bool:
    return isinstance(one, dict) and bool(registry.DIGEST.fullmatch(str(one.get("digest"))))


def _diff_ids(config: dict[str, Any], layers: int, name: str) -> list[str]:
    rootfs = config.get("rootfs")
    diff_ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    diff_ids = diff_ids if isinstance(diff_ids, list) else []
    if len(diff_ids) != layers:
        raise BaseImageError(f"{layers} layers, but {len(diff_ids)} diff_ids", where=name, todo="use another image")
    return diff_ids


def _check_platform(system: object, architecture: object, name: str) -> None:
    if (system, architecture) != ("linux", ARCHITECTURE):
        raise BaseImageError(
            f"this image is for {system}/{architecture}, the wheels are for linux/{ARCHITECTURE}",
            where=name,
            todo=f"use a base for linux/{ARCHITECTURE}",
        )


def _kind(described: dict[str, Any], name: str) -> Literal["zstd", "gzip", "none"]:
    kind = _LAYER_KINDS.get(str(described.get("mediaType")))
    if kind is None:
        raise BaseImageError(f"a layer of unknown kind {described.get('mediaType')}", where=name)
    return kind


def _download(source: Source, layers: list[dict[str, Any]], cache: Cache, progress: Progress) -> list[Path]:
    """Fetch all layers into `parts/`, several at once; a layer named twice is fetched once."""

    def fetch(numbered: tuple[int, dict[str, Any]]) -> Path:
        number, described = numbered
        part = cache.parts / f"{described['digest'].removeprefix('sha256:')}.part"
        task = f"base layer {number} of {len(layers)}"
        progress.start(task, described["size"])
        source.blob(described["digest"], described["size"], part, lambda n: progress.advance(task, n))
        progress.finish(task, f"{described['size'] / 1e6:.0f} MB")
        return part

    with ThreadPoolExecutor(_STREAMS) as pool:
        return list(pool.map(fetch, enumerate(layers, 1)))
