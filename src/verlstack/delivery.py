"""An image on its way into a registry: its blobs several at once, its name last, and immutable names stay."""

from __future__ import annotations

import threading
from concurrent import futures
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verlstack import imagefacts
from verlstack.download import StoppedError
from verlstack.errors import PublishError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from verlstack.progress import Progress
    from verlstack.upload import How, Writer

STREAMS = 4  # uploads at once; more do not make a 10 Gbit/s line faster, and a registry has other clients


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """How the blobs of an image got there: bytes and number of each kind."""

    pushed: int
    mounted: int
    there: int
    sent: int

    def __str__(self) -> str:
        """In a few words."""
        return f"{self.pushed} blobs pushed ({self.sent / 1e6:.1f} MB), {self.mounted} mounted, {self.there} there"


def blobs(jobs: Mapping[str, Callable[[Callable[[int], None]], How]], total: int, progress: Progress) -> Delivered:
    """Have blobs in a registry, several at once; the first error stops those that have not begun.

    Args:
        jobs: by digest, what pushes a blob and tells its argument the bytes just sent.
        total: bytes of all, for the progress bar.
        progress: where progress is shown.

    Raises:
        VerlstackError: as the jobs do; those that are through stay, and are not sent again.
    """
    guard, stop, sent = threading.Lock(), threading.Event(), 0

    def advance(amount: int) -> None:
        nonlocal sent
        if stop.is_set():
            raise StoppedError
        with guard:
            sent += amount
            progress.advance("push", amount)

    progress.start("push", total)
    with futures.ThreadPoolExecutor(STREAMS) as pool:
        running = [pool.submit(job, advance) for job in jobs.values()]
        try:
            hows = [one.result() for one in futures.as_completed(running)]
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    made = Delivered(pushed=hows.count("pushed"), mounted=hows.count("mounted"), there=hows.count("there"), sent=sent)
    progress.finish("push", str(made))
    return made


def of_files(writer: Writer, files: Mapping[str, Path], progress: Progress) -> Delivered:
    """Have files in a registry as blobs, by digest; raises as `blobs`."""

    def job(digest: str, path: Path) -> Callable[[Callable[[int], None]], How]:
        return lambda advance: writer.push_blob(digest, path, advance)

    total = sum(path.stat().st_size for path in files.values())
    return blobs({digest: job(digest, path) for digest, path in files.items()}, total, progress)


def check_tag(writer: Writer, tag: str, digest: str) -> str | None:
    """The digest that a tag has now; one of facts may only have none, or the same.

    Raises:
        PublishError: an immutable tag would be moved.
        FetchError: refused, unreachable.
    """
    have = writer.resolve(tag)
    if have not in {None, digest} and imagefacts.IMMUTABLE.fullmatch(tag):
        place = f"{writer.reference.host}/{writer.reference.repository}"
        raise PublishError(
            f"{place}:{tag} is {have} already, and such a tag never moves; this image is {digest}",
            where=f"{writer.reference.api}/manifests/{tag}",
            todo="publish the image that this tag says; one lock gives several where the base is local: pin a base"
            " (`verlstack base use`), or give this image another date: `epoch` in constraints/stacks.toml",
        )
    return have
