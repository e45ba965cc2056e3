"""Image references as people write them, and the addresses of registries that they lead to."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from verlstack.errors import UsageError

_LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?")
_REFERENCE = re.compile(
    r"(?P<name>[a-zA-Z0-9][\w.:/\[\]-]*?)(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
DOCKER_HUB = "docker.io"
NO_DIGEST = f"sha256:{'0' * 64}"  # of a reference that is still to be looked up, or to be written to


@dataclass(frozen=True, kw_only=True)
class Reference:
    """An image by digest.

    Attributes:
        host: as people write it, `docker.io` or `127.0.0.1:5000`.
        repository: `library/ubuntu`.
        tag: for people only; never asked for.
        digest: `sha256:…` of the manifest or index.
        plain: http instead of https; None: on loopback.
    """

    host: str
    repository: str
    tag: str | None
    digest: str
    plain: bool | None = None

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.host}/{self.repository}{tag}@{self.digest}"

    @property
    def api(self) -> str:
        """Address of the repository in the registry's API."""
        host = "registry-1.docker.io" if self.host == DOCKER_HUB else self.host
        plain = is_loopback(host) if self.plain is None else self.plain
        return f"{'http' if plain else 'https'}://{host}/v2/{self.repository}"


def parse(text: str) -> Reference:
    """Read `[HOST[:PORT]/]REPOSITORY[:TAG]@sha256:HEX`; Docker Hub and its `library/` are the defaults.

    Raises:
        UsageError: no digest, or not a reference at all.
    """
    check_whole(text.partition("@")[0])
    match = _REFERENCE.fullmatch(text)
    first, slash, rest = match["name"].partition("/") if match else ("", "", "")
    has_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    host, repository = (first, rest) if has_host else (DOCKER_HUB, f"{first}{slash}{rest}")
    if host in {"index.docker.io", "registry-1.docker.io"}:
        host = DOCKER_HUB
    if host == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    if not match or not _REPOSITORY.fullmatch(repository):
        written = text.removesuffix(f"@{NO_DIGEST}")  # what a caller added is not the user's
        form = "HOST/REPOSITORY@sha256:<64 hex digits>" if written == text else "HOST/REPOSITORY or HOST/REPOSITORY:TAG"
        raise UsageError(f"{written!r} is not an image reference", todo=f"write {form}")
    if not match["digest"]:
        raise UsageError(
            f"{text} has no digest; a tag can move, and the same command would then give another image",
            todo=f"write {text}@sha256:…; `skopeo inspect docker://{text}` prints it",
        )
    return Reference(host=host, repository=repository, tag=match["tag"], digest=match["digest"])


def check_whole(text: str) -> None:
    """Refuse the first digits of a digest: as a reference they would be a tag of Docker Hub's `library/sha256`.

    Raises:
        UsageError: it is `sha256:` and fewer digits than a digest has, or more.
    """
    if re.fullmatch(r"sha256:[0-9a-fA-F]*", text) and len(text) != len(NO_DIGEST):
        raise UsageError(f"{text!r} is no whole digest", todo="give all 64 digits")


def is_loopback(host: str) -> bool:
    """Whether HOST[:PORT] is this machine."""
    return bool(_LOOPBACK.fullmatch(host))


def place(text: str, *, insecure: bool) -> Reference:
    """Read `HOST[:PORT]/REPOSITORY[:TAG][@sha256:HEX]`, where a host must be named; NO_DIGEST stands for a missing one.

    Args:
        text: what the user wrote.
        insecure: speak plain http, on loopback only; else https everywhere.

    Raises:
        UsageError: not such a reference, or `insecure` for a host that is not this machine.
    """
    ref = parse(text if "@" in text else f"{text}@{NO_DIGEST}")
    if not re.match(rf"{re.escape(ref.host)}/", text):
        raise UsageError(f"{text!r} names no registry", todo="write HOST/REPOSITORY; Docker Hub is docker.io/USER/NAME")
    if insecure and not is_loopback(ref.host):
        what = f"--insecure is for a registry on this machine, and {ref.host} is none"
        raise UsageError(what, todo="give the registry a certificate, and its authority to us in REQUESTS_CA_BUNDLE")
    return dataclasses.replace(ref, plain=insecure)
