"""`verlstack publish`: an image into a registry under the tag that its own facts give, without an engine."""

from __future__ import annotations

import time
from concurrent import futures
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verlstack import delivery, imagefacts, lockfile, oci, pins, releases, sides, upload
from verlstack.base import reference
from verlstack.errors import LockError, PinsError, PublishError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from verlstack.base.reference import Reference
    from verlstack.delivery import Delivered
    from verlstack.imagefacts import Facts
    from verlstack.releases import Release
    from verlstack.workshop import Workshop


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was published.

    Attributes:
        reference: HOST/REPOSITORY:TAG.
        lock: `sha256:…` of the lock that it was made from.
        new: the tag was not there before.
        release: what was recorded of it; None where nothing was to be.
        note: what the image is not: of the present lock of its stack, where that is here; empty if it is.
    """

    reference: str
    digest: str
    lock: str
    facts: Facts
    new: bool
    release: Release | None
    blobs: Delivered
    seconds: float
    note: str


def publish(layout: Path, place: str, shop: Workshop, *, insecure: bool, record: bool) -> Report:
    """Push an image: what can be refused first, then blobs, then the manifest under its tag.

    Args:
        layout: folder of the image.
        place: HOST/REPOSITORY; the tag is not the user's to choose.
        shop: the surroundings.
        insecure: plain http, on loopback only.
        record: write the release into the data file of docs/images.md.

    Raises:
        PublishError: the image must not be published, or its tag is another image's.
        VerlstackError: as of `upload.Writer`; the tag is then as it was.
    """
    start = time.monotonic()
    ref = destination(place, insecure=insecure)
    labels = imagefacts.check(layout)
    lock = labels[f"{imagefacts.LABEL}.lock"]
    if record and lock not in sides.known_locks(shop.constraints):
        todo = "check out the pins and lock of this image, or publish without --record"
        raise PublishError(f"the lock of this image ({lock}) is not here", where=str(shop.constraints), todo=todo)
    digest, manifest, _ = oci.read_layout(layout)
    facts = imagefacts.read(layout)
    if not reference.TAG.fullmatch(facts.tag):
        what = f"no registry takes {facts.tag} for a tag: 128 characters are the most, the first no sign but _"
        raise PublishError(what, where=str(layout), todo="give the stack a shorter name, lock and build again")
    if note := outdated(facts.stack, lock, shop.constraints):
        shop.progress.say(f"note: {note}")
    with (
        futures.ThreadPoolExecutor(1) as aside,
        upload.writer(ref, shop.env, mount_from=_relatives(labels, ref)) as writer,
    ):
        verified = aside.submit(imagefacts.verify, layout)
        before = delivery.check_tag(writer, facts.tag, digest)
        wanted = (manifest["config"], *manifest["layers"])
        files = {entry["digest"]: layout / oci.blob_path(entry["digest"]) for entry in wanted}
        sent = delivery.of_files(writer, files, shop.progress)
        verified.result()
        delivery.check_tag(writer, facts.tag, digest)  # somebody else may have been faster
        writer.push_manifest((layout / oci.blob_path(digest)).read_bytes(), oci.MANIFEST, facts.tag)
    name = f"{ref.host}/{ref.repository}:{facts.tag}"
    release = None
    if record:
        release = releases.Release(
            release=f"{facts.stack} {facts.date}-{facts.lock}",
            reference=name,
            digest=digest,
            lock=lock,
            dockerfile=releases.dockerfile(shop.constraints, facts.stack),
        )
        releases.record(release, shop.constraints)
    return Report(
        reference=name,
        digest=digest,
        lock=lock,
        facts=facts,
        new=before is None,
        release=release,
        blobs=sent,
        seconds=time.monotonic() - start,
        note=note,
    )


def outdated(stack: str, lock: str, constraints: Path) -> str:
    """What sets an image apart from the present lock of its stack; empty if nothing does, or the stack is not here.

    Such an image is as good as its own lock, which others may have; but it may not be the one that was meant.

    Args:
        stack: that the image says it is of.
        lock: `sha256:…`, likewise.
        constraints: folder of pins and locks.
    """
    path = constraints / "stacks.toml"
    try:
        if not path.is_file() or stack not in pins.names(path):
            return ""
        present = f"sha256:{lockfile.load(constraints, pins.load(path, stack)).digest}"
    except (LockError, PinsError) as e:
        return f"the image is of lock {lock}, and here {e.what} ({e.where})"
    return "" if present == lock else f"the image is of lock {lock}, the present one of {stack} is {present}"


def destination(text: str, *, insecure: bool) -> Reference:
    """Where to publish.

    Raises:
        UsageError: no HOST/REPOSITORY, or one with a tag or digest.
    """
    ref = reference.place(text, insecure=insecure)
    if ref.tag or ref.digest != reference.NO_DIGEST:
        what = f"{text} names a tag or digest, and an image's tag comes from what is in it"
        raise UsageError(what, todo=f"write {ref.host}/{ref.repository}; `verlstack promote` puts other tags on it")
    return ref


def _relatives(labels: Mapping[str, str], ref: Reference) -> tuple[str, ...]:
    """The repository of the image's base, if it is on the same host: its layers can be mounted."""
    host, _, rest = labels.get(f"{imagefacts.LABEL}.base", "").partition("/")
    repository = rest.partition("@")[0].partition(":")[0]
    return (repository,) if host == ref.host and repository and repository != ref.repository else ()
