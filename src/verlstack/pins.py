"""Read `constraints/stacks.toml`, the one file in which people choose versions."""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from verlstack import canonical, inherit, plan, reading, verltags
from verlstack.errors import PinsError, StorageError, UsageError
from verlstack.extension import pin
from verlstack.layer import Compression
from verlstack.schema import BadValueError, Table

if TYPE_CHECKING:
    from pathlib import Path

    from verlstack.extension.pin import Extension

FORMAT = 2  # the image format this code writes
_STACK_KEYS = (
    *("title", "python", "cuda", "platform", "registry_base", "requires", "verl", "build_tools", "environment"),
    *("flash_attn", "dockerfile", "leave_out", "cannot"),
)


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
        commit: the commit which that tag must name; None where nobody has seen it: then only the sdist is used.
        sdist: file name of the release sdist of the same tag on the package index.
        sdist_sha256: its hash.
        strip: paths removed from the source before it is built.
    """

    tag: str
    commit: str | None
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
    """One set of pins, with what all stacks share folded in.

    Attributes:
        leave_out: (package, glob in site-packages) of files of wheels that the image does not get.
    """

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
    flash_attn: Extension | None
    dockerfile: tuple[tuple[str, str], ...]
    leave_out: tuple[tuple[str, str], ...]
    debian_packages: tuple[str, ...]
    heavy_bytes: int
    groups: tuple[Group, ...]
    epoch: int
    compression: Compression
    fast_level: int

    @property
    def checksum(self) -> str:
        """SHA-256 over everything that decides the image.

        Comments, reasons, places to look and what the Dockerfile stands on do not count.
        """
        compiled = self.flash_attn and self.flash_attn.anywhere
        counts = dataclasses.replace(self, flash_attn=compiled, dockerfile=())
        facts = {field.name: getattr(counts, field.name) for field in dataclasses.fields(counts)}
        if not self.leave_out:
            del facts["leave_out"]  # the locks of stacks without it are older than this key
        return canonical.digest(facts)

    def tag(self, *, without: Extension | None = None) -> str:
        """Name of the image: the stack, and what it lacks."""
        return f"{self.name}-{without.without}" if without else self.name


def load(path: Path, name: str) -> Stack:
    """The stack called `name` in the file `path`.

    Raises:
        UsageError: no such stack; the message names the nearest.
        PinsError: the file is not TOML, or a value is missing, of the wrong type or form, or without its reason.
        StorageError: the file cannot be read.
    """
    document = _read(path)
    try:
        stacks = _stacks(document)
        if name in stacks.values:
            return _stack(name, inherit.whole(stacks, name), document)
    except BadValueError as bad:
        where = f"{path}, [stack.{name}]"
        raise PinsError(str(bad), where=where, todo="mend the pins; stack cu121 is an example") from None
    near = difflib.get_close_matches(name, stacks.values, n=1)
    raise UsageError(
        f"there is no stack {name!r}; known: {', '.join(sorted(stacks.values)) or 'none'}",
        where=str(path),
        todo=f"did you mean {near[0]!r}?" if near else f"add [stack.{name}] there, or name one of these",
    )


def names(path: Path) -> tuple[str, ...]:
    """Names of all stacks in the file, sorted; there is one at least.

    Raises:
        PinsError, StorageError: as `load`; or there is no stack.
    """
    try:
        found = tuple(sorted(_stacks(_read(path)).values))
    except BadValueError as bad:
        raise PinsError(str(bad), where=str(path), todo="mend the pins") from None
    if not found:
        raise PinsError("the pins name no stack", where=str(path), todo="add [stack.NAME]")
    return found


def cannot(path: Path, name: str) -> dict[str, str]:
    """What a stack is declared not to be able to do, each with its reason; no part of the image.

    Raises:
        UsageError, PinsError, StorageError: as `load`.
    """
    load(path, name)  # tells better than we could what is wrong with the name
    try:
        own = _stacks(_read(path)).table(name)
        return {one: own.table("cannot").text(one) for one in own.reasons("cannot")}
    except BadValueError as bad:
        raise PinsError(str(bad), where=f"{path}, [stack.{name}]", todo='mend it: NAME = "the reason"') from None


def _read(path: Path) -> Table:
    try:
        return Table(tomllib.loads(reading.text(path)), path.name)
    except FileNotFoundError as e:
        raise PinsError(
            "there is no pins file", where=str(path), todo="run in a checkout, or pass --constraints"
        ) from e
    except OSError as e:
        raise StorageError(
            f"cannot read the pins: {e.strerror}", where=str(path), todo="check the path, and that you may read it"
        ) from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as e:
        raise PinsError(f"the pins are not TOML: {e}", where=str(path)) from e


def _stacks(document: Table) -> Table:
    stacks = document.table("stack", required=False)
    for name in stacks.values:
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):  # it becomes a file name and a tag
            raise BadValueError(f"{name!r} is no name for a stack: lower case letters, digits, dots and hyphens")
    return stacks


def _requirements(table: Table, key: str) -> tuple[str, ...]:
    found: dict[str, str] = {}
    for name, bound in table.reasoned(key, "bound").items():
        try:
            requirement = Requirement(f"{name}{bound}")
            SpecifierSet(bound.partition("@")[0])  # `1.26.4` without `==` would become part of the name
        except (InvalidRequirement, InvalidSpecifier) as e:
            raise BadValueError(f"{key}: {name}{bound} is no requirement: {e}") from None
        if requirement.url:
            raise BadValueError(f"{key}.{name} names an address; files come from the configured index, by hash")
        if found.setdefault(canonicalize_name(requirement.name), str(requirement)) != str(requirement):
            raise BadValueError(f"{key} bounds {requirement.name} twice")
    if not found:
        raise BadValueError(f"{key} is empty")
    return tuple(sorted(found.values()))


def _compression(table: Table) -> Compression:
    table.only("level", "window_log", "long_distance", "library", "fast_level")
    return Compression(
        level=table.integer("level", -7, 19),  # above 19 zstd needs --ultra and gigabytes
        window_log=table.integer("window_log", 10, 27),  # more than 27 a plain `zstd -d` refuses
        long_distance=table.get("long_distance", bool),
        library=table.text("library"),
    )


def _verl(table: Table) -> Verl:
    table.only("tag", "commit", "repository", "sdist", "sdist_sha256", "strip", "why")
    table.text("why")
    for path in table.texts("strip"):
        if any(part in {"", ".", ".."} for part in path.split("/")):
            raise BadValueError(f"strip: {path!r} must be a path inside the source")
    tag = table.text("tag")
    if tag not in verltags.known():
        near = " and ".join(verltags.nearest(tag))
        raise BadValueError(f"verl has no tag {tag}; the nearest real ones are {near}")
    return Verl(
        tag=tag,
        commit=table.optional("commit", r"[0-9a-f]{40}", "40 hexadecimal digits"),
        repository=table.text("repository", r"[a-z+]+://[^\s@]+", "an address without user and password"),
        sdist=table.text("sdist", r"[A-Za-z0-9][^/\s]*", "a file name"),
        sdist_sha256=table.text("sdist_sha256", r"[0-9a-f]{64}", "64 hexadecimal digits"),
        strip=table.texts("strip"),
    )


def _flash_attn(table: Table, stack: str) -> Extension | None:
    if "flash_attn" not in table.values:
        return None
    own = table.table("flash_attn")
    tools = _requirements(own, "build_tools")
    # An image without it computes attention with torch's own scaled_dot_product_attention.
    found = pin.read(own, project="flash-attn", without="sdpa", build_tools=tools)
    if found.wheel and found.without in stack.split("-"):
        raise BadValueError(f"a stack called {stack} is one without flash-attn, and pins a compiled wheel of it")
    return found


def _dockerfile(table: Table) -> tuple[tuple[str, str], ...]:
    """Images that the Dockerfile stands on, by name of context: `os`, and `cuda` where something is compiled."""
    own = table.table("dockerfile", required=False)
    own.only("os", "cuda")
    images = own.values and table.reasoned("dockerfile", "image")
    for name, image in images.items():
        if not re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", image):
            raise BadValueError(f"dockerfile.{name} = {image!r} has no digest; a tag can move")
    return tuple(sorted(images.items()))


def _leave_out(table: Table) -> tuple[tuple[str, str], ...]:
    found = []
    for place in table.reasons("leave_out"):
        package, _, path = place.partition("/")
        if (
            package != canonicalize_name(package)
            or not path
            or any(part in {"", ".", ".."} for part in path.split("/"))
            or not path.isprintable()  # a line of its own in the Dockerfile's argument would be installed
        ):
            raise BadValueError(f"leave_out.{place!r} must be package/path, the path as in site-packages")
        found.append((package, path))
    return tuple(found)


def _groups(layers: Table) -> tuple[Group, ...]:
    found = []
    for values in layers.get("group", list, []):
        group = Table(values, "layers.group")
        group.only("name", "packages", "why")
        group.text("why")
        found.append(Group(name=group.text("name"), packages=group.texts("packages")))
    if len({group.name for group in found}) != len(found):
        raise BadValueError("two layer groups have the same name")
    return tuple(found)


def _stack(name: str, table: Table, document: Table) -> Stack:
    document.only("image", "layers", "debian", "stack")
    table.only(*_STACK_KEYS)
    image, layers = document.table("image"), document.table("layers")
    image.only("format", "epoch", "compression", "environment")
    layers.only("heavy_bytes", "group")
    if image.get("format", int) != FORMAT:
        raise BadValueError(f"image.format = {image.values['format']}, but this verlstack writes format {FORMAT}")
    base = table.values.get("registry_base")
    if base is not None and not re.search(r"@sha256:[0-9a-f]{64}$", str(base)):
        raise BadValueError(f"registry_base = {base!r} has no digest; a tag can move")
    environment = image.reasoned("environment", "value") | table.reasoned("environment", "value")
    debian = document.table("debian", required=False)
    return Stack(
        name=name,
        title=table.text("title"),
        python=table.text("python", r"3\.\d+", "of the form 3.10"),
        cuda=table.text("cuda"),
        platform=table.text("platform", plan.PLATFORM, "of the form x86_64-manylinux_2_35"),
        registry_base=base,
        requires=_requirements(table, "requires"),
        build_tools=_requirements(table, "build_tools"),
        verl=_verl(table.table("verl")),
        environment=tuple(sorted(environment.items())),
        flash_attn=_flash_attn(table, name),
        dockerfile=_dockerfile(table),
        leave_out=_leave_out(table),
        debian_packages=debian.reasons("packages"),
        heavy_bytes=layers.integer("heavy_bytes", 1, 10**12),
        groups=_groups(layers),
        epoch=image.integer("epoch", 0, 8**11 - 1),  # what a ustar header can hold
        compression=_compression(image.table("compression")),
        fast_level=image.table("compression").integer("fast_level", -7, 19),
    )
