"""`verlstack promote`: a tag such as `stable` put on an image that the registry has, and a line in a log."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import fcntl
import os
import stat
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from verlstack import canonical, delivery, images, upload
from verlstack.base import reference, registry
from verlstack.cache import storage_errors
from verlstack.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from verlstack.workshop import Workshop


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
        log: gets one line of JSON.

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
    with upload.writer(ref, shop.env) as writer, storage_errors(log), log.open("ab", buffering=0) as out:
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
        with _noted(out, made):
            writer.push_manifest(data, registry.media_type(data), tag)
    return made


@contextlib.contextmanager
def _noted(out: IO[bytes], made: Moved) -> Iterator[None]:
    """Write the line before the tag moves, for a full disk is told only then; take it back if the tag does not."""
    fcntl.flock(out, fcntl.LOCK_EX)  # so that nobody else's line is taken back
    status = os.fstat(out.fileno())
    regular = stat.S_ISREG(status.st_mode)
    try:
        rest = canonical.dumps(made) + b"\n"
        while rest:  # on a disk that is nearly full a part may fit
            rest = rest[out.write(rest) :]
        if regular:
            os.fsync(out.fileno())
        yield
    except BaseException:
        if regular:
            out.truncate(status.st_size)
        raise


def _user(env: Mapping[str, str]) -> str:
    """Who moves the tag; by number where there is no name."""
    return env.get("LOGNAME") or env.get("USER") or f"uid {os.getuid()}"
