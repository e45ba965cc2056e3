"""An OCI layout that is read and written as a registry is: for images on their way over an air gap, with referrers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from verlstack import canonical, oci, reading
from verlstack.base import registry
from verlstack.cache import atomic, sha256_file, storage_errors
from verlstack.errors import FetchError, HashMismatchError, UsageError
from verlstack.upload import described

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable
    from pathlib import Path

    from verlstack.upload import How

_TODO = "copy or mirror the image again"
_ELSEWHERE = "see that this folder can be written and has space, or name another"


@dataclass(frozen=True)
class LayoutPlace:
    """A folder with an OCI layout; its methods are those of `upload.Writer`.

    Attributes:
        folder: of the layout.
    """

    folder: Path

    def resolve(self, tag: str) -> str | None:
        """The digest under a name, or None."""
        return next((str(x["digest"]) for x in self._entries() if oci.name_in(x) == tag), None)

    def holds_others(self, tag: str | None) -> bool:
        """Whether there is an image of another name."""
        return any(not oci.is_about(x) and oci.name_in(x) != tag for x in self._entries())

    def raw(self, kind: str, digest: str) -> bytes:
        """The very bytes of a document, verified.

        Raises:
            FetchError: not there.
            HashMismatchError: it is something else.
        """
        del kind
        path = self.folder / oci.blob_path(digest)
        if not oci.DIGEST.fullmatch(digest) or not path.is_file():
            raise FetchError(f"the layout lacks {digest}", where=str(path), todo=_TODO)
        data = reading.data(path)
        if oci.digest(data) != digest:
            raise HashMismatchError("a blob is not what its digest says", where=str(path), todo=_TODO)
        return data

    def has(self, digest: str, size: int) -> bool:
        """Whether a blob is there, whole."""
        path = self.folder / oci.blob_path(digest)
        return path.is_file() and path.stat().st_size == size and f"sha256:{sha256_file(path)}" == digest

    def push_blob(self, digest: str, path: Path, advance: Callable[[int], None] = lambda _: None) -> How:
        """Copy a file into the layout.

        Raises:
            HashMismatchError: it is not what the digest says.
            StorageError: the disk is full, read-only or forbidden.
        """
        if self.has(digest, path.stat().st_size):
            return "there"
        with reading.opened(path) as file, self._written(oci.blob_path(digest)) as out:
            while piece := file.read(1 << 20):
                out.write(piece)
                advance(len(piece))
        if not self.has(digest, path.stat().st_size):
            (self.folder / oci.blob_path(digest)).unlink()
            raise HashMismatchError("a blob is not what its digest says", where=str(path), todo=_TODO)
        return "pushed"

    def push_manifest(self, data: bytes, media_type: str, tag: str | None = None) -> str:
        """Put a manifest, and a name on it.

        Raises:
            StorageError: the disk is full, read-only or forbidden.
        """
        digest = oci.digest(data)
        with self._written(oci.blob_path(digest)) as out:
            out.write(data)
        if tag is not None:
            entry = {"annotations": {oci.REF_NAME: tag}, "digest": digest, "mediaType": media_type, "size": len(data)}
            others = [x for x in self._entries() if oci.name_in(x) != tag]
            index = canonical.dumps({"manifests": [*others, entry], "mediaType": oci.INDEX, "schemaVersion": 2})
            with self._written("oci-layout") as out:
                out.write(canonical.dumps({"imageLayoutVersion": "1.0.0"}))
            with self._written("index.json") as out:
                out.write(index)
        return digest

    def referrers(self, digest: str, artifact_type: str | None = None) -> list[dict[str, Any]]:
        """Descriptors of the manifests that refer to a digest, from the index under its fallback tag."""
        index = self.resolve(registry.fallback_tag(digest))
        rows = self._object(self.raw("manifests", index)).get("manifests") if index else []
        if not isinstance(rows, list) or not all(oci.is_descriptor(x) for x in rows):
            raise FetchError("a list of referrers that is none", where=str(self.folder), todo=_TODO)
        return [x for x in rows if artifact_type is None or x.get("artifactType") == artifact_type]

    def attach(self, data: bytes, media_type: str = oci.MANIFEST) -> str:
        """Put a manifest that has a `subject`, and note it under the subject's fallback tag."""
        document = self._object(data)
        subject, entry = document["subject"]["digest"], described(data, document, media_type)
        rows = [*(x for x in self.referrers(subject) if x["digest"] != entry["digest"]), entry]
        rows.sort(key=lambda x: str(x["digest"]))
        index = canonical.dumps({"manifests": rows, "mediaType": oci.INDEX, "schemaVersion": 2})
        digest = self.push_manifest(data, media_type)
        self.push_manifest(index, oci.INDEX, registry.fallback_tag(subject))
        return digest

    def _entries(self) -> list[dict[str, Any]]:
        path = self.folder / "index.json"
        with storage_errors(path, todo=_ELSEWHERE):
            document = self._object(reading.data(path)) if path.exists() else {}
        rows = document.get("manifests", [])
        if not isinstance(rows, list) or not all(oci.is_descriptor(x) for x in rows):
            raise UsageError("not an OCI layout", where=str(self.folder), todo="name another folder")
        return rows

    def _written(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        return atomic(self.folder / name, todo=_ELSEWHERE)

    def _object(self, data: bytes) -> dict[str, Any]:
        try:
            document = canonical.loads(data)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise UsageError("not an OCI layout: a document that is no object", where=str(self.folder), todo=_TODO)
        return document
