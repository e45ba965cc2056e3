"""Read what `verlstack diff` compares: a stack's lock, a lock file, a layout, or an image in a registry."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from verlstack import closurediff, compose, images, lockfile, oci, pins, pullcost, trees
from verlstack.closurediff import Side
from verlstack.errors import LockError
from verlstack.pullcost import Layer

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from verlstack.lockfile import Lock
    from verlstack.pins import Stack
    from verlstack.store import Finished
    from verlstack.workshop import Workshop

LABEL = "dev.verlstack"
_RECORD = re.compile(r"opt/verl/lib/[^/]+/site-packages/([^/]+?)-([^/-]+)\.dist-info/RECORD")


@contextlib.contextmanager
def opened(text: str, shop: Workshop, dist: Path, scratch: Path) -> Iterator[Side]:
    """What a user names by `text`: a stack, a `*.lock.toml`, a layout, `sha256:…` of one in `dist`, or a reference.

    Args:
        text: the name.
        shop: the surroundings.
        dist: where layouts are.
        scratch: an empty folder for documents from a registry.

    Raises:
        UsageError: it names nothing.
        VerlstackError: as the reading of each says.
    """
    path = shop.constraints / "stacks.toml"
    if path.is_file() and text in pins.names(path):  # images in registries and folders need no pins
        stack = pins.load(path, text)
        lock = lockfile.load(shop.constraints, stack)
        yield of_lock(lock, text, stored(lock, stack, shop, {x.name for x in lock.layers}))
    elif text.endswith(".lock.toml"):
        yield of_lock(lockfile.read(Path(text).absolute()), text, {})
    elif folder := images.find(text, dist):
        yield of_layout(folder, text, known_locks(shop.constraints), here=True)
    else:
        image = images.remote(text, scratch, shop.env, offline=shop.offline)
        with image.client:
            yield of_layout(image.layout, text, known_locks(shop.constraints), here=False)


def known_locks(folder: Path) -> dict[str, Lock]:
    """The locks beside the pins, by `sha256:…`; those that cannot be read tell nothing."""
    found = {}
    for path in sorted(folder.glob("*.lock.toml")):
        with contextlib.suppress(LockError):
            lock = lockfile.read(path)
            found[f"sha256:{lock.digest}"] = lock
    return found


def of_lock(lock: Lock, name: str, finished: Mapping[str, Finished]) -> Side:
    """A lock as a side; `finished` are those of its layers whose stored size is known."""
    return Side(
        name=name,
        kind="lock",
        lock=f"sha256:{lock.digest}",
        compression=repr(lock.compression),
        layers=_layers_of_lock(lock, finished),
    )


def stored(lock: Lock, stack: Stack, shop: Workshop, only: Collection[str]) -> dict[str, Finished]:
    """The finished layers that the cache has of a lock, by name; `only` those, since each one is hashed."""
    settings = shop.settings(stack, shop.find_interpreter(stack.python))
    jobs = compose.wheel_jobs(lock, settings, shop.cache, shop.inside())
    found = compose.find_all([job for job in jobs if job.name in only], shop.cache, shop.workers)
    return {x.name: x for x in found if x is not None}


def _layers_of_lock(lock: Lock, finished: Mapping[str, Finished]) -> tuple[Layer, ...]:
    """The layers of a lock, with digest and size where a finished one is known that has the lock's diff_id."""
    packages = packages_of_lock(lock)
    found = []
    for x in lock.layers:
        layer = Layer(name=x.name, diff_id=x.diff_id, packages=packages[x.name])
        have = finished.get(x.name)
        if have and have.blob.diff_id == x.diff_id:
            layer = dataclasses.replace(layer, digest=have.blob.digest, size=have.blob.size)
        found.append(layer)
    return tuple(found)


def packages_of_lock(lock: Lock) -> dict[str, dict[str, str]]:
    """Layer → package → version."""
    versions = {a.project: a.version for a in lock.wheels} | {b.source.project: b.source.version for b in lock.built}
    if lock.compiled:
        versions[lock.compiled.source.project] = lock.compiled.source.version
    return {x.name: {package: versions[package] for package in x.packages} for x in lock.layers}


def of_layout(folder: Path, name: str, locks: Mapping[str, Lock], *, here: bool) -> Side:
    """An image as a side.

    Args:
        folder: the layout.
        name: as the user called it.
        locks: the known ones, by digest: they tell what is in which layer.
        here: the layers lie in the folder; else it has the documents alone.
    """
    digest, manifest, config = oci.read_layout(folder)
    labels = images.labels(config)
    lock = labels.get(f"{LABEL}.lock")
    known = packages_of_lock(locks[lock]) if lock and lock in locks else {}
    rows = zip(images.names(manifest, config), manifest["layers"], config["rootfs"]["diff_ids"], strict=True)
    layers = tuple(_layer(*row, folder=folder if here else None, known=known, labels=labels) for row in rows)
    return Side(
        name=name,
        kind="layout" if here else "registry",
        lock=lock,
        digest=digest,
        layers=layers,
        pins=_pins(labels[f"{LABEL}.pins"]) if f"{LABEL}.pins" in labels else None,
        labels=labels,
        documents=manifest["config"]["size"] + (folder / oci.blob_path(digest)).stat().st_size,
    )


def _layer(
    name: str,
    entry: Mapping[str, Any],
    diff_id: str,
    *,
    folder: Path | None,
    known: Mapping[str, Mapping[str, str]],
    labels: Mapping[str, str],
) -> Layer:
    if pullcost.is_below(name):
        packages: Mapping[str, str] | None = _debian(labels) if name.startswith(pullcost.BASE) else {}
    else:
        packages = known.get(name)
    return Layer(
        name=name,
        diff_id=diff_id,
        digest=entry["digest"],
        size=entry["size"],
        packages=packages,
        blob=folder / oci.blob_path(entry["digest"]) if folder else None,
        media_type=entry["mediaType"],
    )


def _debian(labels: Mapping[str, str]) -> dict[str, str]:
    """What the label tells of the base's Debian packages; `debian:` keeps their names apart from Python's."""
    words = labels.get(f"{LABEL}.base.packages", "").split()
    return {f"debian:{name}": version for name, _, version in (word.partition("=") for word in words)}


def _pins(label: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in label.split():
        with contextlib.suppress(InvalidRequirement):
            one = Requirement(word)
            found[canonicalize_name(one.name)] = str(one.specifier).removeprefix("==")
    return found


def look_into(one: Side, other: Side) -> Side:
    """The first side, its layers that the second has not read where nothing else tells what is in them.

    Raises:
        ProofError: a layer cannot be read.
    """
    wanted = {x.diff_id for x in closurediff.needed(one, other) if x.packages is None and x.blob}
    layers = tuple(
        dataclasses.replace(x, packages=_read(x.blob, x.media_type)) if x.blob and x.diff_id in wanted else x
        for x in one.layers
    )
    return dataclasses.replace(one, layers=layers)


def _read(blob: Path, media_type: str) -> dict[str, str]:
    """Package → version, by the names of the RECORDs in a layer."""
    found = (_RECORD.fullmatch(member.path) for member in trees.read(blob, media_type).members)
    return {canonicalize_name(match[1]): match[2] for match in found if match}
