"""Layers as another builder writes them: by the standard library, in any order, with its own times and headers."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

NONE = "application/vnd.oci.image.layer.v1.tar"
LATE = 1_796_060_575  # not an epoch of ours


@dataclass(frozen=True)
class Item:
    """One tar entry; a file unless `kind` says otherwise."""

    path: str
    data: bytes = b""
    mode: int = 0o644
    kind: bytes = tarfile.REGTYPE
    link: str = ""
    uid: int = 0
    gid: int = 0
    pax: dict[str, str] = field(default_factory=dict)


def folder(path: str, mode: int = 0o755) -> Item:
    return Item(path, mode=mode, kind=tarfile.DIRTYPE)


def symlink(path: str, target: str) -> Item:
    return Item(path, mode=0o777, kind=tarfile.SYMTYPE, link=target)


def hardlink(path: str, target: str) -> Item:
    return Item(path, kind=tarfile.LNKTYPE, link=target)


def pack(*items: Item) -> bytes:
    """The tar of some entries, in the order given."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for item in items:
            info = tarfile.TarInfo(item.path)
            info.mode, info.type, info.linkname, info.mtime = item.mode, item.kind, item.link, LATE
            info.uid, info.gid, info.size = item.uid, item.gid, len(item.data)
            info.uname = info.gname = "somebody"
            info.pax_headers = dict(item.pax)
            archive.addfile(info, io.BytesIO(item.data))
    return out.getvalue()


def write(path: Path, *items: Item) -> Path:
    path.write_bytes(pack(*items))
    return path
