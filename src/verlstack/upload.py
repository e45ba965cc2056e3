"""Writing to a registry: blobs that resume or are mounted, manifests that are read back, and referrers (OCI)."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Literal, Self
from urllib.parse import urlencode, urljoin, urlsplit

import requests
import requests.adapters

from verlstack import canonical, oci, reading
from verlstack.base import registry
from verlstack.base.transport import again, document_of, means, reasons
from verlstack.errors import FetchError, HashMismatchError, LockError, UnwellError
from verlstack.web import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from verlstack.base.reference import Reference
    from verlstack.web import AgainError

_PIECE = 1 << 20  # bytes per read from disk and write to the network; http.client's 8 kB cost half the speed
_TIMEOUT = (10.0, 300.0)  # seconds; at the end of a blob a registry may copy it within its store before it answers
_OCTETS = {"Content-Type": "application/octet-stream"}
How = Literal["there", "mounted", "pushed"]


class _Adapter(requests.adapters.HTTPAdapter):
    """Sends bodies in large pieces."""

    def init_poolmanager(self, *args: Any, **how: Any) -> None:
        """As of requests, with the size of a piece besides."""
        super().init_poolmanager(*args, blocksize=_PIECE, **how)


class _Body:
    """A stretch of a file as the body of a request, hashed from the file's beginning as it is read."""

    def __init__(self, file: IO[bytes], start: int, size: int, advance: Callable[[int], None]) -> None:
        """Hash what comes before `start`, and be ready to give the rest."""
        self._file, self._size, self._left = file, size - start, size - start
        self._advance = advance
        self._digest = hashlib.sha256()
        file.seek(0)
        while start:
            piece = file.read(min(start, _PIECE))
            if not piece:
                break
            self._digest.update(piece)
            start -= len(piece)

    def __len__(self) -> int:
        return self._size

    def __iter__(
        self,
    ) -> Iterator[bytes]:  # for requests, which asks for it before it streams; `read` is what is called
        return iter(lambda: self.read(_PIECE), b"")

    def read(self, amount: int = _PIECE) -> bytes:
        """The next bytes, never more than were promised."""
        piece = self._file.read(min(amount, self._left))
        self._digest.update(piece)
        self._left -= len(piece)
        self._advance(len(piece))
        return piece

    @property
    def digest(self) -> str:
        """Of the file up to where it was read."""
        return f"sha256:{self._digest.hexdigest()}"


@dataclass
class Writer(registry.Client):
    """Writes to one repository, and reads from it.

    Attributes:
        mount_from: other repositories of the same registry that may hold the blobs already.
    """

    mount_from: tuple[str, ...] = ()
    timeout: tuple[float, float] = _TIMEOUT
    _purpose: ClassVar[str] = "push"

    def __enter__(self) -> Self:
        """Send bodies in large pieces from here on."""
        for scheme in ("https://", "http://"):
            self.session.mount(scheme, _Adapter())
        return self

    def has(self, digest: str, size: int) -> bool:
        """Whether the registry has a blob; one that it cannot tell of counts as absent.

        Raises:
            FetchError: refused.
            HashMismatchError: it has one of another size under that digest.
        """
        url = f"{self.reference.api}/blobs/{digest}"

        def ask() -> tuple[bool, str | None]:
            with self.ask("HEAD", url, {}, good=(200, 404)) as response:
                return response.status_code == requests.codes.ok, response.headers.get("Content-Length")

        try:
            there, length = self.retried(url, ask)
        except UnwellError:  # of one blob alone: what a full disk leaves of it; to send it anew mends that
            return False
        if there and length is not None and length != str(size):
            what = f"the registry says that {digest} has {length} bytes, and it has {size}"
            raise HashMismatchError(what, where=redact(url), todo="its store is damaged or lies: see its operator")
        return there

    def push_blob(self, digest: str, path: Path, advance: Callable[[int], None] = lambda _: None) -> How:
        """Have a file in the registry as a blob: nothing is sent where it is there or can be mounted.

        A broken upload goes on where the registry says that it stopped; where it does not know, from the start.

        Args:
            digest: of the file.
            path: the file.
            advance: called with the bytes just sent.

        Raises:
            FetchError: refused, unreachable, or cut off again and again.
            HashMismatchError: the registry has, or says that it got, something else.
            LockError: the file is not what the digest says.
        """
        if self.has(digest, path.stat().st_size):
            return "there"
        upload = _Upload(writer=self, digest=digest, path=path, advance=advance)
        return self.retried(self.reference.api, upload.attempt, lambda: upload.offset)

    def mount(self, digest: str) -> bool:
        """Whether a blob could be had from one of `mount_from`, so that nobody need send it; raises as `push_blob`."""
        upload = _Upload(writer=self, digest=digest, path=Path(), advance=lambda _: None)
        return self.retried(self.reference.api, upload.mounted)

    def push_bytes(self, data: bytes, folder: Path) -> str:
        """Have a small document in the registry as a blob, by way of a file in `folder`; returns its digest."""
        digest = oci.digest(data)
        path = folder / digest.removeprefix("sha256:")
        path.write_bytes(data)
        self.push_blob(digest, path)
        return digest

    def push_manifest(self, data: bytes, media_type: str, tag: str | None = None) -> str:
        """Put a manifest or index under its digest, and a tag on it; then read back what the registry has.

        Returns:
            Its digest.

        Raises:
            FetchError: refused, unreachable, or something that it names is not there.
            HashMismatchError: what the registry has there now is something else.
        """
        digest = oci.digest(data)
        self._put(data, media_type, tag or digest)
        if tag is None:
            self.raw("manifests", digest)  # which hashes it
        elif (have := self.resolve(tag)) != digest:
            what = f"the registry took {digest} as {tag}, and now has {have or 'nothing'} there"
            todo = "somebody else moved the tag, or the registry is broken: see who, then run again"
            raise HashMismatchError(what, where=f"{self.reference.api}/manifests/{tag}", todo=todo)
        return digest

    def _put(self, data: bytes, media_type: str, name: str) -> str | None:
        """The subject that the registry says it has noted, if any."""
        url = f"{self.reference.api}/manifests/{name}"

        def put() -> str | None:
            headers = {"Content-Type": media_type}
            with self.ask("PUT", url, headers, body=lambda: data, good=(200, 201)) as response:
                return response.headers.get("OCI-Subject")

        return self.retried(url, put)

    def attach(self, data: bytes, media_type: str = oci.MANIFEST) -> str:
        """Put a manifest that has a `subject`, so that `referrers` of the subject lists it; returns its digest.

        A registry that says nothing of the subject has no referrers API: then its fallback tag is written, too. Two who
        do that at once may lose one's entry (the specification knows no way out), so what is there is read back.

        Raises:
            FetchError, HashMismatchError: as of `push_manifest`.
        """
        document = document_of(data, self.name)
        subject = document["subject"]["digest"]
        noted = self._put(data, media_type, oci.digest(data))
        self.raw("manifests", oci.digest(data))
        if noted != subject:
            self._note(subject, described(data, document, media_type))
        return oci.digest(data)

    def _note(self, subject: str, entry: dict[str, Any]) -> None:
        """Add an entry to the index under the fallback tag."""
        known = [x for x in self.referrers(subject) if x["digest"] != entry["digest"]]
        rows = sorted([*known, entry], key=lambda x: str(x["digest"]))
        index = canonical.dumps({"manifests": rows, "mediaType": oci.INDEX, "schemaVersion": 2})
        self.push_manifest(index, oci.INDEX, registry.fallback_tag(subject))

    def _scopes(self, asked: str | None) -> list[str]:
        """Both rights at once, so that one token serves for the whole push, and what is needed to mount."""
        del asked
        mounts = [f"repository:{name}:pull" for name in self.mount_from]
        return [f"repository:{self.reference.repository}:pull,push", *mounts]


def writer(ref: Reference, env: Mapping[str, str], **how: Any) -> Writer:
    """A writer with what the environment says of the registry; as `registry.connect`."""
    return Writer(ref, **means(ref.host, env), **how)


def described(data: bytes, document: Mapping[str, Any], media_type: str) -> dict[str, Any]:
    """The descriptor of a referrer, as a list of referrers has it."""
    config = document.get("config")
    kind = document.get("artifactType") or (config.get("mediaType") if isinstance(config, dict) else None)
    entry: dict[str, Any] = {"digest": oci.digest(data), "mediaType": media_type, "size": len(data)}
    if kind:
        entry["artifactType"] = kind
    if isinstance(notes := document.get("annotations"), dict):
        entry["annotations"] = notes
    return entry


@dataclass
class _Upload:
    """One blob on its way; `attempt` may be called again until it ends well.

    Attributes:
        at: where the registry wants the rest, or None before it told.
        offset: bytes that the registry was known to have when the last attempt began.
    """

    writer: Writer
    digest: str
    path: Path
    advance: Callable[[int], None]
    at: str | None = None
    offset: int = 0

    def attempt(self) -> How:
        """Send what is missing, and close the upload."""
        self.offset = self._resumed() if self.at else 0
        if self.at is None and self._begin():
            return "mounted"
        self._send(self.offset)
        self._close()
        return "pushed"

    def _begin(self) -> bool:
        """Ask for an upload; True if a mount made it needless."""
        return self.mounted() or (self.at is None and self._begun(self._start))

    def mounted(self) -> bool:
        """Whether another repository gave the blob; if not, an upload may have begun, as the specification has it."""
        for repository in self.writer.mount_from:
            query = urlencode({"mount": self.digest, "from": repository})
            if self._begun(f"{self._start}?{query}"):
                return True
        return False

    @property
    def _start(self) -> str:
        return f"{self.writer.reference.api}/blobs/uploads/"

    def _begun(self, url: str) -> bool:
        with self.writer.ask("POST", url, {}, body=lambda: b"", good=(201, 202)) as response:
            if response.status_code == requests.codes.created:
                return True
            self._follow(response, url)
            return False

    def _follow(self, response: requests.Response, url: str) -> None:
        """Keep where the registry wants the next request of this upload."""
        at = urljoin(url, response.headers.get("Location", ""))
        if urlsplit(url).scheme == "https" and urlsplit(at).scheme != "https":
            what = "the registry wants uploads over plain http"
            todo = "tell it its outside address (docker-registry: http.host, Harbor: external_url)"
            raise FetchError(what, where=redact(at), todo=todo)
        self.at = at

    def _resumed(self) -> int:
        """How many bytes of a broken upload the registry has; 0 and no `at` where it does not know it any more."""
        url, self.at = str(self.at), None
        known = (204, 202, 200)
        with self.writer.ask("GET", url, {}, good=(*known, 400, 404, 416)) as response:
            if response.status_code not in known:
                return 0
            last = re.fullmatch(r"(?:bytes=)?0-(\d+)", response.headers.get("Range", ""))
            if last is None or last[1] == "0":  # one byte or none: registries do not agree
                return 0
            self._follow(response, url)
            return min(int(last[1]) + 1, self.path.stat().st_size)

    def _send(self, offset: int) -> None:
        """Stream the rest of the file; its hash is over all of it, and is right before anything is closed."""
        size = self.path.stat().st_size
        with reading.opened(self.path) as file:
            body = _Body(file, offset, size, self.advance)
            if len(body) or not offset:  # else all of it arrived, and the line was cut after that
                body = self._patch(lambda: _Body(file, offset, size, self.advance), f"{offset}-{size - 1}")
        if body.digest != self.digest:
            self.at = None
            what = "a blob is not what its digest says"
            raise LockError(what, where=str(self.path), todo="build the image again; nothing was published")

    def _patch(self, fresh: Callable[[], _Body], stretch: str) -> _Body:
        """Send a body, a fresh one each time that it has to be; returns the last."""
        bodies: list[_Body] = []

        def body() -> _Body:
            bodies.append(fresh())
            return bodies[-1]

        headers = _OCTETS if stretch.startswith("0-") else _OCTETS | {"Content-Range": stretch}
        good = (202, 201, 204, 400, 404, 416)
        with self.writer.ask("PATCH", str(self.at), headers, body=body, good=good) as response:
            if response.status_code in {400, 404, 416}:  # it lost the upload, as one that was restarted may
                self.at = None
                raise self._again(f"it answered {response.status_code}{reasons(response)}")
            self._follow(response, str(self.at))
        return bodies[-1]

    def _close(self) -> None:
        url = str(self.at)
        closing = f"{url}{'&' if urlsplit(url).query else '?'}{urlencode({'digest': self.digest})}"
        with self.writer.ask("PUT", closing, dict(_OCTETS), body=lambda: b"", good=(201, 204, 400, 404)) as response:
            if response.status_code in {400, 404}:
                self.at = None
                raise self._again(f"what arrived is not what was sent: {response.status_code}{reasons(response)}")
            have = response.headers.get("Docker-Content-Digest", self.digest)
            if have != self.digest:
                what = f"the registry stored {have}, and {self.digest} was sent"
                todo = "do not use this registry: it, or a proxy before it, changes what it is given"
                raise HashMismatchError(what, where=redact(url), todo=todo)

    def _again(self, why: str) -> AgainError:
        return again(why, self.writer.reference.api)
