"""Lay the layers of an image over each other in a folder, and never touch anything outside it, whatever they say."""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
import posixpath
import shutil
import tarfile
from typing import TYPE_CHECKING, Any

from verlstack import layer
from verlstack.errors import ProofError

if TYPE_CHECKING:
    from pathlib import Path

_MAX_LINKS = 40  # as the kernel (path_resolution(7))
# Names too long or empty, a file where a folder is needed: what a layer says, and no fault of the disk.
_OF_THE_LAYER = {
    *(errno.ENAMETOOLONG, errno.ENOENT, errno.EINVAL, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP),
    errno.ENOTEMPTY,
}
_MODE = 0o1777  # no setuid or setgid: what is unpacked for a look must not be of use to anybody


def lay(blob: Path, media_type: str, root: Path) -> None:
    """Unpack one layer over `root`; its whiteouts concern the layers below alone (image-spec, "Whiteouts").

    Owners are set where we are root. Devices and pipes are left out.

    Raises:
        ProofError: the blob is no layer, or a hard link names nothing.
    """
    added: set[Path] = set()
    try:
        with contextlib.ExitStack() as stack:
            raw: Any = stack.enter_context(
                layer.opened(blob, media_type.rpartition("+")[2])
            )  # typeshed wants more of it
            for member in (archive := stack.enter_context(tarfile.open(fileobj=raw, mode="r|"))):
                folder, name = posixpath.split(posixpath.normpath(f"/{member.name}"))
                if name:
                    _place(archive, member, resolve(root, folder) / name, root, added)
    except (tarfile.TarError, EOFError, ValueError, layer.ZstdError, gzip.BadGzipFile) as e:
        raise ProofError(f"a layer cannot be unpacked: {e}", where=str(blob), todo="build the image again") from e
    except OSError as e:
        if e.errno not in _OF_THE_LAYER:
            raise
        what = f"a layer cannot be unpacked: {os.strerror(e.errno)}"
        raise ProofError(what, where=str(blob), todo="do not use this image") from e


def resolve(root: Path, name: str) -> Path:
    """Where `name` lies when `root` is the root: links are followed, absolute ones from `root`, and `..` stops there.

    Raises:
        ProofError: too many links.
    """
    at: list[str] = []
    todo = list(reversed(name.split("/")))
    links = 0
    while todo:
        part = todo.pop()
        if part in {"", "."}:
            continue
        if part == "..":
            del at[-1:]
            continue
        path = root.joinpath(*at, part)
        if path.is_symlink():
            links += 1
            if links > _MAX_LINKS:
                raise ProofError(f"links without end at /{name}", todo="do not use this image")
            target = str(path.readlink())
            at = [] if target.startswith("/") else at
            todo += reversed(target.split("/"))
        else:
            at.append(part)
    return root.joinpath(*at)


def _place(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path, root: Path, added: set[Path]) -> None:
    if target.name == ".wh..wh..opq":
        below = set(target.parent.iterdir()) if target.parent.is_dir() else set()
        _remove(below - added)
    elif target.name.startswith(".wh."):
        hidden = target.name.removeprefix(".wh.")
        if hidden in {"", ".", ".."}:  # the last would be the folder above, even that above the root
            raise ValueError(f"{member.name!r} is a whiteout without a name")
        _remove({target.with_name(hidden)} - added)
    elif member.isdir() or member.isreg() or member.issym() or member.islnk():
        folders(target.parent)
        if not (member.isdir() and target.is_dir() and not target.is_symlink()):
            _remove({target})
        _write(archive, member, target, root)
        added.add(target)


def folders(path: Path) -> None:
    """Make a folder and those above it that no layer has an entry for, as 0755 whatever the umask."""
    if not path.is_dir():
        folders(path.parent)
        path.mkdir()
        path.chmod(0o755)


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path, root: Path) -> None:
    if member.issym():
        target.symlink_to(member.linkname)
    elif member.islnk():
        folder, name = posixpath.split(posixpath.normpath(f"/{member.linkname}"))
        source = resolve(root, folder) / name
        if source.is_symlink() or not source.is_file():
            raise ValueError(f"{member.name!r} is a hard link to {member.linkname!r}, which is no file")
        target.hardlink_to(source)
        return
    elif member.isdir():
        target.mkdir(exist_ok=True)
    else:
        with target.open("wb") as out:
            content = archive.extractfile(member)
            shutil.copyfileobj(content, out, 1 << 20) if content else None
    if os.geteuid() == 0:
        os.lchown(target, member.uid, member.gid)
    if not member.issym():
        target.chmod(member.mode & _MODE)


def _remove(paths: set[Path]) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
