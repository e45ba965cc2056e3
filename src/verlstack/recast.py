"""A layer of another builder by our own tar rules, without unpacking it: the diff_id of its content alone."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from verlstack import layer, tar
from verlstack.content import Slice
from verlstack.errors import ProofError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from verlstack.trees import Member


def diff_id(blob: Path, members: Iterable[Member], *, epoch: int, progress: Callable[[int], None]) -> str:
    """The diff_id that a layer has once written by the composer's rules (docs/image-format.md, "A layer").

    Order, times, header format, parent directories and hard links are ours then; paths, types, modes, owners, contents
    and link targets stay, so two layers agree if and only if they put the same things at the same paths.

    Args:
        blob: the layer's uncompressed tar.
        members: its entries, as `trees.read` gave them for this very file.
        epoch: modification time of every entry.
        progress: called with the number of bytes just written.

    Raises:
        ProofError: an entry is one that our format has not: a device, a pipe, a whiteout, an extended attribute.
        StorageError: the file changed meanwhile.
    """
    digest = hashlib.sha256()
    for piece in layer.stream(layer.arrange(_entries(blob, members)), epoch=epoch):
        digest.update(piece)
        progress(len(piece))
    return f"sha256:{digest.hexdigest()}"


def _entries(blob: Path, members: Iterable[Member]) -> list[tar.Entry]:
    last = {member.path: member for member in members if member.path}  # of two entries for one path, the later counts
    return [_entry(blob, member, last) for member in last.values()]


def _entry(blob: Path, member: Member, last: Mapping[str, Member]) -> tar.Entry:
    holder = last.get(member.hard, member)  # of the content: the member itself, or the file that a hard link names
    node = holder.node
    if node is None:
        raise _foreign(member, "a hard link out of its layer" if member.hard else "a whiteout")
    if node.kind not in {"file", "dir", "symlink"}:
        raise _foreign(member, f"of type {node.kind}")
    if node.xattrs:
        raise _foreign(member, f"with the extended attribute {node.xattrs[0][0]}")
    content = Slice(path=blob, offset=holder.offset, size=node.size, sha256=node.content)
    return tar.Entry(
        path=member.path,
        kind=node.kind,
        mode=node.mode,
        content=content if node.kind == "file" else None,
        link=node.content if node.kind == "symlink" else "",
        uid=node.uid,
        gid=node.gid,
    )


def _foreign(member: Member, what: str) -> ProofError:
    what = f"/{member.path} is {what}, which the image format has not"
    return ProofError(what, todo="see what made it in this layer")
