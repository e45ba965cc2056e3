"""What a stack of layers holds, without unpacking it: one pass that also proves each diff_id."""

from __future__ import annotations

import posixpath
import re
import tarfile
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, cast

import zstandard
from isal import igzip

from verlstack import layer
from verlstack.errors import BaseImageError
from verlstack.foreigntar import Bounded, Hashing

if TYPE_CHECKING:
    from pathlib import Path

_CHUNK = 1 << 20  # bytes per read while draining
_MAX_LINKS = 40  # what Linux follows (path_resolution(7))
_MAX_KEPT = 1 << 25  # bytes a file; the status of 3000 packages is 4 MB, libstdc++ 2 MB
_MAX_KEPT_SUM = 1 << 27  # bytes an image
_MAX_PATHS = 1 << 22  # an image of 50 GB with a desktop in it has 1 million
# What says what an image is: its system, its Python, its packages, its C and C++ libraries.
_KEPT = re.compile(
    r".*/(os-release|patchlevel\.h)|/var/lib/dpkg/status(\.d/[^/]+)?"
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
    """Paths of an image after its layers were laid over one another, whiteouts honoured.

    Attributes:
        links: path → target of a symbolic link, "" for a file, None for a directory.
        texts: contents of the few small files that say what the image is.
    """

    links: dict[str, str | None] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)

    def real(self, path: str) -> str | None:
        """The path behind all links, or None where nothing is."""
        at = self.resolve(path)
        return at if at in self.links else None

    def resolve(self, path: str) -> str | None:
        """The path behind all links, whether or not something is there; None where links go in a circle."""
        at, rest, followed = "", [part for part in path.split("/") if part], 0
        while rest:
            part = rest.pop(0)
            if part == "..":
                at = posixpath.dirname(at)
                continue
            at = f"{at}/{part}".lstrip("/")
            if target := self.links.get(at):
                followed += 1
                if followed > _MAX_LINKS:
                    return None
                rest = [one for one in target.split("/") if one not in {"", "."}] + rest
                at = "" if target.startswith("/") else posixpath.dirname(at)
        return at

    def is_file(self, path: str) -> bool:
        """Whether a regular file lies there, links followed."""
        real = self.real(path)
        return real is not None and self.links[real] == ""

    def text(self, path: str) -> str:
        """Content of a kept file, links followed; empty if there is none."""
        return self.texts.get(self.real(path) or "", b"").decode("utf-8", "replace")

    def library(self, name: str) -> bytes:
        """The C or C++ library of that name in the loader's default folders; empty if there is none."""
        places = (self.real(f"{folder}/{name}") for folder in _LIBRARY_FOLDERS)
        return next((self.texts[place] for place in places if place in self.texts), b"")

    def libraries(self) -> list[str]:
        """Names of the shared objects in the loader's default folders."""
        found = {posixpath.split(path) for path in self.links if ".so" in path}
        return sorted({name for folder, name in found if folder in _LIBRARY_FOLDERS})

    def add(self, path: str, target: str | None) -> None:
        """Lay one entry over what is there; a link or file that replaces a directory takes its content away."""
        if target is not None and self.links.get(path, "") is None:
            self.remove(path)
        self.links[path] = target
        self.texts.pop(path, None)

    def remove(self, path: str, *, itself: bool = True) -> None:
        """Take away what lies below a path, and the path itself."""
        below = f"{path}/" if path else ""  # the root's own path is empty
        gone = [known for known in self.links if known.startswith(below) or (itself and known == path)]
        for known in gone:
            del self.links[known]
            self.texts.pop(known, None)


def lay(tree: Tree, blob: Path, kind: str) -> tuple[str, int]:
    """Lay a layer's entries over `tree`.

    Args:
        tree: changed in place.
        blob: the layer as it came.
        kind: "gzip", "zstd" or "none".

    Returns:
        (diff_id, bytes of the tar stream).

    Raises:
        BaseImageError: not a tar in this compression, or one without measure.
    """
    try:
        with layer.opened(blob, kind) as stream:
            hashing = Hashing(stream)
            _apply(tree, hashing)
            while hashing.read(_CHUNK):
                pass  # what follows the end of the archive counts for the diff_id
    except _NO_TAR as e:
        raise BaseImageError(f"a layer is no {kind} tar: {e}", where=str(blob), todo="use another image") from e
    return f"sha256:{hashing.digest.hexdigest()}", hashing.size


def _apply(tree: Tree, hashing: Hashing) -> None:
    """Whiteouts concern the layers below alone, so this layer's own entries are laid after all of them."""
    added: list[tuple[str, str | None, bytes | None]] = []
    kept = sum(map(len, tree.texts.values()))
    source = cast("IO[bytes]", hashing)
    with tarfile.open(fileobj=source, mode="r|", tarinfo=Bounded, encoding="utf-8") as members:
        for member in members:
            folder, name = posixpath.split(_normal(member.name))
            if name == ".wh.":
                raise tarfile.ReadError("a whiteout of nothing")
            if name == ".wh..wh..opq":
                tree.remove(tree.resolve(folder) or folder, itself=False)
            elif name.startswith(".wh."):
                tree.remove(posixpath.join(tree.resolve(folder) or folder, name.removeprefix(".wh.")))
            elif name:
                text = _text(members, member)
                kept += len(text or b"")
                added.append((posixpath.join(folder, name), _target(member), text))
            if kept > _MAX_KEPT_SUM or len(added) + len(tree.links) > _MAX_PATHS:
                raise tarfile.ReadError("more files than any image has")
    for path, target, text in added:
        folder, name = posixpath.split(path)
        place = posixpath.join(tree.resolve(folder) or folder, name)
        tree.add(place, target)
        if text is not None:
            tree.texts[place] = text


def _normal(name: str) -> str:
    """A member's path from the root, `..` stopped there."""
    return posixpath.normpath(f"/{name}").lstrip("/")


def _target(member: tarfile.TarInfo) -> str | None:
    if member.isdir():
        return None
    return member.linkname if member.issym() else ""


def _text(members: tarfile.TarFile, member: tarfile.TarInfo) -> bytes | None:
    if not (member.isreg() and member.size <= _MAX_KEPT and _KEPT.fullmatch(f"/{_normal(member.name)}")):
        return None
    file = members.extractfile(member)
    return file.read() if file else None
