"""`verlstack sbom`: an image in a layout → what is in it, held against the lock, as one of the two formats."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Literal

from verlstack import images, oci, sides
from verlstack.errors import LockError
from verlstack.sbom import contents, cyclonedx, spdx
from verlstack.sbom.inventory import Inventory, take

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from verlstack.cache import Cache
    from verlstack.lockfile import Lock
    from verlstack.progress import Progress

Format = Literal["cyclonedx", "spdx"]
FORMATS = {"cyclonedx": cyclonedx, "spdx": spdx}


def name(layout: Path) -> str:
    """What an image calls itself, else its tag here."""
    labels = images.labels(oci.read_layout(layout)[2])
    return labels.get("org.opencontainers.image.title") or oci.tag_of(layout)


def inventory(layout: Path, constraints: Path, *, cache: Cache, workers: int, progress: Progress) -> Inventory:
    """All that is in an image, or in a base.

    Args:
        layout: the image.
        constraints: folder with the lock that it was made from.
        cache: keeps what was read of layers.
        workers: layers read at once.
        progress: where progress is shown.

    Raises:
        LockError: lock and layers do not agree, or the lock is not there.
        ProofError: a layer cannot be read.
        UsageError: no image.
    """
    digest, _, config = oci.read_layout(layout)
    labels = images.labels(config)
    lock = lock_of(labels, constraints, layout)
    layers = contents.read(layout, cache, workers, progress)
    return Inventory(
        name=name(layout),
        version=labels.get("org.opencontainers.image.version"),
        digest=digest,
        created=created(config, layout),
        lock=f"sha256:{lock.digest}" if lock else None,
        base=labels.get(f"{sides.LABEL}.base") if lock else None,
        components=take(layers, lock, labels.get(f"{sides.LABEL}.left-out")),
    )


def lock_of(labels: Mapping[str, str], constraints: Path, layout: Path) -> Lock | None:
    """The lock that an image says it was made from; None where it names none, as a base does.

    Raises:
        LockError: it is not beside the pins.
    """
    name = labels.get(f"{sides.LABEL}.lock")
    if name is None:
        return None
    if lock := sides.known_locks(constraints).get(name):
        return lock
    stack = labels.get(f"{sides.LABEL}.stack", "STACK")
    raise LockError(
        f"the lock of this image, {name}, is not here",
        where=str(layout),
        todo=f"run in a checkout whose constraints/{stack}.lock.toml has that checksum, or build the image again",
    )


def created(config: Mapping[str, Any], layout: Path) -> str:
    """When the image says it was made: the epoch, in the one form that CycloneDX and SPDX share.

    Raises:
        LockError: it does not say.
    """
    try:
        moment = dt.datetime.fromisoformat(str(config["created"])).astimezone(dt.UTC)
    except (KeyError, ValueError, OverflowError):
        what = "the config does not say when the image was made"
        raise LockError(what, where=str(layout), todo="build the image again") from None
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
