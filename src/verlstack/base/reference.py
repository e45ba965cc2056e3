"""Image references as people write them, and the credentials `docker login` stored for their hosts."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verlstack.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

_LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?")
_REFERENCE = re.compile(
    r"(?P<name>[a-zA-Z0-9][\w.:/\[\]-]*?)(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_DOCKER_HUB = "docker.io"


@dataclass(frozen=True, kw_only=True)
class Reference:
    """An image by digest.

    Attributes:
        host: as people write it, `docker.io` or `127.0.0.1:5000`.
        repository: `library/ubuntu`.
        tag: for people only; never asked for.
        digest: `sha256:…` of the manifest or index.
    """

    host: str
    repository: str
    tag: str | None
    digest: str

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.host}/{self.repository}{tag}@{self.digest}"

    @property
    def api(self) -> str:
        """Address of the registry's API; http on loopback only."""
        host = "registry-1.docker.io" if self.host == _DOCKER_HUB else self.host
        return f"{'http' if _LOOPBACK.fullmatch(host) else 'https'}://{host}/v2/{self.repository}"


def parse(text: str) -> Reference:
    """Read `[HOST[:PORT]/]REPOSITORY[:TAG]@sha256:HEX`; Docker Hub and its `library/` are the defaults.

    Raises:
        UsageError: no digest, or not a reference at all.
    """
    match = _REFERENCE.fullmatch(text)
    first, slash, rest = match["name"].partition("/") if match else ("", "", "")
    has_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    host, repository = (first, rest) if has_host else (_DOCKER_HUB, f"{first}{slash}{rest}")
    if host in {"index.docker.io", "registry-1.docker.io"}:
        host = _DOCKER_HUB
    if host == _DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    if not match or not _REPOSITORY.fullmatch(repository):
        raise UsageError(f"{text!r} is not an image reference", todo="write HOST/REPOSITORY@sha256:<64 hex digits>")
    if not match["digest"]:
        raise UsageError(
            f"{text} has no digest; a tag can move, and the same command would then give another image",
            todo=f"write {text}@sha256:…; `skopeo inspect docker://{text}` prints it",
        )
    return Reference(host=host, repository=repository, tag=match["tag"], digest=match["digest"])


def credentials(host: str, docker_config: Path) -> str | None:
    """The `user:password` in base64 that `docker login` stored for a host; None if there is none in plain form."""
    try:
        auths = json.loads(docker_config.read_text()).get("auths", {})
    except (OSError, ValueError, AttributeError):
        return None
    names = (host, f"https://{host}") if host != _DOCKER_HUB else ("https://index.docker.io/v1/", host)
    for name in names:
        if (known := auths.get(name)) and isinstance(known, dict) and known.get("auth"):
            return str(known["auth"])
    return None
