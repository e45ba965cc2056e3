"""The file format of a bundle: one tar that its own manifest determines to the byte, and that is read back warily."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from verlstack import canonical, layer, reading, tar, told
from verlstack.cache import CHUNK, atomic, storage_errors
from verlstack.content import Inline, OnDisk
from verlstack.errors import FetchError, HashMismatchError, UsageError, WheelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from verlstack.content import Source

MANIFEST = "MANIFEST.json"  # sorts before every other member, whose names begin with a small letter
FORMAT = 1
_MOST = 1 << 24  # bytes of the manifest; that of cu121 has 80 kB
_MOST_SIZE = 1 << 40  # bytes of a member
_PART = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._+!@=~-]+")  # of a path
_TOP = re.compile(r"[a-z]")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ELSEWHERE = "see that the folder can be written and has space, or choose another FILE"
_TODO = "copy the bundle again, or make it again with `verlstack bundle`"


@dataclass(frozen=True, kw_only=True)
class Written:
    """A finished bundle."""

    size: int
    sha256: str
    members: int


def write(
    target: Path,
    facts: Mapping[str, Any],
    members: Mapping[str, Source],
    *,
    epoch: int,
    progress: Callable[[int], None],
) -> Written:
    """Write a bundle, streaming; the same facts and members give the same bytes.

    Args:
        target: the file, replaced in one step when all is written.
        facts: what the manifest says besides its files.
        members: path → content.
        epoch: modification time of every member.
        progress: called with the number of bytes just written.

    Raises:
        UsageError: a file's name is one that no bundle may have.
        StorageError: the disk is full, read-only or forbidden, or a file changed meanwhile.
    """
    if strange := next((name for name in members if not _is_name(name)), None):
        what = f"{told.escaped(strange)} cannot be in a bundle: letters, digits and ._+!@=~- alone"
        raise UsageError(what, todo="rename that file")
    files = {path: {"sha256": _sha256(source), "size": source.size} for path, source in members.items()}
    document = {**facts, "epoch": epoch, "files": files, "format": FORMAT}
    document["checksum"] = canonical.digest(document)
    entries = [tar.file(path, source) for path, source in members.items()]
    entries.append(tar.file(MANIFEST, Inline(data=canonical.dumps(document))))
    digest, size = hashlib.sha256(), 0
    with atomic(target, todo=_ELSEWHERE) as out:
        for piece in layer.stream(layer.arrange(entries), epoch=epoch):
            out.write(piece)
            digest.update(piece)
            size += len(piece)
            progress(len(piece))
    return Written(size=size, sha256=digest.hexdigest(), members=len(files))


def _sha256(source: Source) -> str:
    if isinstance(source, Inline):
        return hashlib.sha256(source.data).hexdigest()
    return str(source.sha256)


def read(path: Path, folder: Path, progress: Callable[[int], None]) -> dict[str, Any]:
    """Check a bundle from its first to its last byte while writing its members below a folder; the manifest.

    The manifest determines every byte that follows it: order, headers, padding, end. What is not exactly so is refused,
    so no link, no second member of a name and no path out of the folder can be in it.

    Args:
        path: the bundle.
        folder: where to put the members.
        progress: called with the number of bytes just read.

    Raises:
        FetchError: no bundle, or a member is missing.
        HashMismatchError: a member, named, is not what the manifest says.
        StorageError: the disk is full, read-only or forbidden.
    """
    with _opened(path) as file:
        document, epoch = _manifest(file, path)
        entries = _entries(document["files"], path)
        for entry in entries:
            wanted = tar.header(entry, epoch)
            got = file.read(len(wanted))
            if got != wanted:
                raise _stranger(entry.path, got, {x.path for x in entries}, path)
            if entry.content is not None:
                with storage_errors(folder):
                    _member(file, entry, folder, path, progress)
        if file.read(len(tar.END) + 1) != tar.END:
            raise HashMismatchError("the end of the bundle is damaged", where=str(path), todo=_TODO)
    return document


def _opened(path: Path) -> IO[bytes]:
    try:
        return reading.opened(path)
    except OSError as e:
        raise FetchError(
            f"the bundle cannot be read: {e.strerror}", where=str(path), todo="check the path, and that you may read it"
        ) from e


def _manifest(file: IO[bytes], path: Path) -> tuple[dict[str, Any], int]:
    """The manifest and the modification time, both known to be as `write` would have them."""
    head = file.read(tar.BLOCK)
    try:
        size, epoch = int(head[124:135], 8), int(head[136:147], 8)
        body = file.read(size) if 0 <= size <= _MOST else b""
        expected: bytes | None = tar.header(tar.file(MANIFEST, Inline(data=body)), epoch)
    except ValueError:
        expected, size = None, 0
    if head != expected:
        what = f"no bundle: it does not begin with {MANIFEST}, or that is damaged"
        raise FetchError(what, where=str(path), todo="name a file that `verlstack bundle` wrote")
    padding = file.read(len(tar.padding(size)))
    try:
        document = json.loads(body)
        checksum = document.pop("checksum")
        sound = canonical.digest(document) == checksum and padding == tar.padding(size)
        sound = sound and canonical.dumps({**document, "checksum": checksum}) == body and document["epoch"] == epoch
        sound = sound and document["format"] == FORMAT and isinstance(document["files"], dict)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        sound = False
    if not sound:
        raise HashMismatchError(f"{MANIFEST} of the bundle is damaged", where=str(path), todo=_TODO)
    return document, epoch


def _entries(files: Mapping[str, Any], path: Path) -> list[tar.Entry]:
    """What must follow the manifest, in order."""
    found = []
    for name, facts in files.items():
        size, sha256 = (facts.get("size"), facts.get("sha256")) if isinstance(facts, dict) else (None, None)
        if type(size) is not int or not 0 <= size < _MOST_SIZE or not _is_member(name, sha256):
            what = f"the manifest names a member that no bundle has: {told.escaped(name)[:100]}"
            raise FetchError(what, where=str(path), todo="do not use this bundle")
        found.append(tar.file(name, OnDisk(path=path, size=size, sha256=str(sha256))))
    try:
        return layer.arrange(found)
    except WheelError as e:
        raise FetchError(f"the manifest contradicts itself: {e.what}", where=str(path), todo=_TODO) from e


def _is_name(name: str) -> bool:
    return bool(_TOP.match(name)) and all(_PART.fullmatch(part) for part in name.split("/"))


def _is_member(name: str, sha256: object) -> bool:
    return _is_name(name) and bool(_SHA256.fullmatch(str(sha256)))


def _stranger(wanted: str, got: bytes, known: set[str], path: Path) -> FetchError:
    """The error for other bytes than the header of the member that must come."""
    if got[: tar.BLOCK].strip(b"\0") == b"":
        return FetchError(f"the bundle ends before {wanted}", where=str(path), todo=_TODO)
    try:
        name = tarfile.TarInfo.frombuf(got[: tar.BLOCK], "utf-8", "backslashreplace").name
    except tarfile.TarError:
        return HashMismatchError(f"the header of {wanted} is damaged", where=str(path), todo=_TODO)
    if name == wanted:
        return HashMismatchError(f"{wanted} is no plain file of the size it must have", where=str(path), todo=_TODO)
    there = told.escaped(name)[:100]
    if name in known:
        return FetchError(f"the bundle lacks {wanted}; {there} stands in its place", where=str(path), todo=_TODO)
    what = f"the bundle holds {there}, which its manifest does not name, in place of {wanted}"
    return FetchError(what, where=str(path), todo="do not use this bundle")


def _member(file: IO[bytes], entry: tar.Entry, folder: Path, path: Path, progress: Callable[[int], None]) -> None:
    """Write one member while hashing it."""
    target, left, digest = folder / entry.path, entry.size, hashlib.sha256()
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as out:
        while left:
            data = file.read(min(CHUNK, left))
            if not data:
                raise FetchError(f"the bundle ends within {entry.path}", where=str(path), todo=_TODO)
            digest.update(data)
            out.write(data)
            left -= len(data)
            progress(len(data))
    wanted = getattr(entry.content, "sha256", None)
    if digest.hexdigest() != wanted:
        what = f"{entry.path} of the bundle has sha256 {digest.hexdigest()}, the manifest says {wanted}"
        raise HashMismatchError(what, where=str(path), todo=_TODO)
    if file.read(len(tar.padding(entry.size))) != tar.padding(entry.size):
        raise HashMismatchError(f"what follows {entry.path} in the bundle is damaged", where=str(path), todo=_TODO)
