"""The one tar format of every layer: ustar headers, a pax record only where ustar cannot hold the name.

Written here and not with the standard library so that the bytes depend on no Python version (DESIGN, "The image
format"). Format: POSIX.1-2017 pax, "ustar Interchange Format".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from verlstack.content import Source

BLOCK = 512
END = b"\0" * (2 * BLOCK)  # two zero blocks; no padding to 10,240, which is a habit of tape drives

_MAX_NAME = 100
_MAX_PREFIX = 155
_MAX_LINK = 100
_MAX_SIZE = 8**11 - 1  # eleven octal digits
_MAX_ID = 8**7 - 1  # seven
_TYPES = {"file": b"0", "dir": b"5", "symlink": b"2"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One member of a layer.

    Attributes:
        path: from the image's root, without leading or trailing slash.
        mode: permission bits.
        content: where a file's bytes come from; None for directories and links.
        link: a symbolic link's target.
        uid: numeric owner; everything but a base's own files belongs to root.
        gid: numeric group.
    """

    path: str
    kind: Literal["file", "dir", "symlink"]
    mode: int
    content: Source | None = None
    link: str = ""
    uid: int = 0
    gid: int = 0

    @property
    def size(self) -> int:
        """Bytes of content, 0 for directories and links."""
        return self.content.size if self.content else 0


def directory(path: str, mode: int = 0o755) -> Entry:
    """A directory, owned by root."""
    return Entry(path=path, kind="dir", mode=mode)


def symlink(path: str, target: str) -> Entry:
    """A symbolic link; its permission bits mean nothing and are always 0777."""
    return Entry(path=path, kind="symlink", mode=0o777, link=target)


def file(path: str, content: Source, *, executable: bool = False) -> Entry:
    """A regular file, 0644, or 0755 where it is to be run."""
    return Entry(path=path, kind="file", mode=0o755 if executable else 0o644, content=content)


def padding(size: int) -> bytes:
    """Zero bytes that fill the last block of a member of `size` bytes."""
    return b"\0" * (-size % BLOCK)


def header(entry: Entry, epoch: int) -> bytes:
    """Header blocks of an entry: 512 bytes, or a pax record before them where a name or size does not fit.

    Args:
        entry: what to describe.
        epoch: modification time, seconds since 1970.
    """
    name = entry.path.encode() + (b"/" if entry.kind == "dir" else b"")
    link = entry.link.encode()
    records: list[tuple[str, bytes]] = []
    split = _split(name)
    if split is None or not name.isascii():
        records.append(("path", name))
        split = split or (name[:_MAX_NAME], b"")
    if len(link) > _MAX_LINK or not link.isascii():
        records.append(("linkpath", link))
    if entry.size > _MAX_SIZE:
        records.append(("size", str(entry.size).encode()))
    records += [(key, str(i).encode()) for key, i in (("uid", entry.uid), ("gid", entry.gid)) if i > _MAX_ID]
    blocks = b""
    if records:
        body = b"".join(_record(key, value) for key, value in records)
        blocks = _block((b"pax_header", b""), 0o644, (0, 0), len(body), epoch, b"x", b"") + body + padding(len(body))
    size = entry.size if entry.size <= _MAX_SIZE else 0
    return blocks + _block(split, entry.mode, _owner(entry), size, epoch, _TYPES[entry.kind], link[:_MAX_LINK])


def _owner(entry: Entry) -> tuple[int, int]:
    """Owner as ustar holds it; a larger number stands in the pax record alone."""
    return (entry.uid if entry.uid <= _MAX_ID else 0), (entry.gid if entry.gid <= _MAX_ID else 0)


def _split(name: bytes) -> tuple[bytes, bytes] | None:
    """(name, prefix) as ustar stores a path; None if it does not fit."""
    if len(name) <= _MAX_NAME:
        return name, b""
    # The name part must be at most 100 bytes, the prefix at most 155, and both non-empty around a slash.
    cut = name.rfind(b"/", 0, _MAX_PREFIX + 1)
    while cut > 0:
        rest = name[cut + 1 :]
        if rest and len(rest) <= _MAX_NAME:
            return rest, name[:cut]
        if len(rest) > _MAX_NAME:
            return None
        cut = name.rfind(b"/", 0, cut)
    return None


def _record(key: str, value: bytes) -> bytes:
    """One pax record, whose length field counts itself."""
    tail = b" " + key.encode() + b"=" + value + b"\n"
    length = len(tail) + 1
    while length != len(str(length)) + len(tail):
        length = len(str(length)) + len(tail)
    return str(length).encode() + tail


def _block(
    split: tuple[bytes, bytes], mode: int, owner: tuple[int, int], size: int, epoch: int, kind: bytes, link: bytes
) -> bytes:
    name, prefix = split
    block = b"".join(
        (
            name.ljust(100, b"\0"),
            b"%07o\0" % mode,
            b"%07o\0%07o\0" % owner,
            b"%011o\0" % size,
            b"%011o\0" % epoch,
            b" " * 8,  # checksum counts as blanks
            kind,
            link.ljust(100, b"\0"),
            b"ustar\x0000",
            b"\0" * 64,  # no user or group names: numeric owners only
            b"0000000\0" * 2,  # device numbers
            prefix.ljust(155, b"\0"),
            b"\0" * 12,
        )
    )
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]
