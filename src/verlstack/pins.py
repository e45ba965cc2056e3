"""Read `constraints/stacks.toml`, the one file in which people choose versions."""

from __future__ import annotations

import difflib
import hashlib
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement

from verlstack import canonical, verltags
from verlstack.errors import PinsError, StorageError, UsageError
from verlstack.layer import Compression

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT = 1  # the image format this code writes


@dataclass(frozen=True, kw_only=True)
class Group:
    """A named layer for small packages: the first group with a matching glob takes a package."""

    name: str
    packages: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Verl:
    """The verl release of a stack.

    Attributes:
        tag: tag in `repository`.
        commit: the commit which that tag must name.
        sdist: file name of the release sdist of the same tag on the package index.
        sdist_sha256: its hash.
        strip: paths removed from the source before it is built.
    """

    tag: str
    commit: str
    repository: str
    sdist: str
    sdist_sha256: str
    strip: tuple[str, ...]

    @property
    def version(self) -> str:
        """Version as PEP 440 writes it."""
        return self.tag.removeprefix("v")


@dataclass(frozen=True, kw_only=True)
class Stack:
    """One set of pins, with what all stacks share folded in."""

    name: str
    title: str
    python: str
    cuda: str
    platform: str
    registry_base: str | None
    requires: tuple[str, ...]
    build_tools: tuple[str, ...]
    verl: Verl
    environment: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...]
    debian_packages: tuple[str, ...]
    heavy_bytes: int
    groups: tuple[Group, ...]
    epoch: int
    compression: Compression
    fast_level: int

    @property
    def checksum(self) -> str:
        """SHA-256 over everything that decides the image; comments and reasons do not count."""
        return hashlib.sha256(canonical.dumps(self)).hexdigest()

    @property
    def tag(self) -> str:
        """Name of the image: the stack, and what it lacks."""
        return f"{self.name}-sdpa" if "flash-attn" in self.left_out else self.name


def load(path: Path, name: str) -> Stack:
    """The stack called `name` in the file `path`.

    Raises:
        UsageError: no such stack; the message names the nearest.
        PinsError: the file is not TOML, or a value is missing, of the wrong type or without its reason.
        StorageError: the file cannot be read.
    """
    table = _read(path)
    stacks = table.get("stack", {})
    if name not in stacks:
        known = ", ".join(sorted(stacks)) or "none"
        near = difflib.get_close_matches(name, stacks, n=1)
        raise UsageError(
            f"there is no stack {name!r}; known: {known}",
            where=str(path),
            todo=f"did you mean {near[0]!r}?" if near else f"add [stack.{name}] there, or name one of these",
        )
    try:
        return _stack(name, stacks[name], table)
    except _Bad as bad:
        raise PinsError(
            str(bad), where=f"{path}, [stack.{name}]", todo="mend the pins; STACK cu121 is an example"
        ) from None


def names(path: Path) -> tuple[str, ...]:
    """Names of all stacks in the file, sorted."""
    return tuple(sorted(_read(path).get("stack", {})))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as e:
        raise PinsError(
            "there is no pins file", where=str(path), todo="run in a checkout, or pass --constraints"
        ) from e
    except OSError as e:
        raise StorageError(f"cannot read the pins: {e.strerror}", where=str(path)) from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise PinsError(f"the pins are not TOML: {e}", where=str(path)) from e


class _Bad(Exception):  # noqa: N818 - turned into a PinsError one frame up
    pass


def _get(table: Mapping[str, Any], key: str, kind: type, default: Any = None) -> Any:
    value = table.get(key, default)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _Bad(
            f"{key} must be given as {kind.__name__}" if value is None else f"{key} = {value!r} is no {kind.__name__}"
        )
    return value


def _reasoned(table: Mapping[str, Any], key: str, field: str) -> dict[str, str]:
    """A table NAME = { `field` = "…", why = "…" } as {NAME: field}; a missing reason is an error."""
    found = {}
    for name, value in _get(table, key, dict, {}).items():
        if not isinstance(value, dict) or not isinstance(value.get(field), str) or not value.get("why"):
            raise _Bad(f'{key}.{name} must be {{ {field} = "…", why = "…" }}: every choice carries its reason')
        found[name] = value[field]
    return found


def _requirements(table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    lines = []
    for name, bound in _reasoned(table, key, "bound").items():
        try:
            lines.append(str(Requirement(f"{name}{bound}")))
        except InvalidRequirement as e:
            raise _Bad(f"{key}: {name}{bound} is no requirement: {e}") from None
    if not lines:
        raise _Bad(f"{key} is empty")
    return tuple(sorted(lines))


def _strings(table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = _get(table, key, list, [])
    if not all(isinstance(v, str) for v in values):
        raise _Bad(f"{key} must be a list of strings")
    return tuple(values)


def _compression(table: Mapping[str, Any]) -> Compression:
    return Compression(
        level=_get(table, "level", int),
        window_log=_get(table, "window_log", int),
        long_distance=_get(table, "long_distance", bool),
        library=_get(table, "library", str),
    )


def _verl(table: Mapping[str, Any]) -> Verl:
    texts = {key: _get(table, key, str) for key in ("tag", "commit", "repository", "sdist", "sdist_sha256")}
    if len(texts["sdist_sha256"]) != 64 or len(texts["commit"]) != 40:
        raise _Bad("verl.sdist_sha256 has 64 hexadecimal digits and verl.commit 40")
    if texts["tag"] not in verltags.known():
        near = " and ".join(verltags.nearest(texts["tag"]))
        raise _Bad(f"verl has no tag {texts['tag']}; the nearest real ones are {near}")
    return Verl(**texts, strip=_strings(table, "strip"))


def _stack(name: str, table: Mapping[str, Any], shared: Mapping[str, Any]) -> Stack:
    image, layers = _get(shared, "image", dict), _get(shared, "layers", dict)
    if _get(image, "format", int) != FORMAT:
        raise _Bad(f"image.format = {image['format']}, but this verlstack writes format {FORMAT}")
    compression = _get(image, "compression", dict)
    base = table.get("registry_base")
    if base is not None and "@sha256:" not in str(base):
        raise _Bad(f"registry_base = {base!r} has no digest; a tag can move")
    return Stack(
        name=name,
        title=_get(table, "title", str),
        python=_get(table, "python", str),
        cuda=_get(table, "cuda", str),
        platform=_get(table, "platform", str),
        registry_base=base,
        requires=_requirements(table, "requires"),
        build_tools=_requirements(table, "build_tools"),
        verl=_verl(_get(table, "verl", dict)),
        environment=tuple(
            sorted((_reasoned(image, "environment", "value") | _reasoned(table, "environment", "value")).items())
        ),
        left_out=tuple(sorted(_get(table, "left_out", dict, {}))),
        debian_packages=tuple(sorted(_get(_get(shared, "debian", dict, {}), "packages", dict, {}))),
        heavy_bytes=_get(layers, "heavy_bytes", int),
        groups=tuple(
            Group(name=_get(g, "name", str), packages=_strings(g, "packages")) for g in _get(layers, "group", list, [])
        ),
        epoch=_get(image, "epoch", int),
        compression=_compression(compression),
        fast_level=_get(compression, "fast_level", int),
    )
