"""The package index that the user has configured: where it is, how to ask it, and where a file lies on it."""

from __future__ import annotations

import ast
import bisect
import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import requests
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from verlstack import shell
from verlstack.errors import FetchError, HashMismatchError
from verlstack.web import CONFIGURE, get, redact, refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pypi_simple import DistributionPackage

_FOR_UV = {
    *("home", "path", "tmpdir", "lang", "lc_all", "xdg_cache_home", "xdg_config_home", "uv_cache_dir", "uv_index"),
    *("uv_native_tls", "uv_http_timeout", "http_proxy", "https_proxy", "all_proxy", "no_proxy", "netrc"),
    *("ssl_cert_file", "ssl_cert_dir", "ssl_client_cert"),
}
_PIP_SECTIONS = (":env:", "install", "download", "global")  # pip's own precedence, strongest first
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
    primary = (*primaries, _public())[0]
    words = " ".join(env.get(k, "") for k in ("UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL"))
    words += f" {pip.get('extra-index-url', '')}"
    extras = dict.fromkeys(url for w in words.split() if _is_web(url := _unnamed(w)) and url != primary)
    return Index(primary=primary, extras=tuple(extras), cert=pip.get("cert"))


def _public() -> str:
    """The address that a client without configuration uses, as the library knows it."""
    from pypi_simple import PYPI_SIMPLE_ENDPOINT  # noqa: PLC0415 - 0.4 s that a build from the cache does not need

    return PYPI_SIMPLE_ENDPOINT


def _pip_config(env: Mapping[str, str], run: Callable[..., shell.Result]) -> dict[str, str]:
    result = run([sys.executable, "-P", "-m", "pip", "config", "list"], env=env, timeout=60)
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

    Nothing else of the user's is handed on: settings such as UV_RESOLUTION would decide the lock, and where a package
    has no wheel, uv runs its setup.py to learn what it requires. pip's extra indexes are not handed on either: two
    sources for one name invite dependency confusion. What the user has set for uv itself (UV_INDEX) stays.
    """
    kept = {k: v for k, v in env.items() if k.lower() in _FOR_UV}
    kept["UV_DEFAULT_INDEX"] = index.primary
    if (bundle := ca_bundle(index, env)) and not env.get("SSL_CERT_FILE"):
        kept["SSL_CERT_FILE"] = bundle
    return kept


def ca_bundle(index: Index, env: Mapping[str, str]) -> str | None:
    """The CA bundle that the user's environment names, else pip's configuration; None where neither does."""
    named = (env.get(k) for k in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT"))
    return next((path for path in (*named, index.cert, env.get("SSL_CERT_FILE")) if path), None)


def session(index: Index, env: Mapping[str, str]) -> requests.Session:
    """A session that trusts the user's CA bundle; proxies and netrc are read by requests itself. One per thread."""
    made = requests.Session()
    made.headers["User-Agent"] = f"verlstack {requests.utils.default_user_agent()}"
    made.verify = ca_bundle(index, env) or True
    return made


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
    from pypi_simple import (  # noqa: PLC0415 - 0.4 s that a build from the cache does not need
        ACCEPT_JSON_PREFERRED,
        ProjectPage,
        UnsupportedContentTypeError,
        UnsupportedRepoVersionError,
    )

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
        raise FetchError(what, where=redact(url), todo=f"check for a login page in between, or {CONFIGURE}") from None


def _absent(
    index: Index, project: str, version: str, there: list[DistributionPackage], *, sha256: str, name: str
) -> FetchError:
    where = ", ".join(map(redact, (index.primary, *index.extras)))
    for file in there:
        if file.filename == name:
            what = f"{name}: the index lists sha256 {file.digests['sha256']}, the lock wants {sha256}; not downloaded"
            return HashMismatchError(what, where=where, todo=f"{CONFIGURE}, or lock again if the new file is trusted")
    same = [f"{f.filename}{' (yanked)' * f.is_yanked}" for f in there if _key(f.version) == _key(version)]
    if same:
        what = f"{name} is not on the index; for {project} {version} it has {_some(same)}"
    elif there:
        versions = sorted({f.version or "?" for f in there}, key=_key)
        at = max(0, bisect.bisect([_key(v) for v in versions], _key(version)) - _SHOWN // 2)
        near = ", ".join(versions[at : at + _SHOWN])
        what = f"{name}: the index has no {project} {version}, deleted or never mirrored; the nearest it has: {near}"
    else:
        what = f"{name}: the index has no project {project}"
    return FetchError(what, where=where, todo=f"{CONFIGURE}, or lock another version")


def _key(version: str | None) -> tuple[Version, str]:
    try:
        return Version(version or ""), ""
    except InvalidVersion:
        return Version("0.dev0"), version or ""


def _some(words: list[str]) -> str:
    return ", ".join(words[:_SHOWN]) + (f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else "")
