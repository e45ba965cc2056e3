"""Ask uv which versions satisfy the pins, and choose one file for each: the only step that looks at versions."""

from __future__ import annotations

import sys
import tomllib
import urllib.parse
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from verlstack import shell
from verlstack.download import Artifact
from verlstack.errors import FetchError, PinsError
from verlstack.web import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from packaging.tags import Tag

UV = Path(sys.executable).with_name("uv")
_NETWORK = ("error sending request", "Failed to fetch", "dns error", "Connection refused", "client error", "timed out")


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """One file per package: a wheel where there is one for the platform, else the sdist."""

    wheels: tuple[Artifact, ...]
    sdists: tuple[Artifact, ...]


def resolve(
    requirements: Sequence[str],
    *,
    python: str,
    platform: str,
    tags: Sequence[Tag],
    env: Mapping[str, str],
    where: str,
    run: Callable[..., shell.Result] = shell.run,
) -> Resolution:
    """Resolve requirements to exact files.

    Args:
        requirements: PEP 508 lines.
        python: X.Y of the stack.
        platform: uv's name of the stack's platform.
        tags: accepted wheel tags, best first.
        env: environment for uv; carries the index and its credentials, which must not reach argv.
        where: the file whose pins these are, for messages.
        run: the program runner.

    Raises:
        PinsError: the requirements contradict each other or name what does not exist; uv's own words are passed on.
        FetchError: the index cannot be reached.
    """
    command = [UV, "pip", "compile", "-", "--python-version", python, "--python-platform", platform]
    command += [
        "--format",
        "pylock.toml",
        "--no-header",
        "--no-annotate",
        "--quiet",
        "--no-config",
        "--no-python-downloads",
    ]
    done = run(command, env=env, stdin="\n".join(requirements) + "\n")
    if done.returncode:
        if any(sign in done.stderr for sign in _NETWORK):
            raise FetchError(
                f"the package index cannot be reached:\n{redact(done.tail)}",
                todo="check the network, or set UV_DEFAULT_INDEX or pip's index-url to your mirror",
            )
        raise PinsError(
            f"the pins do not resolve:\n{redact(done.tail)}", where=where, todo="change one of the pins named above"
        )
    packages = tomllib.loads(done.stdout)["packages"]
    chosen = [_choose(package, {tag: rank for rank, tag in enumerate(tags)}) for package in packages]
    return Resolution(
        wheels=tuple(a for a in chosen if a.filename.endswith(".whl")),
        sdists=tuple(a for a in chosen if not a.filename.endswith(".whl")),
    )


def _choose(package: dict[str, Any], ranks: Mapping[Tag, int]) -> Artifact:
    """The best wheel of a pylock package (PEP 751), or its sdist."""
    best = min((w for w in package.get("wheels", []) if _fits(w, ranks)), key=partial(_preference, ranks), default=None)
    if best is None and "sdist" not in package:
        raise PinsError(
            f"{package['name']} {package['version']} has no wheel for this platform and no sdist",
            todo="pin another release of it",
        )
    file = best or package["sdist"]
    if "sha256" not in file.get("hashes", {}):
        raise FetchError(f"the index lists {_filename(file)} without a sha256", todo="use an index that lists hashes")
    return Artifact(
        project=canonicalize_name(package["name"]),
        version=package["version"],
        filename=_filename(file),
        sha256=file["hashes"]["sha256"],
        size=file.get("size"),
    )


def _filename(file: dict[str, Any]) -> str:
    """Name of a pylock file, which may give only an address, or a path on a local index."""
    address = urllib.parse.urlsplit(file.get("url") or file.get("path", "")).path
    return str(file.get("name") or urllib.parse.unquote(address.rpartition("/")[2]))


def _fits(wheel: dict[str, Any], ranks: Mapping[Tag, int]) -> bool:
    return _rank(_filename(wheel), ranks) is not None


def _preference(ranks: Mapping[Tag, int], wheel: dict[str, Any]) -> tuple[object, ...]:
    """Best tag first, then the highest build number (PEP 427), then the name: never chance."""
    name = _filename(wheel)
    _, _, build, _ = parse_wheel_filename(name)
    number, suffix = build or (0, "")
    return _rank(name, ranks), -number, suffix, name


def _rank(filename: str, ranks: Mapping[Tag, int]) -> int | None:
    try:
        *_, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return None
    return min((ranks[tag] for tag in tags if tag in ranks), default=None)
