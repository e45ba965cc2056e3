"""Which C and C++ libraries the base below a composed image has, read from its layers once and kept."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from verlstack import canonical, oci
from verlstack.base import facts, imagescan
from verlstack.cache import atomic
from verlstack.errors import BaseImageError, LockError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from verlstack.cache import Cache
    from verlstack.extension.system import Base
    from verlstack.lockfile import Lock

_FORMAT = 1


def below(lock: Lock, layout: Path, cache: Cache, platform: Base) -> Base | None:
    """What the base of the image in `layout` gives; None without an image, or where the base does not say.

    Args:
        lock: names the layers that lie on the base.
        layout: folder of the image.
        cache: where the answer is kept.
        platform: what is promised, for the families that a base does not tell by itself.
    """
    try:
        _, manifest, config = oci.read_layout(layout)
    except (UsageError, LockError):
        return None
    ours = {layer.diff_id for layer in lock.layers}
    rows = list(zip(config["rootfs"]["diff_ids"], manifest["layers"], strict=True))
    end = next((at for at, (diff_id, _) in enumerate(rows) if diff_id in ours), len(rows))
    note = cache.root / "baselibs" / f"{canonical.digest([_FORMAT, [diff_id for diff_id, _ in rows[:end]]])}.json"
    versions = _recall(note)
    if versions is None:
        try:
            versions = _read([entry for _, entry in rows[:end]], layout, lock.python)
        except BaseImageError:
            return None
        with atomic(note) as out:
            out.write(canonical.dumps(versions))
    newest = {family: tuple(map(int, text.split("."))) for family, text in versions.items() if text}
    if "GLIBC" not in newest:
        return None
    return dataclasses.replace(platform, name="the base in dist", newest={**platform.newest, **newest})


def _read(entries: list[dict[str, str]], layout: Path, python: str) -> dict[str, str]:
    tree = imagescan.Tree()
    for entry in entries:
        kind = entry["mediaType"].rpartition("+")[2]
        imagescan.lay(tree, layout / oci.blob_path(entry["digest"]), kind if kind in {"gzip", "zstd"} else "none")
    found = facts.read(tree, {}, python)
    return {"GLIBC": found.glibc or "", "GLIBCXX": found.glibcxx or ""}


def _recall(note: Path) -> dict[str, str] | None:
    try:
        kept = json.loads(note.read_bytes())
    except (OSError, ValueError):
        return None
    return kept if isinstance(kept, dict) else None
