"""`verlstack mirror`: an image with all that refers to it from one place to another, its name last."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verlstack import delivery, imagefacts, images, oci, upload
from verlstack.base import reference, registry
from verlstack.cache import storage_errors
from verlstack.errors import BaseImageError, FetchError, UsageError
from verlstack.layoutplace import LayoutPlace

if TYPE_CHECKING:
    from collections.abc import Callable

    from verlstack.delivery import Delivered
    from verlstack.upload import How
    from verlstack.workshop import Workshop

Source = registry.Client | LayoutPlace
Target = upload.Writer | LayoutPlace

_COSIGN = ("sig", "att", "sbom")  # its tags: the subject's fallback tag, a dot, and one of these
_MOST = 1000  # documents of one image; more is a registry that refers to itself
FORMS = "HOST/REPOSITORY:TAG, HOST/REPOSITORY@sha256:… or the folder of an OCI layout"


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was copied.

    Attributes:
        digest: of the image, the same on both sides.
        referrers: manifests that refer to it, directly or not: SBOM, provenance, signatures.
    """

    source: str
    target: str
    digest: str
    referrers: int
    blobs: Delivered


@dataclass
class _Found:
    """An image and what belongs to it, in the order in which it must be written.

    Attributes:
        documents: digest → (bytes, media type); what is named comes before what names it.
        referring: digests of those that have a subject.
        named: cosign's tag → digest.
        blobs: digest → size.
    """

    documents: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    referring: list[str] = field(default_factory=list)
    named: dict[str, str] = field(default_factory=dict)
    blobs: dict[str, int] = field(default_factory=dict)


def mirror(source: str, target: str, shop: Workshop, *, dist: Path, insecure: bool) -> Report:
    """Copy an image, its referrers and its signatures; what is there already is not sent again.

    Args:
        source: see FORMS.
        target: HOST/REPOSITORY:TAG, or a folder; with HOST/REPOSITORY alone the image gets no tag.
        shop: the surroundings.
        dist: where images are.
        insecure: plain http for both, on loopback only.

    Raises:
        PublishError: an immutable tag would be moved, or the layout's image may not be published.
        VerlstackError: as of registries and layouts; the tag is then as it was.
    """
    with contextlib.ExitStack() as stack:
        one, name = _source(source, shop, dist, insecure=insecure, stack=stack)
        found = _Found()
        digest = oci.read_layout(one.folder)[0] if isinstance(one, LayoutPlace) else one.digest
        other, tag = _target(target, shop, one, insecure=insecure, stack=stack)
        tag = tag or (name if isinstance(other, LayoutPlace) else None)
        _walk(one, digest, found)
        _check_tag(other, tag, digest)
        jobs = {x: _job(one, other, x, size, shop) for x, size in found.blobs.items()}
        sent = delivery.blobs(jobs, sum(found.blobs.values()), shop.progress)
        for this, (data, media_type) in found.documents.items():
            other.attach(data, media_type) if this in found.referring else other.push_manifest(data, media_type)
        for mark, this in found.named.items():
            other.push_manifest(*found.documents[this], mark)
        if tag:
            _check_tag(other, tag, digest)  # somebody else may have been faster
            other.push_manifest(*found.documents[digest], tag)
    return Report(source=source, target=target, digest=digest, referrers=len(found.referring), blobs=sent)


def _source(
    text: str, shop: Workshop, dist: Path, *, insecure: bool, stack: contextlib.ExitStack
) -> tuple[Source, str]:
    """Where the image is, and the name that it has there."""
    if folder := images.find(text, dist):
        labels = images.labels(oci.read_layout(folder)[2])
        if f"{imagefacts.LABEL}.stack" in labels:  # a base has none, and is pinned by being in a registry
            imagefacts.check(folder)
        return LayoutPlace(folder), oci.tag_of(folder)
    ref = reference.place(text, insecure=insecure)
    client = stack.enter_context(registry.connect(ref, shop.env))
    if ref.digest == reference.NO_DIGEST:
        if not ref.tag:
            raise UsageError(f"{text} names no image", todo=f"write {FORMS}")
        client.reference = dataclasses.replace(ref, digest=images.named(client))
    return client, ref.tag or ref.digest


def _target(
    text: str, shop: Workshop, one: Source, *, insecure: bool, stack: contextlib.ExitStack
) -> tuple[Target, str | None]:
    """Where the image goes, and the tag that it gets there, if one is named."""
    folder = Path(text)
    if folder.is_dir() or text.startswith((".", "/")):
        return LayoutPlace(folder.absolute()), None
    ref = reference.place(text, insecure=insecure)
    if ref.digest != reference.NO_DIGEST:
        todo = f"write {ref.host}/{ref.repository} or a tag in it; the digest stays what it is"
        raise UsageError(f"{text} says which digest to write", todo=todo)
    same = isinstance(one, registry.Client) and one.reference.host == ref.host
    mounts = (one.reference.repository,) if isinstance(one, registry.Client) and same else ()
    return stack.enter_context(upload.writer(ref, shop.env, mount_from=mounts)), ref.tag


def _check_tag(other: Target, tag: str | None, digest: str) -> None:
    if isinstance(other, LayoutPlace):
        if other.holds_others(tag):
            todo = "name an empty folder: a layout has one image"
            raise UsageError("another image lies in this folder", where=str(other.folder), todo=todo)
    elif tag:
        delivery.check_tag(other, tag, digest)


def _walk(one: Source, digest: str, found: _Found) -> None:
    """Collect a manifest or index, what it names, and what refers to it."""
    if digest in found.documents:
        return
    if len(found.documents) >= _MOST:
        raise BaseImageError(f"more than {_MOST} manifests belong to this image", todo="name another image")
    data = one.raw("manifests", digest)
    document = _document(data, digest)
    for member in _descriptors(document.get("manifests", []), digest):
        _walk(one, str(member["digest"]), found)
    parts = _descriptors(document.get("layers") or [], digest)
    parts += _descriptors([document["config"]] if "config" in document else [], digest)
    found.blobs |= {str(x["digest"]): int(x["size"]) for x in parts}
    found.documents[digest] = (data, registry.media_type(data))
    for row in one.referrers(digest):
        if row["digest"] not in found.documents:
            _walk(one, str(row["digest"]), found)
            found.referring.append(str(row["digest"]))
            subject = _document(found.documents[str(row["digest"])][0], str(row["digest"])).get("subject")
            if not isinstance(subject, dict) or subject.get("digest") != digest:
                what = f"{row['digest']} is listed as referring to {digest}, and does not"
                raise FetchError(what, todo="see who wrote that list; delete it, and attach anew")
    for suffix in _COSIGN:
        mark = f"{registry.fallback_tag(digest)}.{suffix}"
        if signed := one.resolve(mark):
            _walk(one, signed, found)
            found.named[mark] = signed


def _document(data: bytes, digest: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise FetchError(f"{digest} is no manifest", todo="name another image")
    return document


def _descriptors(rows: object, digest: str) -> list[dict[str, Any]]:
    if not isinstance(rows, list) or not all(oci.is_descriptor(x) for x in rows):
        raise FetchError(f"{digest} describes blobs that no image has", todo="name another image")
    return list(rows)


def _job(one: Source, other: Target, digest: str, size: int, shop: Workshop) -> Callable[[Callable[[int], None]], How]:
    def job(advance: Callable[[int], None]) -> How:
        if isinstance(one, LayoutPlace):
            return other.push_blob(digest, one.folder / oci.blob_path(digest), advance)
        if other.has(digest, size):
            return "there"
        if not isinstance(other, LayoutPlace) and other.mount(digest):
            return "mounted"
        part = shop.cache.parts / f"{digest.removeprefix('sha256:')}.part"
        with storage_errors(part), shop.cache.lock(part.name):
            one.blob(digest, size, part, lambda _: None)
            how = other.push_blob(digest, part, advance)
            part.unlink()
        return how

    return job
