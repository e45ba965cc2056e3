"""What a host that has one image must fetch for another: the stored bytes of new layers, config and manifest."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from verlstack import canonical

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


BASE = "base "  # before the base's reference in the name of its layers
_OF_NO_LOCK = "interpreter"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer, as far as it is known.

    Attributes:
        digest: of the stored bytes; None where the layer was not found in the cache.
        size: stored bytes; None likewise.
        packages: name → version of what is in it; None where that is not known.
        blob: the stored bytes, where they are on this machine.
        media_type: of these bytes.
    """

    name: str
    diff_id: str
    digest: str | None = None
    size: int | None = None
    packages: Mapping[str, str] | None = None
    blob: Path | None = None
    media_type: str = ""


@dataclass(frozen=True, kw_only=True)
class PullCost:
    """Bytes to fetch.

    Attributes:
        layers: (name, stored bytes) of each new layer; None where the size is not known.
        documents: of config and manifest; None where not known.
    """

    layers: tuple[tuple[str, int | None], ...]
    documents: int | None

    @property
    def known(self) -> int:
        """The sum of all that is known."""
        return sum(size or 0 for _, size in self.layers) + (self.documents or 0)

    @property
    def complete(self) -> bool:
        """Whether that is all."""
        return self.documents is not None and all(size is not None for _, size in self.layers)


def is_below(name: str) -> bool:
    """Whether a layer of this name is of base or interpreter, which no lock decides."""
    return name.startswith(BASE) or name == _OF_NO_LOCK


def cost(
    one: Iterable[Layer], other: Iterable[Layer], *, documents: int | None, recompressed: bool = False
) -> PullCost:
    """What a host with the layers of the first must fetch to have those of the second.

    A registry's client knows layers by their digest. Where one side's digests are not known, the diff_id decides.

    Args:
        one: what is there.
        other: what is wanted.
        documents: bytes of the wanted image's config and manifest.
        recompressed: all blobs are other ones, whatever the diff_ids say.
    """
    have = list(one)
    digests, diff_ids = {x.digest for x in have}, {x.diff_id for x in have if x.digest is None}
    all_ids = {x.diff_id for x in have}
    new: dict[str, tuple[str, int | None]] = {}
    for layer in other:
        there = layer.diff_id in all_ids if layer.digest is None else layer.digest in digests
        if recompressed or not (there or layer.diff_id in diff_ids):
            # one that is there twice is fetched once
            new.setdefault(layer.digest or layer.diff_id, (layer.name, layer.size))
    return PullCost(layers=tuple(new.values()), documents=documents)


def documents(
    manifest: Mapping[str, Any],
    config: Mapping[str, Any],
    *,
    names: Iterable[str],
    new: Iterable[Layer],
    labels: Mapping[str, str],
) -> int | None:
    """Bytes that config and manifest of an image will have once the layers of a lock are replaced.

    Args:
        manifest: of the image that is there.
        config: likewise.
        names: of its layers.
        new: all layers of the new lock, in order; those of base and interpreter stay.
        labels: new values.

    Returns:
        None where a layer's size is not known, and the numbers in the documents with it.
    """
    old = list(zip(names, manifest["layers"], config["rootfs"]["diff_ids"], strict=True))
    rows = [row for row in old if is_below(row[0])]
    by_diff_id = {diff_id: entry for _, entry, diff_id in old}
    for layer in new:
        entry = by_diff_id.get(layer.diff_id)
        if entry is None and layer.size is None:
            return None
        made = {**manifest["layers"][-1], "digest": layer.digest, "size": layer.size}
        rows.append((layer.name, entry or made, layer.diff_id))
    changed = copy.deepcopy(dict(config))
    created = config["history"][0]["created"]
    changed["config"]["Labels"].update(labels)
    changed["rootfs"]["diff_ids"] = [diff_id for _, _, diff_id in rows]
    changed["history"] = [{"created": created, "created_by": f"verlstack: {name}"} for name, _, _ in rows]
    written = canonical.dumps(changed)
    head = {**manifest["config"], "size": len(written)}
    return len(written) + len(canonical.dumps({**manifest, "config": head, "layers": [entry for _, entry, _ in rows]}))
