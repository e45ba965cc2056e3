"""The package index that the user has configured: where it is, how to ask it, and where a file lies on it."""

from __future__ import annotations

import ast
import email.utils
import re
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import requests
import urllib3
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pypi_simple import (
    ACCEPT_JSON_PREFERRED,
    PYPI_SIMPLE_ENDPOINT,
    DistributionPackage,
    ProjectPage,
    UnsupportedContentTypeError,
    UnsupportedRepoVersionError,
)

from verlstack import shell
from verlstack.errors import FetchError, HashMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CONNECT_S = 10.0  # seconds to reach a host: three retransmissions of a lost SYN (1 + 2 + 4 s) fit
READ_S = 60.0  # seconds of silence on an open connection

_PIP_SECTIONS = (":env:", "install", "download", "global")  # pip's own precedence, strongest first
_BUSY = (429, 500, 502, 503, 504)  # the server's trouble, likely to pass
_CONFIGURE = "use another index (UV_DEFAULT_INDEX, or pip's index-url)"
_REFUSED = {
    401: ("asks for a login", "put user and password into ~/.netrc, or into the index address in UV_DEFAULT_INDEX"),
    403: ("refuses access", f"check your login and the mirror's policy for this package, or {_CONFIGURE}"),
    404: ("lists the file but no longer has it", f"{_CONFIGURE}, or lock another version"),
}
_SHOWN = 8  # files or versions named in an error: a screenful at most


@dataclass(frozen=True, kw_only=True)
class Index:
    """Addresses of one primary index and further ones, perhaps with credentials, which repr leaves out.

    Attributes:
        primary: the only index that versions are resolved from.
        extras: asked for a locked file that the primary does not have; safe, because every download is hash-checked.
        cert: CA bundle from pip's configuration.
    """

    primary: str = field(repr=False)
    extras: tuple[str, ...] = field(default=(), repr=False)
    cert: str | None = None


def configured(env: Mapping[str, str], run: Callable[..., shell.Result] = shell.run) -> Index:
    """The index in `env` and in pip's configuration files; file: addresses are passed over.

    Raises:
        FetchError: pip's configuration is damaged, or the primary index is not an address.
    """
    pip = _pip_config(env, run)
    asked = [(k, env.get(k, "")) for k in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")]
    asked.append(("pip's index-url", pip.get("index-url", "")))
    primaries = [url for name, text in asked if (url := _primary(name, text.strip()))]
    primary = (*primaries, PYPI_SIMPLE_ENDPOINT)[0]
    words = " ".join(env.get(k, "") for k in ("UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL"))
    words += f" {pip.get('extra-index-url', '')}"
    extras = dict.fromkeys(url for w in words.split() if _is_web(url := _unnamed(w)) and url != primary)
    return Index(primary=primary, extras=tuple(extras), cert=pip.get("cert"))


def _pip_config(env: Mapping[str, str], run: Callable[..., shell.Result]) -> dict[str, str]:
    result = run([sys.executable, "-m", "pip", "config", "list"], env=env, timeout=60)
    if result.returncode:
        raise FetchError(f"pip cannot read its configuration: {redact(result.tail)}", todo="mend pip's configuration")
    values: dict[str, str] = {}
    for section in reversed(_PIP_SECTIONS):
        for key, text in re.findall(rf"^{section}\.([\w-]+)=(.*)$", result.stdout, re.MULTILINE):
            values[key.replace("_", "-")] = str(ast.literal_eval(text))  # pip prints repr(value)
    return values


def _primary(name: str, text: str) -> str | None:
    url = _unnamed(text)
    if _is_web(url):
        return url
    if url and not url.startswith("file:"):  # a slip must not lead to the public index unseen
        raise FetchError(
            f"{name} is not an http or https address",
            where=redact(url),
            todo="set it to an index address, with its scheme",
        )
    return None


def _unnamed(text: str) -> str:
    """Uv's indexes may be written `name=url`."""
    return re.sub(r"^[\w.-]+=(?=[a-z]+:)", "", text)


def _is_web(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def uv_environment(index: Index, env: Mapping[str, str]) -> dict[str, str]:
    """Environment in which uv resolves from the primary index; credentials stay out of its command line.

    pip's extra indexes are not handed on: two sources for one name invite dependency confusion. What the user has set
    for uv itself (UV_INDEX) stays.
    """
    kept = {k: v for k, v in env.items() if not k.startswith("PIP_") and k != "UV_INDEX_URL"}
    kept["UV_DEFAULT_INDEX"] = index.primary
    if (bundle := _ca_bundle(index, env)) and not env.get("SSL_CERT_FILE"):
        kept["SSL_CERT_FILE"] = bundle
    return kept


def _ca_bundle(index: Index, env: Mapping[str, str]) -> str | None:
    named = (env.get(k) for k in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT"))
    return next((path for path in (*named, index.cert, env.get("SSL_CERT_FILE")) if path), None)


def session(index: Index, env: Mapping[str, str]) -> requests.Session:
    """A session that trusts the user's CA bundle; proxies and netrc are read by requests itself. One per thread."""
    made = requests.Session()
    made.headers["User-Agent"] = f"verlstack {requests.utils.default_user_agent()}"
    made.verify = _ca_bundle(index, env) or True
    return made


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
        raise AgainError(refused(answer, subject, url), wait=_retry_after(answer.headers.get("Retry-After", "")))
    return answer


def refused(answer: requests.Response, subject: str, url: str) -> FetchError:
    """What a status that is no success means for the user."""
    what, todo = _REFUSED.get(answer.status_code, ("answered", f"try again later, or {_CONFIGURE}"))
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
        return FetchError(f"{subject}: not a usable address ({type(e).__name__})", where=redact(url), todo=_CONFIGURE)
    what = f"{subject}: the index at {host} cannot be reached: {reason(e)}"
    todo = f"check the network and proxy, {_CONFIGURE}, or --offline if everything is in the cache"
    return AgainError(FetchError(what, where=redact(url), todo=todo))


def reason(e: BaseException | None) -> str:
    """The operating system's word for why a connection failed; nothing that could hold an address."""
    kind = type(e).__name__
    while e is not None:
        if isinstance(e, OSError) and (e.strerror or isinstance(e, (TimeoutError, requests.Timeout))):
            return e.strerror or "no answer in time"
        e = e.__cause__ or e.__context__
    return kind


def _retry_after(text: str) -> float | None:
    """Seconds in a Retry-After header, which is a number or a date (RFC 9110, 10.2.3)."""
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def locate(index: Index, project: str, version: str, wanted: Mapping[str, str], at: requests.Session) -> dict[str, str]:
    """Addresses of the files `wanted` (sha256 to file name), looked for on the primary index, then on the extra ones.

    Raises:
        AgainError: an index does not answer for now.
        FetchError: no index has them; the message lists what is there.
        HashMismatchError: an index lists the file with another sha256.
    """
    found: dict[str, str] = {}
    there: list[DistributionPackage] = []
    for base in (index.primary, *index.extras):
        files = _project_files(index, base, project, version, at)
        for sha256, name in wanted.items():
            for file in files:
                listed = file.digests.get("sha256")
                if listed == sha256 or (listed is None and file.filename == name):  # old mirrors list no hash
                    found.setdefault(sha256, file.url)
        if found.keys() >= wanted.keys():
            return found
        there += files
    sha256, name = next((s, n) for s, n in wanted.items() if s not in found)
    raise _absent(index, project, version, there, sha256=sha256, name=name)


def _project_files(
    index: Index, base: str, project: str, version: str, at: requests.Session
) -> list[DistributionPackage]:
    url = f"{base.rstrip('/')}/{canonicalize_name(project)}/"
    answer = get(at, index, url, f"{project} {version}", {"Accept": ACCEPT_JSON_PREFERRED})
    if answer.status_code in (404, 410):
        return []
    if not answer.ok:
        raise refused(answer, f"{project} {version}", url)
    try:
        return ProjectPage.from_response(answer, project).packages
    except (ValueError, UnsupportedContentTypeError, UnsupportedRepoVersionError) as e:
        what = f"{project}: the index answered with something that is no project page ({type(e).__name__})"
        raise FetchError(what, where=redact(url), todo=f"check for a login page in between, or {_CONFIGURE}") from None


def _absent(
    index: Index, project: str, version: str, there: list[DistributionPackage], *, sha256: str, name: str
) -> FetchError:
    where = ", ".join(map(redact, (index.primary, *index.extras)))
    for file in there:
        if file.filename == name:
            what = f"{name}: the index lists sha256 {file.digests['sha256']}, the lock wants {sha256}; not downloaded"
            return HashMismatchError(what, where=where, todo=f"{_CONFIGURE}, or lock again if the new file is trusted")
    same = [f"{f.filename}{' (yanked)' * f.is_yanked}" for f in there if _key(f.version) == _key(version)]
    if same:
        what = f"{name} is not on the index; for {project} {version} it has {_some(same)}"
    elif there:
        versions = sorted({f.version or "?" for f in there}, key=_key, reverse=True)
        what = f"{name}: the index has no {project} {version}, deleted or never mirrored; it has {_some(versions)}"
    else:
        what = f"{name}: the index has no project {project}"
    return FetchError(what, where=where, todo=f"{_CONFIGURE}, or lock another version")


def _key(version: str | None) -> tuple[Version, str]:
    try:
        return Version(version or ""), ""
    except InvalidVersion:
        return Version("0.dev0"), version or ""


def _some(words: list[str]) -> str:
    return ", ".join(words[:_SHOWN]) + (f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else "")
