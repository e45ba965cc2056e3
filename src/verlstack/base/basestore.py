"""How a finished base lies in the cache: its layers, and last, as the mark that all is there, `base.json`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from verlstack import cache, layer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_MARK = "base.json"


def save(
    folder: Path, blobs: Sequence[layer.Blob], facts: dict[str, Any]
) -> tuple[tuple[layer.Blob, ...], dict[str, Any]]:
    """Move finished layers into `folder` (same file system) and write the mark; returns what `load` would.

    A process killed at any point leaves either no mark, or everything.

    Raises:
        StorageError: the disk is full, read-only or forbidden.
    """
    with cache.storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        once = {blob.digest: blob for blob in blobs}  # an image may hold one layer twice
        paths = {digest: _place(blob, folder) for digest, blob in once.items()}
    placed = tuple(replace(blob, path=paths[blob.digest]) for blob in blobs)
    described = [asdict(blob) | {"path": blob.path.name} for blob in placed]
    with cache.atomic(folder / _MARK) as out:
        out.write(json.dumps({"layers": described, "facts": facts}, sort_keys=True, indent=1).encode())
    return placed, facts


def load(folder: Path) -> tuple[tuple[layer.Blob, ...], dict[str, Any]] | None:
    """The layers and facts of a finished base, or None if there is none or a layer is not what it was."""
    try:
        document = json.loads((folder / _MARK).read_bytes())
        blobs = tuple(layer.Blob(**one | {"path": folder / one["path"]}) for one in document["layers"])
        if all(f"sha256:{cache.sha256_file(blob.path)}" == blob.digest for blob in blobs):
            return blobs, document["facts"]
    except (OSError, ValueError, TypeError, KeyError):
        pass  # nothing there, or damaged: both mean that it must be made anew
    return None


def _place(blob: layer.Blob, folder: Path) -> Path:
    target = folder / blob.digest.replace(":", "-")
    handle = os.open(blob.path, os.O_RDONLY)
    try:
        os.fchmod(handle, 0o644)
        os.fsync(handle)
    finally:
        os.close(handle)
    blob.path.replace(target)
    return target
