"""A document as an OCI artifact that refers to an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from verlstack import canonical, oci
from verlstack.base.transport import MAX_DOCUMENT, document_of
from verlstack.errors import FetchError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from verlstack.upload import Writer

CREATED = "org.opencontainers.image.created"
# Bytes of what is signed, so that `verify` reads it: it is base64 (4 letters for 3 bytes) in an envelope or bundle, and
# what else stands there (subject; certificate, entry of the log and its proof) has 10 kB.
LARGEST = (MAX_DOCUMENT - (64 << 10)) // 4 * 3
_EMPTY = b"{}"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"  # image-spec 1.1, "guidance for an empty descriptor"


@dataclass(frozen=True, kw_only=True)
class Document:
    """One thing to attach.

    Attributes:
        name: for people, and its file name for those who download it.
        media_type: also the artifact's type.
        data: its bytes, the same each time.
        kind: type of the predicate under which it is signed.
        predicate: what is signed.
    """

    name: str
    media_type: str
    data: bytes
    kind: str
    predicate: Any


def check_size(one: Document, where: str, todo: str) -> Document:
    """A document, if `verify` would read it signed.

    Args:
        one: the document.
        where: what it is of.
        todo: how to get a shorter one.

    Raises:
        UsageError: it is too long.
    """
    if (size := max(len(one.data), len(canonical.dumps(one.predicate)))) > LARGEST:
        what = f"{one.name} would have {size} bytes, and what is signed may have {LARGEST}"
        raise UsageError(what, where=where, todo=todo)
    return one


def subject(writer: Writer) -> dict[str, Any]:
    """The descriptor of the image that a writer's reference names, which must be there.

    Raises:
        FetchError: it is not.
    """
    digest = writer.reference.digest
    try:
        data = writer.raw("manifests", digest)
    except FetchError as e:
        ref = writer.reference
        todo = f"run `verlstack publish STACK {ref.host}/{ref.repository}` first"
        raise FetchError(f"the registry does not give this image: {e.what}", where=e.where, todo=todo) from e
    kind = document_of(data, writer.name).get("mediaType", oci.MANIFEST)
    return {"digest": digest, "mediaType": kind, "size": len(data)}


def attach(
    writer: Writer,
    data: bytes,
    media_type: str,
    about: dict[str, Any],
    folder: Path,
    *,
    notes: dict[str, str],
    title: str | None = None,
) -> str:
    """Push a document that refers to `about`; the same again is the same artifact. Returns its manifest's digest.

    Args:
        writer: of the image's repository.
        data: the document.
        media_type: of it, and of the artifact.
        about: what `subject` gives.
        folder: for what is on its way.
        notes: annotations of the manifest.
        title: its file name for those who download it.

    Raises:
        FetchError, HashMismatchError: as of `Writer.attach`.
    """
    writer.push_bytes(_EMPTY, folder)
    writer.push_bytes(data, folder)
    layer: dict[str, Any] = {"digest": oci.digest(data), "mediaType": media_type, "size": len(data)}
    if title:
        layer["annotations"] = {"org.opencontainers.image.title": title}
    manifest = {
        "annotations": notes,
        "artifactType": media_type,
        "config": {"digest": oci.digest(_EMPTY), "mediaType": _EMPTY_TYPE, "size": len(_EMPTY)},
        "layers": [layer],
        "mediaType": oci.MANIFEST,
        "schemaVersion": 2,
        "subject": about,
    }
    return writer.attach(canonical.dumps(manifest))
