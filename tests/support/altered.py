"""Images changed after they were composed, with digests that are right again: what a reproduction must find."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import zstandard


def sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / "sha256" / digest.removeprefix("sha256:")


def put(layout: Path, data: bytes) -> dict[str, str | int]:
    blob(layout, sha(data)).write_bytes(data)
    return {"digest": sha(data), "size": len(data)}


def image(layout: Path, *, files=None, layer="alpha", labels=None, level=None):
    """Change files of one layer (name → bytes, None to remove), labels, or the layer's compression.

    Args:
        layout: changed in place.
        files: as said.
        layer: name of the layer.
        labels: name → value, None to remove.
        level: zstd level to compress the layer with, whether or not its files change.
    """
    index = json.loads((layout / "index.json").read_text())
    (entry,) = index["manifests"]
    manifest = json.loads(blob(layout, entry["digest"]).read_text())
    config = json.loads(blob(layout, manifest["config"]["digest"]).read_text())
    if files or level:
        at = [row["created_by"] for row in config["history"]].index(f"verlstack: {layer}")
        packed = blob(layout, manifest["layers"][at]["digest"]).read_bytes()
        raw = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
        raw = _changed(raw, files) if files else raw
        manifest["layers"][at].update(put(layout, zstandard.ZstdCompressor(level=level or 3).compress(raw)))
        config["rootfs"]["diff_ids"][at] = sha(raw)
    for name, value in (labels or {}).items():
        config["config"]["Labels"].pop(name, None)
        if value is not None:
            config["config"]["Labels"][name] = value
    manifest["config"].update(put(layout, json.dumps(config).encode()))
    entry.update(put(layout, json.dumps(manifest).encode()))
    (layout / "index.json").write_text(json.dumps(index))


def _changed(raw: bytes, files: dict[str, bytes | None]) -> bytes:
    out = io.BytesIO()
    todo = dict(files)
    with tarfile.open(fileobj=io.BytesIO(raw)) as source, tarfile.open(fileobj=out, mode="w") as target:
        for member in source:
            if member.name in todo:
                data = todo.pop(member.name)
                if data is None:
                    continue
                member.size = len(data)
                target.addfile(member, io.BytesIO(data))
            else:
                target.addfile(member, source.extractfile(member) if member.isfile() else None)
        for name, data in todo.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            target.addfile(info, io.BytesIO(data))
    return out.getvalue()
