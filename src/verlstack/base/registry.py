"""A registry spoken to over plain HTTP: tokens, manifests and blobs by digest (OCI Distribution 1.1), read only."""

from __future__ import annotations

import hashlib
import json
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlsplit

import requests
import requests.auth

from verlstack import cache as storage
from verlstack import oci
from verlstack.errors import FetchError, HashMismatchError
from verlstack.web import AgainError, patiently, reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from verlstack.base.reference import Reference

MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
MAX_DOCUMENT = 4 << 20  # bytes; the distribution specification lets a registry refuse larger manifests
DIGEST = oci.DIGEST
_CHUNK = 1 << 18  # bytes per read from the network
_ATTEMPTS = 4
_TIMEOUT = (10.0, 60.0)  # seconds to connect, and between two pieces
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')

T = TypeVar("T")


class _Header(requests.auth.AuthBase):
    """Sets our own Authorization header, or none, so that a ~/.netrc does not; requests drops it at another host."""

    def __init__(self, value: str | None) -> None:
        self._value = value

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._value:
            request.headers["Authorization"] = self._value
        return request


@dataclass
class Client:
    """Reads from one repository; safe to use from several threads once the first request is through.

    Use as a context manager: it holds connections open.

    Attributes:
        reference: what to read.
        stored: credentials in base64, or None; they go to the registry and its token service alone.
        timeout: seconds to connect and between two pieces.
        attempts: how often a request is made before a server error or a broken line is reported.
    """

    reference: Reference
    stored: str | None = field(default=None, repr=False)
    timeout: tuple[float, float] = _TIMEOUT
    attempts: int = _ATTEMPTS
    sleep: Callable[[float], None] = time.sleep
    session: requests.Session = field(default_factory=requests.Session, repr=False)
    _authorization: str | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The reference, for messages."""
        return str(self.reference)

    @property
    def digest(self) -> str:
        """What the reference asks for."""
        return self.reference.digest

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    def manifest(self, digest: str) -> dict[str, Any]:
        """A manifest or index, verified.

        Raises:
            FetchError: not there, refused, unreachable.
            HashMismatchError: the registry sent something else.
        """
        url = f"{self.reference.api}/manifests/{digest}"
        body = self._retried(url, lambda: self._small(url, {"Accept": ", ".join(MANIFEST_TYPES)}))
        return self._document(body, digest, url)

    def config(self, digest: str) -> dict[str, Any]:
        """An image's config, verified; raises like `manifest`."""
        url = f"{self.reference.api}/blobs/{digest}"
        return self._document(self._retried(url, lambda: self._small(url, {})), digest, url)

    def blob(self, digest: str, size: int, part: Path, advance: Callable[[int], None]) -> None:
        """Download a blob into `part`, resuming what is there; a wrong one is deleted.

        Raises:
            FetchError: not there, refused, unreachable, or cut off again and again.
            HashMismatchError: bytes arrived, but other ones.
        """
        url = f"{self.reference.api}/blobs/{digest}"
        self._retried(url, lambda: self._append(url, size, part, advance))
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
        with self._get(url, headers) as response, storage.storage_errors(part):
            resumed = response.status_code == requests.codes.partial_content
            left = size - (start if resumed else 0)
            with part.open("ab" if resumed else "wb") as out:
                for piece in response.iter_content(_CHUNK):
                    out.write(piece[:left])
                    advance(len(piece[:left]))
                    left -= len(piece)
                    if left <= 0:
                        break  # what comes beyond the declared size is not wanted, and may have no end
        if (have := part.stat().st_size) < size:
            raise _again(f"the line was cut after {have} of {size} bytes", url, reached=have)

    def _small(self, url: str, headers: Mapping[str, str]) -> bytes:
        with self._get(url, headers) as response:
            return b"".join(_limited(response.iter_content(_CHUNK), url))

    def _document(self, body: bytes, digest: str, url: str) -> dict[str, Any]:
        have = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if have != digest:
            raise _mismatch(url, digest, have)
        return document_of(body, url)

    def _retried(self, url: str, attempt: Callable[[], T]) -> T:
        """The result of the first attempt that is not stopped by a server error or a broken line."""

        def once() -> T:
            try:
                return attempt()
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as e:
                raise _again(f"{self.reference.host} cannot be reached or hung up: {reason(e)}", url) from None

        return patiently(once, self.sleep, tries=self.attempts)

    def _get(self, url: str, headers: Mapping[str, str]) -> requests.Response:
        """One request; a 401 is answered once, with a token or with the stored credentials."""
        response = self._send(url, headers)
        if response.status_code == requests.codes.unauthorized:
            challenge = response.headers.get("WWW-Authenticate", "")
            response.close()
            self._authorization = self._answer(challenge)
            response = self._send(url, headers)
        if response.status_code in {requests.codes.ok, requests.codes.partial_content}:
            return response
        response.close()
        raise self._refusal(response.status_code, url)

    def _send(self, url: str, headers: Mapping[str, str]) -> requests.Response:
        plain = {"Accept-Encoding": "identity", **headers}  # a blob's own compression is what its digest is over
        return self.session.get(
            url, headers=plain, auth=_Header(self._authorization), stream=True, timeout=self.timeout
        )

    def _answer(self, challenge: str) -> str | None:
        """The Authorization header that answers a WWW-Authenticate header (RFC 6750 with Docker's token service)."""
        scheme, _, rest = challenge.partition(" ")
        basic = f"Basic {self.stored}" if self.stored else None
        fields = dict(_PARAMETER.findall(rest))
        realm = fields.get("realm", "")
        if scheme.lower() != "bearer" or not urlsplit(realm).netloc:
            return basic
        default = f"repository:{self.reference.repository}:pull"
        query = {"service": fields.get("service", ""), "scope": fields.get("scope", default)}
        response = self.session.get(realm, params=query, auth=_Header(basic), timeout=self.timeout)
        if response.status_code >= requests.codes.internal_server_error:
            raise _again(f"its token service answered {response.status_code}", realm)
        if response.status_code != requests.codes.ok:
            raise self._refusal(response.status_code, realm)
        answer = response.json()
        return f"Bearer {answer.get('token') or answer.get('access_token')}"

    def _refusal(self, status: int, url: str) -> Exception:
        """The error behind an HTTP status; a server's own trouble may pass, ours will not."""
        if status >= requests.codes.internal_server_error or status == requests.codes.too_many_requests:
            return _again(f"it answered {status}", url)
        if status == requests.codes.not_found:
            return FetchError(
                f"the registry has no such image or blob (404): {self.reference}",
                where=url,
                todo="check name and digest; vendors delete old tags and what they pointed to, so mirror what you need",
            )
        if status in {requests.codes.unauthorized, requests.codes.forbidden}:
            known = "the stored credentials" if self.stored else "an anonymous pull"
            return FetchError(
                f"the registry refuses {known} ({status})", where=url, todo=f"run `docker login {self.reference.host}`"
            )
        return FetchError(f"the registry answered {status}", where=url, todo="check the reference")


def document_of(body: bytes, where: str) -> dict[str, Any]:
    """A manifest or config as JSON.

    Raises:
        FetchError: it is none.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise FetchError("a manifest or config that is no object in JSON", where=where, todo="use another image")
    return document


def _again(why: str, url: str, *, reached: int = 0) -> AgainError:
    """A server error or a broken line: worth another attempt."""
    todo = "see whether the registry is up and a proxy is needed (HTTPS_PROXY), then run again: it resumes"
    return AgainError(FetchError(f"the registry did not answer well: {why}", where=url, todo=todo), reached=reached)


def _limited(pieces: Iterable[bytes], url: str) -> Iterator[bytes]:
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > MAX_DOCUMENT:
            raise FetchError(f"a manifest or config of more than {MAX_DOCUMENT} bytes is none", where=url)
        yield piece


def _mismatch(url: str, wanted: str, have: str) -> HashMismatchError:
    return HashMismatchError(
        f"the registry sent other bytes than asked for: wanted {wanted}, got {have}",
        where=url,
        todo="run again; if it stays so, the registry or a proxy before it is broken or hostile",
    )
