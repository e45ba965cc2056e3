"""A bootstrapped root tree as canonical layer entries, without what a machine or a moment left in it."""

from __future__ import annotations

import hashlib
import posixpath
import re
import tarfile
from functools import partial
from typing import TYPE_CHECKING

from verlstack import tar
from verlstack.base import dpkg
from verlstack.content import Inline, Slice
from verlstack.errors import BaseImageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO

_CHUNK = 1 << 20  # bytes per read while hashing
_SECONDS_PER_DAY = 86400  # shadow(5) counts days

# What differs between two machines or two moments, or names the mirror; each folder itself stays.
_EMPTIED = (
    "boot",
    "dev",  # engines mount their own; device nodes cannot be made without root
    "etc/apt/apt.conf.d",  # proxies and mmdebstrap's own settings
    "etc/apt/auth.conf.d",
    "etc/apt/sources.list.d",  # the image names no mirror
    "etc/dpkg/dpkg.cfg.d",
    "proc",
    "run",
    "sys",
    "tmp",
    "var/backups",
    "var/cache/apt",
    "var/cache/ldconfig",  # aux-cache holds inode numbers and ctimes
    "var/lib/apt/lists",
    "var/log",
    "var/tmp",
)
_DROPPED = frozenset(
    {
        "etc/.pwd.lock",
        "etc/apt/sources.list",
        "etc/hostname",
        "etc/hosts",
        "etc/machine-id",
        "etc/resolv.conf",
        "var/lib/apt/extended_states",
        "var/lib/dbus/machine-id",
        "var/lib/dpkg/lock",
        "var/lib/dpkg/lock-frontend",
        "var/lib/dpkg/triggers/Lock",
        "var/lib/systemd/random-seed",
    }
)
_BACKUPS = re.compile(
    r"etc/(passwd|group|shadow|gshadow|subuid|subgid)-|var/lib/dpkg/[a-z]+-old|var/cache/debconf/.*-old"
)
_DPKG_STATUS = "var/lib/dpkg/status"
_SHADOW = re.compile(r"etc/g?shadow")


def is_kept(path: str) -> bool:
    """Whether a path of the bootstrapped tree goes into the base; `path` has no leading slash."""
    return not (
        path in _DROPPED
        or _BACKUPS.fullmatch(path)
        or any(path.startswith(f"{folder}/") for folder in _EMPTIED)
        or path.startswith(("usr/share/man/", "usr/share/info/", "usr/share/lintian/"))
    )


def entries(archive: Path, *, epoch: int) -> list[tar.Entry]:
    """Layer entries of an uncompressed root tar; the bytes stay in it and are read from there.

    Owners and permission bits (setuid, /tmp's 1777) are kept. A hard link becomes a file of its own: the image format
    knows none, because which of two names is the link depends on the directory order of a file system.

    Args:
        archive: what mmdebstrap wrote.
        epoch: decides the day in /etc/shadow.

    Raises:
        BaseImageError: the archive is damaged, or a hard link leads out of it.
    """
    found: dict[str, tar.Entry] = {}
    try:
        with archive.open("rb") as raw, tarfile.open(fileobj=raw, encoding="utf-8") as members:
            links = [_add(found, member, archive, raw, epoch) for member in members]
    except tarfile.TarError as e:
        raise BaseImageError(f"the bootstrapped root tar is damaged: {e}", where=str(archive)) from e
    for path, target in (link for link in links if link):
        if (twin := found.get(target)) is None:
            raise BaseImageError(f"/{path} is a hard link to /{target}, which is not in this layer", where=str(archive))
        found[path] = tar.Entry(
            path=path, kind="file", mode=twin.mode, content=twin.content, uid=twin.uid, gid=twin.gid
        )
    return [entry for entry in found.values() if is_kept(entry.path)]


def _add(
    found: dict[str, tar.Entry], member: tarfile.TarInfo, archive: Path, raw: IO[bytes], epoch: int
) -> tuple[str, str] | None:
    """Record one member; a hard link is returned as (path, target), because its target may have been dropped."""
    path = _normal(member.name)
    if member.islnk():
        return path, _normal(member.linkname)
    one = partial(tar.Entry, path=path, uid=member.uid, gid=member.gid)
    if member.isdir() and path:
        found[path] = one(kind="dir", mode=member.mode & 0o7777)
    elif member.issym():
        found[path] = one(kind="symlink", mode=0o777, link=member.linkname)
    elif member.isreg():
        content = _content(path, member, archive, raw, epoch)
        found[path] = one(kind="file", mode=member.mode & 0o7777, content=content)
    return None  # device nodes, sockets and pipes: the engine makes its own


def _normal(name: str) -> str:
    return posixpath.normpath(f"/{name}").lstrip("/")


def _content(path: str, member: tarfile.TarInfo, archive: Path, raw: IO[bytes], epoch: int) -> Inline | Slice:
    if _SHADOW.fullmatch(path):
        raw.seek(member.offset_data)
        return Inline(data=steady_shadow(raw.read(member.size), epoch))
    digest = hashlib.sha256()
    for piece in _pieces(raw, member.offset_data, member.size):
        digest.update(piece)
    return Slice(path=archive, offset=member.offset_data, size=member.size, sha256=digest.hexdigest())


def _pieces(raw: IO[bytes], offset: int, size: int) -> Iterator[bytes]:
    raw.seek(offset)
    while size and (piece := raw.read(min(_CHUNK, size))):
        size -= len(piece)
        yield piece


def steady_shadow(data: bytes, epoch: int) -> bytes:
    """/etc/shadow with the day of the last password change (third field) set to the epoch's; gshadow has no days."""
    day = str(epoch // _SECONDS_PER_DAY).encode()
    lines = []
    for line in data.splitlines():
        fields = line.split(b":")
        if len(fields) == 9 and fields[2]:  # shadow(5): nine fields; an empty day stays empty
            fields[2] = day
        lines.append(b":".join(fields) + b"\n")
    return b"".join(lines)


def packages(archive: Path) -> tuple[dpkg.Package, ...]:
    """Everything dpkg installed, sorted; read from the tree's own status file."""
    with tarfile.open(archive, encoding="utf-8") as members:
        status = next((m for m in members if _normal(m.name) == _DPKG_STATUS), None)
        file = members.extractfile(status) if status else None
        return dpkg.parse(file.read().decode("utf-8", "replace")) if file else ()
