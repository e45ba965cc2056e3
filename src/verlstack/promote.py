"""`verlstack promote`: a tag such as `stable` put on an image that the registry has, and a line in a log."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import errno
import fcntl
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from verlstack import canonical, delivery, images, told, upload
from verlstack.base import reference, registry
from verlstack.cache import storage_errors
from verlstack.errors import StorageError, UsageError, VerlstackError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from verlstack.progress import Progress
    from verlstack.workshop import Workshop

_ELSEWHERE = "name a file that can be written, with `--log FILE`"


@dataclass(frozen=True, kw_only=True)
class Moved:
    """One line of the log.

    Attributes:
        at: when, UTC.
        by: the user's name on this machine.
        place: HOST/REPOSITORY.
        before: digest that the tag had, or None.
        after: digest that it has.
    """

    at: str
    by: str
    place: str
    tag: str
    before: str | None
    after: str


def promote(source: str, tag: str, shop: Workshop, *, insecure: bool, log: Path) -> Moved:
    """Put a tag on an image; going back is putting it on the digest before.

    Args:
        source: HOST/REPOSITORY:TAG or HOST/REPOSITORY@sha256:….
        tag: to put there; one that says what is in an image never moves.
        shop: the surroundings.
        insecure: plain http, on loopback only.
        log: gets one line of JSON; there is none, and no new file, where the registry says that the tag is as it was.

    Raises:
        UsageError: no such reference, or no tag.
        PublishError: an immutable tag would be moved.
        FetchError, HashMismatchError: of the registry; what the tag names is then told by the registry alone.
        StorageError: the log cannot be written; nothing was moved.
    """
    ref = reference.place(source, insecure=insecure)
    if ref.digest == reference.NO_DIGEST and not ref.tag:
        raise UsageError(f"{source} names no image", todo="write HOST/REPOSITORY:TAG or HOST/REPOSITORY@sha256:…")
    if not reference.TAG.fullmatch(tag):
        raise UsageError(f"{tag!r} is no tag", todo="letters, digits, `_`, `.`, `-`; at most 128")
    with upload.writer(ref, shop.env) as writer:
        if ref.digest == reference.NO_DIGEST:
            writer.reference = dataclasses.replace(ref, digest=images.named(writer))
        data = writer.raw("manifests", writer.digest)
        before = delivery.check_tag(writer, tag, writer.digest)
        made = Moved(
            at=dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            by=_user(shop.env),
            place=f"{ref.host}/{ref.repository}",
            tag=tag,
            before=before,
            after=writer.digest,
        )
        with _noted(log, made, lambda: _unmoved(writer, made, shop.progress), shop.progress):
            writer.push_manifest(data, registry.media_type(data), tag)
    return made


@contextlib.contextmanager
def _noted(log: Path, made: Moved, unmoved: Callable[[], bool], progress: Progress) -> Iterator[None]:
    """Write the line before the tag moves, for a full disk is told only then.

    It is taken back if it is not whole, or the move fails and the tag is known to be as it was: a line too many can be
    held against the registry, one too few is lost.
    """
    with contextlib.ExitStack() as stack:
        with _errors(log):
            new = not log.exists()
            out = stack.enter_context(_alone(log, progress))
            size = os.fstat(out.fileno()).st_size
            try:
                rest = (b"\n" if _ends_amid_a_line(out, size) else b"") + canonical.dumps(made) + b"\n"
                while rest:  # on a disk that is nearly full a part may fit
                    rest = rest[out.write(rest) :]
                if _regular(out):
                    os.fsync(out.fileno())
            except BaseException:
                _take_back(out, log, size, new=new)
                raise
        try:
            yield
        except BaseException:
            if unmoved():
                _take_back(out, log, size, new=new)
            raise


@contextlib.contextmanager
def _errors(log: Path) -> Iterator[None]:
    try:
        with storage_errors(log, todo=_ELSEWHERE):
            yield
    except OSError as e:
        what = "nobody reads what this pipe is given" if e.errno == errno.ENXIO else e.strerror
        raise StorageError(f"cannot write the log: {what}", where=str(log), todo=_ELSEWHERE) from e


@contextlib.contextmanager
def _alone(log: Path, progress: Progress) -> Iterator[IO[bytes]]:
    """The log, locked, so that nobody else's line is taken back; opened anew where another run has just removed it."""
    while True:
        handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        with os.fdopen(handle, "ab", buffering=0) as out:
            os.set_blocking(handle, True)  # not to wait for a pipe's reader was for opening alone
            try:
                fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress.say(f"note: waiting for another run, which has {log} locked")
                fcntl.flock(out, fcntl.LOCK_EX)
            if not _regular(out) or _is_at(out, log):
                yield out
                return


def _is_at(out: IO[bytes], log: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(out.fileno()), log.stat())
    except FileNotFoundError:
        return False


def _ends_amid_a_line(out: IO[bytes], size: int) -> bool:
    """Whether somebody left the log without its last line end; of one that may only be written nobody knows."""
    if not _regular(out) or not size:
        return False
    with contextlib.suppress(OSError), Path(f"/proc/self/fd/{out.fileno()}").open("rb") as log:
        log.seek(size - 1)
        return log.read() != b"\n"
    return False


def _regular(out: IO[bytes]) -> bool:
    return stat.S_ISREG(os.fstat(out.fileno()).st_mode)


def _take_back(out: IO[bytes], log: Path, size: int, *, new: bool) -> None:
    """Have the log as it was before our line; what went to a pipe or terminal stays there."""
    if _regular(out):
        out.truncate(size)
        if new and size == 0:
            log.unlink()


def _unmoved(writer: upload.Writer, made: Moved, progress: Progress) -> bool:
    """Whether the registry says that the tag is where it was; an answer to the push may be lost after the move."""
    try:
        if writer.resolve(made.tag) == made.before:
            return True
    except VerlstackError:
        pass
    progress.say(f"note: {made.tag} may have moved to {made.after}: see what it is now; its line stays in the log")
    return False


def _user(env: Mapping[str, str]) -> str:
    """Who moves the tag; by number where there is no name."""
    return told.escaped(env.get("LOGNAME") or env.get("USER") or f"uid {os.getuid()}")
