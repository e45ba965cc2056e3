"""What a stack of layers holds, without unpacking it: one pass that also proves each diff_id."""

from __future__ import annotations

import functools
import hashlib
import posixpath
import re
import tarfile
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, cast

import zstandard
from isal import igzip

from verlstack import layer, trees
from verlstack.base import debs
from verlstack.errors import BaseImageError, ProofError
from verlstack.foreigntar import Bounded, Hashing

if TYPE_CHECKING:
    from pathlib import Path

_CHUNK = 1 << 20  # bytes per read while draining
_MAX_KEPT = 1 << 25  # bytes a file; the status of 3000 packages is 4 MB, libstdc++ 2 MB
_MAX_KEPT_SUM = 1 << 27  # bytes an image
_MAX_PATHS = 1 << 22  # an image of 50 GB with a desktop in it has 1 million
# What says what an image is: its system, its Python, its packages, its C and C++ libraries.
_KEPT = re.compile(
    r".*/(os-release|patchlevel\.h)|/var/lib/dpkg/status(\.d/[^/]+)?"
    rf"|/{re.escape(debs.PATH)}"
    r"|/(usr/)?lib(64|/x86_64-linux-gnu)?/(libc\.so\.6|libc-2\.\d+\.so|libstdc\+\+\.so\.6[.\d]*)"
)
# tarfile lets through what it trips over: a number that is none, a name without end, headers nested too deep.
_NO_TAR = (
    *(tarfile.TarError, zstandard.ZstdError, igzip.BadGzipFile, EOFError, OSError),
    *(ValueError, ArithmeticError, RecursionError),
)
_LIBRARY_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "lib/x86_64-linux-gnu",
    "usr/lib64",
    "lib64",
    "usr/lib",
    "usr/local/lib",
)


@dataclass
class Tree:
    """An image's root tree, and the few files in it that say what the image is.

    Attributes:
        root: the layers laid over one another; of its files only the kept ones have a `content`, the key of their text.
        texts: SHA-256 → the text that has it.
    """

    root: trees.Tree = field(default_factory=trees.Tree)
    texts: dict[str, bytes] = field(default_factory=dict)

    def real(self, path: str) -> str | None:
        """The path behind all links, or None where nothing is, or links go in a circle."""
        try:
            at = self.root.resolve(path)
        except ProofError:
            return None
        return at if at in self.root.nodes else None

    def is_file(self, path: str) -> bool:
        """Whether a regular file lies there, links followed."""
        real = self.real(path)
        return real is not None and self.root.nodes[real].kind == "file"

    def text(self, path: str) -> str:
        """Content of a kept file, links followed; empty if there is none."""
        return self._bytes(path).decode("utf-8", "replace")

    def library(self, name: str) -> bytes:
        """The C or C++ library of that name in the loader's default folders; empty if there is none."""
        return next(filter(None, (self._bytes(f"{folder}/{name}") for folder in _LIBRARY_FOLDERS)), b"")

    def libraries(self) -> list[str]:
        """Names of the shared objects in the loader's default folders."""
        found = {posixpath.split(path) for path in self.root.nodes if ".so" in path}
        return sorted({name for folder, name in found if folder in _LIBRARY_FOLDERS})

    def paths(self, pattern: str) -> list[str]:
        """Paths that a pattern fits as a whole, sorted."""
        return sorted(path for path in self.root.nodes if re.fullmatch(pattern, path))

    def _bytes(self, path: str) -> bytes:
        real = self.real(path)
        node = self.root.nodes[real] if real is not None else None
        return self.texts.get(node.content, b"") if node and node.kind == "file" else b""


def lay(tree: Tree, blob: Path, kind: str) -> tuple[str, int]:
    """Lay a layer's entries over `tree`.

    Args:
        tree: changed in place.
        blob: the layer as it came.
        kind: "gzip", "zstd" or "none".

    Returns:
        (diff_id, bytes of the tar stream).

    Raises:
        BaseImageError: not a tar in this compression, one without measure, or with links that lead nowhere.
    """
    try:
        with layer.opened(blob, kind) as stream:
            hashing = Hashing(stream)
            _apply(tree, hashing)
            while hashing.read(_CHUNK):
                pass  # what follows the end of the archive counts for the diff_id
    except _NO_TAR as e:
        raise BaseImageError(f"a layer is no {kind} tar: {e}", where=str(blob), todo="use another image") from e
    except ProofError as e:
        raise BaseImageError(e.what, where=str(blob), todo="use another image") from e
    return f"sha256:{hashing.digest.hexdigest()}", hashing.size


def _apply(tree: Tree, hashing: Hashing) -> None:
    added: list[trees.Member] = []
    kept = sum(map(len, tree.texts.values()))
    source = cast("IO[bytes]", hashing)
    text = functools.partial(tarfile.open, encoding="utf-8", errors="backslashreplace")  # names are printed, and JSON
    with text(fileobj=source, mode="r|", tarinfo=Bounded) as members:
        for member in members:
            content = _text(members, member)
            kept += len(content)
            key = hashlib.sha256(content).hexdigest() if content else ""
            tree.texts |= {key: content} if content else {}
            added.append(trees.described(member, key))
            if kept > _MAX_KEPT_SUM or len(added) + len(tree.root.nodes) > _MAX_PATHS:
                raise tarfile.ReadError("more files than any image has")
    tree.root.lay(added)
    alive = {node.content for node in tree.root.nodes.values() if node.kind == "file"}
    for key in tree.texts.keys() - alive:
        del tree.texts[key]  # a later layer has replaced the file


def _text(members: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    path = posixpath.normpath(f"/{member.name}")
    if not (member.isreg() and member.size <= _MAX_KEPT and _KEPT.fullmatch(path)):
        return b""
    file = members.extractfile(member)
    return file.read() if file else b""
