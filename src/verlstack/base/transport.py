"""Requests to a registry: the login that it asks for, again what will pass, and its refusals as errors."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar
from urllib.parse import urlsplit

import requests
import requests.auth

from verlstack import canonical, told
from verlstack.base import login
from verlstack.errors import FetchError, UnwellError
from verlstack.web import AgainError, patiently, reason, redact, retry_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from verlstack.base.reference import Reference

MAX_DOCUMENT = 4 << 20  # bytes; the distribution specification lets a registry refuse larger manifests
CHUNK = 1 << 18  # bytes per read from the network
GOOD = (requests.codes.ok, requests.codes.partial_content)
_MOST_SAID = 300  # characters of a registry's own words that are shown
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
class Transport:
    """Speaks to one repository; safe to use from several threads once the first request is through.

    Use as a context manager: it holds connections open.

    Attributes:
        reference: what it is about.
        stored: credentials in base64, or None; they go to the registry and its token service alone.
        identity: a token that the token service takes instead.
        timeout: seconds to connect and between two pieces.
        attempts: how often a request is made before a server error or a broken line is reported.
    """

    reference: Reference
    stored: str | None = field(default=None, repr=False)
    identity: str | None = field(default=None, repr=False)
    timeout: tuple[float, float] = _TIMEOUT
    attempts: int = _ATTEMPTS
    sleep: Callable[[float], None] = time.sleep
    session: requests.Session = field(default_factory=requests.Session, repr=False)
    _authorization: str | None = field(default=None, repr=False)
    _purpose: ClassVar[str] = "pull"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    def retried(self, url: str, attempt: Callable[[], T], reached: Callable[[], int] = lambda: 0) -> T:
        """The result of the first attempt that is not stopped by a server error or a broken line.

        Args:
            url: for messages.
            attempt: may be called again and again.
            reached: bytes that are through by now; growth means that further attempts make sense.

        Raises:
            FetchError: the last attempt's.
        """

        def once() -> T:
            try:
                return attempt()
            except AgainError as e:
                e.reached = max(e.reached, reached())
                raise
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as e:
                if wrong := self._untrusted(str(e), url):
                    raise wrong from None  # stays so, however often it is tried
                why = f"{self.reference.host} cannot be reached or hung up: {reason(e)}"
                raise again(why, url, reached=reached()) from None

        return patiently(once, self.sleep, tries=self.attempts)

    def _untrusted(self, said: str, url: str) -> FetchError | None:
        """What is wrong with the registry's TLS, if anything is."""
        if "CERTIFICATE_VERIFY_FAILED" in said:
            what = f"the certificate of {self.reference.host} cannot be verified"
            todo = "set REQUESTS_CA_BUNDLE to a bundle that holds the authority of the registry"
            return FetchError(what, where=redact(url), todo=todo)
        if "WRONG_VERSION_NUMBER" in said or "HTTP_REQUEST" in said:
            what = f"{self.reference.host} does not speak TLS"
            todo = "give the registry a certificate; --insecure allows plain http on this machine"
            return FetchError(what, where=redact(url), todo=todo)
        return None

    def ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        *,
        body: Callable[[], Any] = lambda: None,
        good: Iterable[int] = GOOD,
    ) -> requests.Response:
        """One request; a 401 is answered once, with a token or with the stored credentials.

        Args:
            method: of HTTP.
            url: in the registry, or where it sent us.
            headers: besides Authorization.
            body: gives what to send, from its beginning, each time it is called.
            good: status codes that are no error.
        """
        response = self._send(method, url, headers, body(), self._authorization)
        if response.status_code == requests.codes.unauthorized and self._is_its_own(url):
            challenge = response.headers.get("WWW-Authenticate", "")
            response.close()
            # a variable of our own: another thread may answer a challenge meanwhile
            self._authorization = authorization = self._answer(challenge)
            response = self._send(method, url, headers, body(), authorization)
        if response.status_code in good:
            return response
        with response:
            raise self._refusal(response, url)

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: Any, authorization: str | None
    ) -> requests.Response:
        return self.session.request(
            method,
            url,
            headers={"Accept-Encoding": "identity", **headers},  # a blob's own compression is what its digest is over
            data=body,
            auth=_Header(authorization if self._is_its_own(url) else None),
            stream=True,
            timeout=self.timeout,
            allow_redirects=method in {"GET", "HEAD"},
        )

    def _is_its_own(self, url: str) -> bool:
        """Whether an address is the registry's own, which alone may see credentials."""
        return urlsplit(url)[:2] == urlsplit(self.reference.api)[:2]

    def _scopes(self, asked: str | None) -> list[str]:
        """What to ask of the token service; `asked` is what the registry said."""
        return [asked or f"repository:{self.reference.repository}:pull"]

    def _answer(self, challenge: str) -> str | None:
        """The Authorization header that answers a WWW-Authenticate header (RFC 6750 with Docker's token service)."""
        scheme, _, rest = challenge.partition(" ")
        basic = f"Basic {self.stored}" if self.stored else None
        fields = dict(_PARAMETER.findall(rest))
        realm = fields.get("realm", "")
        if scheme.lower() != "bearer" or not urlsplit(realm).netloc:
            return basic
        if urlsplit(self.reference.api).scheme == "https" and urlsplit(realm).scheme != "https":
            what = "the registry wants its login over plain http, where anybody may read it"
            raise FetchError(what, where=redact(realm), todo="tell its operator: the token service needs https")
        service, scopes = fields.get("service", ""), self._scopes(fields.get("scope"))
        if self.identity:
            form = {"grant_type": "refresh_token", "refresh_token": self.identity, "client_id": "verlstack"}
            form |= {"service": service, "scope": " ".join(scopes)}
            # the token is in the body, which a redirect would take along, whoever it leads to
            how: dict[str, Any] = {"auth": _Header(None), "timeout": self.timeout, "stream": True}
            response = self.session.post(realm, data=form, allow_redirects=False, **how)
        else:
            query: dict[str, Any] = {"service": service, "scope": scopes}
            response = self.session.get(realm, params=query, auth=_Header(basic), timeout=self.timeout, stream=True)
        if response.status_code != requests.codes.ok:
            raise self._refusal(response, realm)
        try:
            answer = document_of(whole(response, realm), realm)
        except FetchError:
            what = "the answer of the registry's token service makes no sense"
            raise FetchError(
                what, where=redact(realm), todo="see whether a proxy or login page answers there"
            ) from None
        return f"Bearer {answer.get('token') or answer.get('access_token')}"

    def _refusal(self, response: requests.Response, url: str) -> Exception:
        """The error behind an HTTP status; a server's own trouble may pass, ours will not."""
        status, said, where = response.status_code, reasons(response), redact(url)
        if status >= requests.codes.internal_server_error or status == requests.codes.too_many_requests:
            return again(f"it answered {status}{said}", url, wait=retry_after(response.headers.get("Retry-After", "")))
        asked = response.request.method in {"GET", "HEAD"}
        if status == requests.codes.not_found and self._purpose == "push" and not asked:
            what = f"the registry has no place for {self.reference.host}/{self.reference.repository} (404){said}"
            return FetchError(what, where=where, todo="make the project or repository there first, or check its name")
        if status == requests.codes.not_found:
            return FetchError(
                f"the registry has no such image or blob (404): {self.reference}",
                where=where,
                todo="check name and digest; vendors delete old tags and what they pointed to, so mirror what you need",
            )
        if status in {requests.codes.unauthorized, requests.codes.forbidden}:
            known = "the stored credentials" if self.stored or self.identity else f"an anonymous {self._purpose}"
            todo = f"run `docker login {self.reference.host}`"
            return FetchError(f"the registry refuses {known} ({status}){said}", where=where, todo=todo)
        return FetchError(f"the registry answered {status}{said}", where=where, todo="check the reference")


def means(host: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Attributes of a Client that the environment decides: credentials, and whose certificates are trusted.

    Args:
        host: of the registry.
        env: HOME or DOCKER_CONFIG, REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE or SSL_CERT_FILE.

    Raises:
        FetchError: a credential helper fails.
    """
    session = requests.Session()
    named = (env.get(name) for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"))  # as for the index
    session.verify = next(filter(None, named), True)
    known = login.stored(host, env)
    return {"stored": known.basic, "identity": known.identity, "session": session}


def document_of(body: bytes, where: str) -> dict[str, Any]:
    """A manifest or config as JSON.

    Raises:
        FetchError: it is none.
    """
    try:
        document = canonical.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise FetchError(
            "a manifest or config that is no object in JSON", where=redact(where), todo="use another image"
        )
    return document


def again(why: str, url: str, *, reached: int = 0, wait: float | None = None) -> AgainError:
    """A server error or a broken line: worth another attempt."""
    todo = "see whether the registry is up and a proxy is needed (HTTPS_PROXY), then run again: it resumes"
    error = UnwellError(f"the registry did not answer well: {why}", where=redact(url), todo=todo)
    return AgainError(error, reached=reached, wait=wait)


def reasons(response: requests.Response) -> str:
    """The registry's own words (`errors` of the specification), in brackets and fit to be shown; or nothing."""
    try:
        rows = [f"{x['code']}: {x.get('message', '')}" for x in json.loads(whole(response, ""))["errors"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, FetchError, requests.RequestException):
        return ""
    return f" ({told.escaped(told.plain('; '.join(rows)))[:_MOST_SAID]})" if rows else ""


def whole(response: requests.Response, url: str) -> bytes:
    """The body of a document.

    Raises:
        FetchError: it is longer than any.
    """
    return b"".join(_limited(response.iter_content(CHUNK), url))


def _limited(pieces: Iterable[bytes], url: str) -> Iterator[bytes]:
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > MAX_DOCUMENT:
            raise FetchError(f"a manifest or config of more than {MAX_DOCUMENT} bytes is none", where=redact(url))
        yield piece
