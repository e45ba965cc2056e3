"""A registry spoken to over plain HTTP: tokens, manifests, blobs and referrers, read only (OCI Distribution 1.1)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import requests

from verlstack import cache as storage
from verlstack import oci
from verlstack.base.transport import CHUNK, GOOD, Transport, again, document_of, means, whole
from verlstack.errors import FetchError, HashMismatchError
from verlstack.web import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from verlstack.base.reference import Reference

MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
ACCEPT = {"Accept": ", ".join(MANIFEST_TYPES)}
DIGEST = oci.DIGEST
_MOST_PAGES = 100  # of a list of referrers: a registry that links them in a circle must not hold us for ever


@dataclass
class Client(Transport):
    """Reads from one repository."""

    @property
    def name(self) -> str:
        """The reference, for messages."""
        return str(self.reference)

    @property
    def digest(self) -> str:
        """What the reference asks for."""
        return self.reference.digest

    def resolve(self, tag: str) -> str | None:
        """The digest of what a tag names now, or None.

        Raises:
            FetchError: refused, unreachable.
        """
        url = f"{self.reference.api}/manifests/{tag}"
        body = self.retried(url, lambda: self._document_or_none(url))
        return None if body is None else oci.digest(body)

    def raw(self, kind: str, digest: str) -> bytes:
        """The very bytes of a document, one of `manifests` or `blobs`, verified.

        Raises:
            FetchError: not there, refused, unreachable.
            HashMismatchError: the registry sent something else.
        """
        url = f"{self.reference.api}/{kind}/{digest}"
        data = self.retried(url, lambda: self._small(url, ACCEPT if kind == "manifests" else {}))
        if (have := oci.digest(data)) != digest:
            raise _mismatch(url, digest, have)
        return data

    def manifest(self, digest: str) -> dict[str, Any]:
        """A manifest or index, verified; raises like `raw`."""
        return document_of(self.raw("manifests", digest), f"{self.reference.api}/manifests/{digest}")

    def config(self, digest: str) -> dict[str, Any]:
        """An image's config, verified; raises like `raw`."""
        return document_of(self.raw("blobs", digest), f"{self.reference.api}/blobs/{digest}")

    def referrers(self, digest: str, artifact_type: str | None = None) -> list[dict[str, Any]]:
        """Descriptors of the manifests that refer to a digest: from the API, or where there is none, its fallback tag.

        Args:
            digest: of the image.
            artifact_type: only those of this type.

        Raises:
            FetchError: refused, unreachable, or an answer that is no such list.
        """
        found: list[dict[str, Any]] = []
        url: str | None = f"{self.reference.api}/referrers/{digest}"
        for _ in range(_MOST_PAGES):
            if url is None:
                break
            page, following = self.retried(url, functools.partial(self._page, url))
            if page is None and not found:  # this registry has no such API
                url = f"{self.reference.api}/manifests/{fallback_tag(digest)}"
                page = self.retried(url, functools.partial(self._document_or_none, url))
            found += _descriptors(page, url) if page else []
            url = following
        return [x for x in found if artifact_type is None or x.get("artifactType") == artifact_type]

    def _page(self, url: str) -> tuple[bytes | None, str | None]:
        """One page of referrers, and the address of the next; None where there is no such page."""
        with self.ask("GET", url, {"Accept": oci.INDEX}, good=(*GOOD, requests.codes.not_found)) as response:
            if response.status_code == requests.codes.not_found:
                return None, None
            following = response.links.get("next", {}).get("url")
            return whole(response, url), urljoin(url, following) if following else None

    def blob(self, digest: str, size: int, part: Path, advance: Callable[[int], None]) -> None:
        """Download a blob into `part`, resuming what is there; a wrong one is deleted.

        Raises:
            FetchError: not there, refused, unreachable, or cut off again and again.
            HashMismatchError: bytes arrived, but other ones.
        """
        url = f"{self.reference.api}/blobs/{digest}"
        self.retried(url, lambda: self._append(url, size, part, advance))
        have = f"sha256:{storage.sha256_file(part)}"
        if have != digest:
            part.unlink()
            raise _mismatch(url, digest, have)

    def _append(self, url: str, size: int, part: Path, advance: Callable[[int], None]) -> None:
        start = part.stat().st_size if part.exists() else 0
        if start == size:
            return
        if start > size:
            start = 0
        headers = {"Range": f"bytes={start}-"} if start else {}
        with self.ask("GET", url, headers) as response, storage.storage_errors(part):
            resumed = response.status_code == requests.codes.partial_content
            left = size - (start if resumed else 0)
            with part.open("ab" if resumed else "wb") as out:
                for piece in response.iter_content(CHUNK):
                    out.write(piece[:left])
                    advance(len(piece[:left]))
                    left -= len(piece)
                    if left <= 0:
                        break  # what comes beyond the declared size is not wanted, and may have no end
        if (have := part.stat().st_size) < size:
            raise again(f"the line was cut after {have} of {size} bytes", url, reached=have)

    def _small(self, url: str, headers: Mapping[str, str]) -> bytes:
        with self.ask("GET", url, headers) as response:
            return whole(response, url)

    def _document_or_none(self, url: str) -> bytes | None:
        with self.ask("GET", url, ACCEPT, good=(*GOOD, requests.codes.not_found)) as response:
            return None if response.status_code == requests.codes.not_found else whole(response, url)


def connect(ref: Reference, env: Mapping[str, str], **how: Any) -> Client:
    """A client with what the environment says of the registry.

    Args:
        ref: what to read.
        env: as for `means`.
        how: other attributes of Client.

    Raises:
        FetchError: a credential helper fails.
    """
    return Client(ref, **means(ref.host, env), **how)


def fallback_tag(digest: str) -> str:
    """The tag under which a registry without the referrers API lists what refers to a digest."""
    return digest.replace(":", "-")


def media_type(manifest: bytes) -> str:
    """The media type of a manifest or index that says none for itself is OCI's; the field is optional there alone.

    Raises:
        FetchError: it is no manifest.
    """
    document = document_of(manifest, "")
    return str(document.get("mediaType") or (oci.INDEX if "manifests" in document else oci.MANIFEST))


def _descriptors(page: bytes, url: str) -> list[dict[str, Any]]:
    found = document_of(page, url).get("manifests")
    if not isinstance(found, list) or not all(oci.is_descriptor(x) for x in found):
        raise FetchError("a list of referrers that is none", where=redact(url), todo="see what wrote it")
    return found


def _mismatch(url: str, wanted: str, have: str) -> HashMismatchError:
    return HashMismatchError(
        f"the registry sent other bytes than asked for: wanted {wanted}, got {have}",
        where=redact(url),
        todo="run again; if it stays so, the registry or a proxy before it is broken or hostile",
    )
