"""What an image's layers leave at every path, read without unpacking: the root tree, for comparing two builders."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import posixpath
import tarfile
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Literal, cast

from isal import igzip

from verlstack import layer
from verlstack.errors import ProofError
from verlstack.foreigntar import Bounded, Hashing

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

Kind = Literal["file", "dir", "symlink", "char", "block", "fifo"]

# Bounds for hostile archives, far above the 60,000 entries and 6 GB of cu121.
_MAX_MEMBERS = 1_000_000  # of one layer
_MAX_KEPT = 1 << 24  # bytes of a file that is kept; the longest RECORD of cu121 has 1.4 MB
_MAX_LINKS = 40  # what Linux follows (path_resolution(7))
_CHUNK = 1 << 20
_OPAQUE = ".wh..wh..opq"
_WHITEOUT = ".wh."
_KINDS: dict[bytes, Kind] = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.CONTTYPE: "file",
    tarfile.DIRTYPE: "dir",
    tarfile.SYMTYPE: "symlink",
    tarfile.CHRTYPE: "char",
    tarfile.BLKTYPE: "block",
    tarfile.FIFOTYPE: "fifo",
}
# What tarfile and the decompressors raise for archives that are not as they should be.
_UNREADABLE = (
    *(tarfile.TarError, EOFError, ValueError, ArithmeticError, RecursionError),
    *(layer.ZstdError, igzip.BadGzipFile),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """What lies at one path. Times are left out: an engine sets its own, and no program reads them.

    Attributes:
        mode: permission bits, with setuid, setgid and sticky.
        size: bytes of a file, else 0.
        content: SHA-256 of a file, target of a symbolic link, `major:minor` of a device, else empty.
        xattrs: extended attributes as (name, value), sorted.
    """

    kind: Kind
    mode: int
    uid: int
    gid: int
    size: int = 0
    content: str = ""
    xattrs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One entry of a layer's tar.

    Attributes:
        path: normalised, from the root, without leading slash; empty for the root itself.
        node: what it puts there; None for a hard link or a whiteout.
        hard: path of the file that a hard link names, else empty.
        offset: where a file's bytes begin in the uncompressed tar.
    """

    path: str
    node: Node | None
    hard: str = ""
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class Content:
    """One layer, read once from end to end.

    Attributes:
        members: its entries, in order.
        diff_id: `sha256:…` of the tar stream.
        kept: bytes of the small files that the caller asked for, by path.
    """

    members: tuple[Member, ...]
    diff_id: str
    kept: dict[str, bytes]


def read(
    blob: Path,
    media_type: str,
    *,
    keep: re.Pattern[str] | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Content:
    """Read a layer once: every entry, the SHA-256 of every file, and the diff_id. Nothing is unpacked.

    Args:
        blob: the layer.
        media_type: of OCI; its end says how the layer is compressed.
        keep: paths of the small files whose bytes the caller needs.
        progress: called with the number of uncompressed bytes just read.

    Raises:
        ProofError: not a tar in this compression, larger than any image, or with entries that no image has.
    """
    try:
        with layer.opened(blob, media_type.rpartition("+")[2]) as stream:
            hashing = Hashing(stream, progress)
            members, kept = _members(hashing, keep)
            while hashing.read(_CHUNK):
                pass  # what follows the end of the archive counts for the diff_id
    except _UNREADABLE as e:
        raise ProofError(f"a layer cannot be read: {e}", where=str(blob), todo="build the image again") from e
    return Content(members=tuple(members), diff_id=f"sha256:{hashing.digest.hexdigest()}", kept=kept)


def _members(hashing: Hashing, keep: re.Pattern[str] | None) -> tuple[list[Member], dict[str, bytes]]:
    found: list[Member] = []
    kept: dict[str, bytes] = {}
    source = cast("IO[bytes]", hashing)
    # 1 MiB a read: tarfile's own 10 kB costs a quarter of the time
    text = functools.partial(tarfile.open, encoding="utf-8", errors="backslashreplace")  # names are printed, and JSON
    with text(fileobj=source, mode="r|", bufsize=_CHUNK, tarinfo=Bounded) as archive:
        for member in archive:
            if len(found) >= _MAX_MEMBERS:
                raise tarfile.ReadError(f"more than {_MAX_MEMBERS} entries")
            path = _inside(member.name)
            wanted = keep is not None and member.size <= _MAX_KEPT and bool(keep.fullmatch(path))
            content, data = _hashed(archive, member, wanted=wanted)
            found.append(described(member, content))
            if wanted:
                kept[path] = data
    return found, kept


def _inside(name: str) -> str:
    """A path from the root that cannot climb above it."""
    return posixpath.normpath(f"/{name}").lstrip("/")


def described(member: tarfile.TarInfo, content: str) -> Member:
    """One entry of a layer's tar.

    Args:
        member: the entry.
        content: of a file: its SHA-256, or what the caller knows it by.

    Raises:
        tarfile.ReadError: it is of a type that no image has.
    """
    path = _inside(member.name)
    if posixpath.basename(path).startswith(_WHITEOUT):
        return Member(path=path, node=None)
    if member.islnk():
        return Member(path=path, node=None, hard=_inside(member.linkname) or ".")
    kind = _KINDS.get(member.type)
    if kind is None or member.issparse():
        raise tarfile.ReadError(f"{member.name!r} is of type {member.type!r}, which no image has")
    if kind == "symlink":
        content = member.linkname
    elif kind in {"char", "block"}:
        content = f"{member.devmajor}:{member.devminor}"
    node = Node(
        kind=kind,
        mode=member.mode & 0o7777,
        uid=member.uid,
        gid=member.gid,
        size=member.size if kind == "file" else 0,
        content=content,
        xattrs=tuple(sorted((k, v) for k, v in member.pax_headers.items() if "xattr" in k.lower())),
    )
    return Member(path=path, node=node, offset=member.offset_data)


def _hashed(archive: tarfile.TarFile, member: tarfile.TarInfo, *, wanted: bool) -> tuple[str, bytes]:
    """SHA-256 of a file, and its bytes if they are wanted; both empty for anything else."""
    if not member.isreg():
        return "", b""
    digest, pieces = hashlib.sha256(), []
    with contextlib.closing(cast("IO[bytes]", archive.extractfile(member))) as content:
        while piece := content.read(_CHUNK):
            digest.update(piece)
            if wanted:
                pieces.append(piece)
    return digest.hexdigest(), b"".join(pieces)


def _hidden(member: Member) -> str:
    """The name that a whiteout takes away."""
    name = posixpath.basename(member.path).removeprefix(_WHITEOUT)
    if name in {"", ".", ".."}:
        raise ProofError(f"/{member.path} is a whiteout without a name", todo="do not use this image")
    return name


@dataclass
class Tree:
    """Layers laid over one another as an engine does it.

    Attributes:
        nodes: path → what lies there.
        origin: path → number of the layer that put it there, counted from 0.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    origin: dict[str, int] = field(default_factory=dict)
    _below: dict[str, set[str]] = field(default_factory=dict)  # names in each folder, so that removing one is cheap
    _layers: int = 0

    def lay(self, members: Iterable[Member]) -> None:
        """Lay one layer over what is there; its whiteouts concern the layers below alone (image-spec, "Whiteouts").

        Raises:
            ProofError: links go in a circle, a hard link names no file, or a whiteout none at all.
        """
        own: list[Member] = []
        for member in members:
            folder, name = posixpath.split(member.path)
            if name == _OPAQUE:
                self._empty(self.resolve(folder))
            elif name.startswith(_WHITEOUT):
                self._remove(posixpath.join(self.resolve(folder), _hidden(member)))
            else:
                own.append(member)
        for member in own:
            folder, name = posixpath.split(member.path)
            self._put(posixpath.join(self.resolve(folder), name), member.node or self._linked(member))
        self._layers += 1

    def _linked(self, member: Member) -> Node:
        folder, name = posixpath.split(member.hard)
        node = self.nodes.get(posixpath.join(self.resolve(folder), name))
        if node is None or node.kind == "dir":
            raise ProofError(
                f"/{member.path} is a hard link to /{member.hard}, which is no file", todo="do not use this image"
            )
        return node

    def _put(self, path: str, node: Node) -> None:
        if node.kind != "dir":
            self._empty(path)
        self.nodes[path] = node
        self.origin[path] = self._layers
        self._attach(path)

    def _attach(self, path: str) -> None:
        """Have every folder above a path; one that no entry describes is 0755 and root's, as engines make it."""
        while path:
            folder, name = posixpath.split(path)
            self._below.setdefault(folder, set()).add(name)
            if not folder or (folder in self.nodes and self.nodes[folder].kind == "dir"):
                return
            self.nodes[folder] = Node(kind="dir", mode=0o755, uid=0, gid=0)
            self.origin[folder] = self._layers
            path = folder

    def _remove(self, path: str) -> None:
        self._empty(path)
        if self.nodes.pop(path, None) is not None:
            folder, name = posixpath.split(path)
            self._below[folder].discard(name)
            del self.origin[path]

    def _empty(self, path: str) -> None:
        """Take away what lies below a path."""
        todo = [path]
        while todo:
            folder = todo.pop()
            for name in self._below.pop(folder, ()):
                gone = posixpath.join(folder, name)
                todo.append(gone)
                del self.nodes[gone], self.origin[gone]

    def resolve(self, path: str) -> str:
        """The path behind all links, whether or not something is there; `..` stops at the root.

        Raises:
            ProofError: links go in a circle.
        """
        at, rest, followed = "", [part for part in reversed(path.split("/")) if part], 0
        while rest:
            part = rest.pop()
            if part == "..":
                at = posixpath.dirname(at)
                continue
            at = posixpath.join(at, part)
            node = self.nodes.get(at)
            if node is not None and node.kind == "symlink":
                followed += 1
                if followed > _MAX_LINKS:
                    raise ProofError(f"links without end at /{path}", todo="do not use this image")
                rest += [one for one in reversed(node.content.split("/")) if one not in {"", "."}]
                at = "" if node.content.startswith("/") else posixpath.dirname(at)
        return at


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One path at which two trees differ.

    Attributes:
        one: what the first tree has there, or None.
        other: what the second has, or None.
    """

    path: str
    one: Node | None
    other: Node | None

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the facts that differ; empty where one tree has nothing there."""
        if self.one is None or self.other is None:
            return ()
        names = (f.name for f in dataclasses.fields(Node))
        return tuple(name for name in names if getattr(self.one, name) != getattr(self.other, name))


def compare(one: Mapping[str, Node], other: Mapping[str, Node]) -> tuple[Difference, ...]:
    """Every path at which two trees differ in type, mode, owner, size, content, link target or attributes; sorted."""
    return tuple(
        Difference(path=path, one=one.get(path), other=other.get(path))
        for path in sorted(one.keys() | other.keys())
        if one.get(path) != other.get(path)
    )
