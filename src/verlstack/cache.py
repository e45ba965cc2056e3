"""The cache on disk: where things lie, and how a file gets there whole or not at all.

Layout below the root (VERLSTACK_CACHE, else XDG_CACHE_HOME/verlstack, else ~/.cache/verlstack):
`files/SHA256/NAME` downloads · `built/KEY/` wheels built from source · `tools/KEY/` what they were built with ·
`layers/KEY.{blob,json}` finished layers · `compiled/KEY/SHA256.json` what compiled wheels were made with ·
`symbols/` what libraries define that those link to · `bases/KEY/` base images · `answers/` of the resolver ·
`needs/` what a wheel's objects need of the C library · `baselibs/` what a base's C library has ·
`probes/` import probes by lock · `contents/` what of packages a layer holds · `tool-wheels/` of bundles ·
`parts/` downloads to resume · `verlstack-tmp/` what is being written, and images that run unpacked · `locks/`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import re
import secrets
import stat
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

from verlstack import reading
from verlstack.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PREFIX = 50  # letters of a file's name, of up to 4 bytes each, in that of the unfinished one, which has at most 255
# .NAME.BOOT.RANDOM.verlstack: so that nobody else's hidden file is taken for what a killed run left.
_UNFINISHED = re.compile(r"\..+\.(?P<boot>[0-9a-f]{12})\.[a-z0-9_]{8}\.verlstack", re.DOTALL)
_ABANDONED = 86_400  # seconds without a write after which nobody is at work on a file, wherever they are
CHUNK = 1 << 20  # bytes; large enough that per-call overhead vanishes beside SHA-256

_STORAGE_TROUBLE = {
    errno.ENOSPC: ("no space left on the device", "free some space, or set VERLSTACK_CACHE to a larger disk"),
    errno.EDQUOT: ("the disk quota is used up", "free some space, or set VERLSTACK_CACHE to another disk"),
    errno.EROFS: ("the file system is read-only", "set VERLSTACK_CACHE to a folder that can be written"),
    errno.EACCES: ("permission denied", "set VERLSTACK_CACHE to a folder of your own"),
    errno.EPERM: ("operation not permitted", "set VERLSTACK_CACHE to a folder of your own"),
    errno.EIO: ("the disk reports an input/output error", "check the disk, then run the command again"),
    errno.EEXIST: ("a file stands where a folder is needed", "move that file away"),
    errno.ENOLCK: ("the file system has no locks", "set VERLSTACK_CACHE to a folder on a local disk"),
    errno.ENOTDIR: ("a file stands where a folder is needed", "move that file away"),
}


@contextlib.contextmanager
def storage_errors(path: Path, *, todo: str | None = None) -> Iterator[None]:
    """Turn the operating system's refusals around `path` into a StorageError that says what to do.

    Args:
        path: what is written, unless the refusal names a file itself.
        todo: advice where `path` is not in the cache.

    Raises:
        StorageError: for the errno values of a full, read-only or forbidden disk; other OSErrors pass unchanged.
    """
    try:
        yield
    except OSError as e:
        trouble = _STORAGE_TROUBLE.get(e.errno or 0)
        if trouble is None:
            raise
        where = _meant(Path(str(e.filename or path)), path)
        raise StorageError(f"cannot write: {trouble[0]}", where=str(where), todo=todo or trouble[1]) from e


def _meant(refused: Path, path: Path) -> Path:
    """What to call a file that was refused: the unfinished one beside `path` is no name that the user gave."""
    ours = refused.parent == path.parent and refused.name.startswith(f".{path.name[:_PREFIX]}.")
    return path if ours else refused


def check_replaceable(target: Path, *, todo: str | None = None) -> None:
    """Refuse to put a file where no file stands: as root, /dev/null would be a file from then on, for everybody.

    Raises:
        StorageError: a device, pipe, socket or folder is there, or behind the link there.
    """
    with storage_errors(target, todo=todo):
        if target.exists() and not target.is_file():
            what = "cannot write: what stands there is no file that could be replaced"
            raise StorageError(what, where=str(target), todo=todo or "name another file")


def behind_links(target: Path, *, todo: str) -> Path:
    """The file to write where a user names one: what a link there leads to, so that the link stays.

    Raises:
        StorageError: as `check_replaceable`, or links lead round in a circle.
    """
    check_replaceable(target, todo=todo)  # first: a pipe behind /dev/stdout has no path
    if not target.is_symlink():
        return target
    real = Path(os.path.realpath(target))
    if real.is_symlink():
        raise StorageError("cannot write: the links there lead round in a circle", where=str(target), todo=todo)
    return real


def sha256_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with reading.opened(path) as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


@contextlib.contextmanager
def atomic(target: Path, *, tmp: Path | None = None, mode: int = 0o644, todo: str | None = None) -> Iterator[IO[bytes]]:
    """Open a temporary file that becomes `target`, fsynced, when the block ends well, and vanishes when it does not.

    Its `name` is its path, for programs that write it themselves. It is locked until it has its final name: so it
    is told from those that killed runs left in the same folder, which are removed first: on a file system of many
    machines only after a day, where another one wrote it, for locks there may be each machine's own.

    Args:
        target: final path; an existing file is replaced in one step.
        tmp: folder on the same file system for the unfinished file; the target's own by default.
        mode: permission bits of the finished file.
        todo: advice where `target` is not in the cache.

    Raises:
        StorageError: the disk is full, read-only or forbidden, something that is no file is there, or somebody removed
            the unfinished file.
    """
    check_replaceable(target, todo=todo)
    with storage_errors(target, todo=todo):
        target.parent.mkdir(parents=True, exist_ok=True)
        if tmp is None:  # `Cache.use` empties its own
            _sweep(target.parent)
        handle, unfinished = _begun(target, tmp or target.parent)
    try:
        with open(unfinished, "wb", opener=lambda *_: handle) as f:
            with _errors_of_writing(target, todo):
                yield f
            with storage_errors(target, todo=todo):
                f.flush()
                os.fchmod(f.fileno(), mode)
                os.fsync(f.fileno())
                _finish(unfinished, target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _finish(unfinished: Path, target: Path) -> None:
    try:
        unfinished.replace(target)
    except FileNotFoundError as e:
        what = "cannot write: what was being written was removed meanwhile"
        raise StorageError(what, where=str(target), todo="see who cleans up in this folder, and run again") from e


@functools.cache
def boot() -> str:
    """A number of this boot of this machine (random(4)): who has the same one sees our locks and processes."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").replace("-", "")[:12]
    except OSError:
        return secrets.token_hex(6)  # without /proc nobody knows who shares it


def _begun(target: Path, folder: Path) -> tuple[int, Path]:
    """A new unfinished file, locked: its handle and path."""
    prefix = f".{target.name[:_PREFIX]}.{boot()}."
    while True:
        handle, name = tempfile.mkstemp(prefix=prefix, suffix=".verlstack", dir=folder)
        with contextlib.suppress(OSError):  # on a file system without locks nothing can be swept either
            fcntl.flock(handle, fcntl.LOCK_EX)
        if (path := Path(name)).exists():
            return handle, path
        os.close(handle)  # another run took it for a leftover before it was locked


def _sweep(folder: Path) -> None:
    """Remove what killed runs left unfinished in a folder: the kernel has freed their locks."""
    for path in folder.glob(".*.verlstack"):
        if (match := _UNFINISHED.fullmatch(path.name)) is None:
            continue
        with contextlib.suppress(OSError):  # somebody is at work on it, or it is another user's
            if match["boot"] != boot() and time.time() - path.stat().st_mtime < _ABANDONED:
                continue  # of another machine, whose lock we may not see
            # NFS gives an exclusive lock on what is open for writing alone; opening a pipe must not wait
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if stat.S_ISREG(os.fstat(handle).st_mode):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
            finally:
                os.close(handle)


@contextlib.contextmanager
def _errors_of_writing(target: Path, todo: str | None) -> Iterator[None]:
    """As `storage_errors`, for a block of somebody else's: what names a file is about one that it opened itself."""
    try:
        yield
    except OSError as e:
        if e.filename is not None:
            raise
        with storage_errors(target, todo=todo):
            raise


class Cache:
    """Paths and locks of one cache root; creating the object touches nothing."""

    def __init__(self, root: Path) -> None:
        """Remember the root folder; nothing is created yet."""
        self.root = root

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Cache:
        """The cache that `env` asks for: VERLSTACK_CACHE, else XDG_CACHE_HOME/verlstack, else ~/.cache/verlstack.

        Raises:
            StorageError: the user has no home folder.
        """
        try:
            if own := env.get("VERLSTACK_CACHE"):
                return cls(Path(own).expanduser().absolute())
            if xdg := env.get("XDG_CACHE_HOME"):
                return cls(Path(xdg).absolute() / "verlstack")
            return cls(Path(env.get("HOME") or Path.home()).absolute() / ".cache" / "verlstack")
        except RuntimeError as e:  # pathlib's word for a user without home
            todo = "set VERLSTACK_CACHE to a folder of yours"
            raise StorageError("there is no home folder to keep the cache in", todo=todo) from e

    @property
    def tmp(self) -> Path:
        """Folder for unfinished files, on the cache's own file system."""
        return self.root / "verlstack-tmp"  # a name of our own: it is emptied

    @property
    def layers(self) -> Path:
        """Finished layers."""
        return self.root / "layers"

    @property
    def bases(self) -> Path:
        """Base images."""
        return self.root / "bases"

    @property
    def parts(self) -> Path:
        """Downloads that can be resumed, one `SHA256.part` each."""
        return self.root / "parts"

    def file(self, sha256: str, filename: str) -> Path:
        """Where a fetched file with this hash lies; its own name is kept because a wheel's name carries its tags."""
        return self.root / "files" / sha256 / filename

    def built(self, key: str) -> Path:
        """Folder of a wheel built from source under this key."""
        return self.root / "built" / key

    def tools(self, key: str) -> Path:
        """Virtual environment of the build tools under this key."""
        return self.root / "tools" / key

    @contextlib.contextmanager
    def use(self) -> Iterator[Cache]:
        """Hold the cache for a command's lifetime; the first user in sweeps what a killed one left unfinished.

        Raises:
            StorageError: the cache cannot be created or written.
        """
        with storage_errors(self.root):
            for folder in (self.tmp, self.parts, self.layers, self.bases, self.root / "locks"):
                folder.mkdir(parents=True, exist_ok=True)
            gate = (self.root / "locks" / "use").open("a")
        with gate:
            try:
                fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                pass  # somebody else is at work: leave their unfinished files alone
            else:
                _empty(self.tmp)
            with storage_errors(self.root):
                fcntl.flock(gate, fcntl.LOCK_SH)
            yield self

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Serialise work on one cache entry between processes; the kernel frees the lock of a killed holder."""
        path = self.root / "locks" / name
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = path.open("a")
        with handle:
            with storage_errors(path):
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield


def _empty(folder: Path) -> None:
    if folder.is_symlink():
        raise StorageError("the folder for unfinished files is a link", where=str(folder), todo="remove the link")
    for path in sorted(folder.rglob("*"), reverse=True):
        with contextlib.suppress(OSError):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
