"""One GET as a careful client does it: log in only where that belongs, try again what will pass, show no secret."""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

import requests
import urllib3

from verlstack.errors import FetchError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from verlstack.index import Index

Sleep = Callable[[float], object]
T = TypeVar("T")

CONNECT_S = 10.0  # seconds to reach a host: three retransmissions of a lost SYN (1 + 2 + 4 s) fit
READ_S = 60.0  # seconds of silence on an open connection
TRIES = 5  # in a row without progress; the pauses between them add up to 7.5 s
GROWTH = 1 << 20  # bytes that count as progress, so that a large file survives any number of cuts
RETRY_AFTER_MAX_S = 60.0  # a longer wish of the server is cut to this: rather fail than seem to hang

_BUSY = (429, 500, 502, 503, 504)  # the server's trouble, likely to pass
CONFIGURE = "use another index (UV_DEFAULT_INDEX, or pip's index-url)"
_REFUSED = {
    401: ("asks for a login", "put user and password into ~/.netrc, or into the index address in UV_DEFAULT_INDEX"),
    403: ("refuses access", f"check your login and the mirror's policy for this package, or {CONFIGURE}"),
    404: ("lists the file but no longer has it", f"{CONFIGURE}, or lock another version"),
}


def redact(text: str) -> str:
    """`text` with every address in it stripped of user, password, query and fragment."""
    bare = re.sub(r"//(?:[^\s/@:]+:[^\s'\"]*|[^\s/]*)@", "//", text)
    return re.sub(r"(//[^\s?#'\"]*)[?#][^\s'\"]*", r"\1", bare)


class AgainError(Exception):
    """Worth another try.

    Attributes:
        error: what to raise when there have been enough.
        wait: seconds the server wishes, or None.
        reached: bytes on disk by now; growth means that further tries make sense.
    """

    def __init__(self, error: FetchError, *, wait: float | None = None, reached: int = 0) -> None:
        super().__init__(error)
        self.error = error
        self.wait = wait
        self.reached = reached


def get(
    at: requests.Session, index: Index, url: str, subject: str, headers: Mapping[str, str], *, stream: bool = False
) -> requests.Response:
    """One GET, with the login that belongs to the address; requests drops it when a redirect leaves the host.

    Raises:
        AgainError: no answer, or one that says the trouble will pass.
        FetchError: the address is wrong or its certificate is not trusted.
    """
    bare = re.sub(r"//[^/?#]*@", "//", url)
    try:
        answer = at.get(bare, auth=_login(index, url), headers=headers, stream=stream, timeout=(CONNECT_S, READ_S))
    except (OSError, ValueError, urllib3.exceptions.HTTPError) as e:
        raise _no_answer(e, subject, url) from None  # never shown raw: their texts hold addresses
    if answer.status_code in _BUSY:
        answer.close()
        raise AgainError(refused(answer, subject, url), wait=retry_after(answer.headers.get("Retry-After", "")))
    return answer


def refused(answer: requests.Response, subject: str, url: str) -> FetchError:
    """What a status that is no success means for the user."""
    what, todo = _REFUSED.get(answer.status_code, ("answered", f"try again later, or {CONFIGURE}"))
    return FetchError(f"{subject}: the index {what} (HTTP {answer.status_code})", where=redact(url), todo=todo)


def _login(index: Index, url: str) -> tuple[str, str] | None:
    """Credentials in `url` itself, else in an index address of the same scheme, host and port."""
    here = urlsplit(url)
    for known in (here, *map(urlsplit, (index.primary, *index.extras))):
        if known.username is not None and (known.scheme, known.netloc.rpartition("@")[2]) == (
            here.scheme,
            here.netloc.rpartition("@")[2],
        ):
            return unquote(known.username), unquote(known.password or "")
    return None


def _no_answer(e: Exception, subject: str, url: str) -> Exception:
    host = urlsplit(redact(url)).netloc
    if "CERTIFICATE_VERIFY_FAILED" in str(e) or (
        isinstance(e, OSError) and not isinstance(e, requests.RequestException)
    ):
        todo = "set SSL_CERT_FILE (or pip's cert) to a CA bundle that exists and holds the index's CA"
        return FetchError(f"{subject}: the certificate of {host} cannot be verified", where=redact(url), todo=todo)
    if isinstance(e, (ValueError, requests.TooManyRedirects)):
        return FetchError(f"{subject}: not a usable address ({type(e).__name__})", where=redact(url), todo=CONFIGURE)
    what = f"{subject}: the index at {host} cannot be reached: {reason(e)}"
    todo = f"check the network and proxy, {CONFIGURE}, or --offline if everything is in the cache"
    return AgainError(FetchError(what, where=redact(url), todo=todo))


def reason(e: BaseException | None) -> str:
    """The operating system's word for why a connection failed; nothing that could hold an address."""
    kind = type(e).__name__
    while e is not None:
        if isinstance(e, OSError) and (e.strerror or isinstance(e, (TimeoutError, requests.Timeout))):
            return e.strerror or "no answer in time"
        e = e.__cause__ or e.__context__
    return kind


def retry_after(text: str) -> float | None:
    """Seconds in a Retry-After header, which is a number or a date (RFC 9110, 10.2.3)."""
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def patiently(action: Callable[[], T], sleep: Sleep, *, tries: int = TRIES) -> T:
    """Call `action` until it raises no AgainError, pausing ever longer; `tries` in a row without progress are enough.

    Raises:
        FetchError: the last AgainError's.
    """
    failures = best = 0
    while True:
        try:
            return action()
        except AgainError as e:
            if e.reached >= best + GROWTH:
                failures, best = 0, e.reached
            failures += 1
            if failures >= tries:
                what = f"{e.error.what} ({tries} tries)"
                raise type(e.error)(what, where=e.error.where, todo=e.error.todo) from None
            sleep(0.5 * 2 ** (failures - 1) if e.wait is None else min(e.wait, RETRY_AFTER_MAX_S))
