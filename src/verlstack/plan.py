"""Which packages share a layer, in which order, and which wheels a stack's interpreter accepts: pure, no I/O."""

from __future__ import annotations

import fnmatch
import re
from functools import cache
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name

from verlstack.errors import PinsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from verlstack.pins import Group, Stack

# PEP 600 keeps the older names for three glibc versions.
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
PLATFORM = r"(?P<arch>\w+)-manylinux_2_(?P<glibc>\d+)"  # uv's name for it
VERL_LAYER = "verl"
SMOKE_LAYER = "smoke"


@cache
def tags(python: str, platform: str) -> tuple[Tag, ...]:
    """Wheel tags that CPython `python` on `platform` accepts, best first.

    Args:
        python: X.Y.
        platform: uv's name for it, `x86_64-manylinux_2_35`: architecture and the newest glibc to count on.

    Raises:
        PinsError: `platform` is of another form.
    """
    match = re.fullmatch(PLATFORM, platform)
    if not match or not re.fullmatch(r"3\.\d+", python):
        raise PinsError(
            f"python = {python!r} on platform = {platform!r} is not of the form 3.10 on x86_64-manylinux_2_35"
        )
    platforms = []
    for glibc in range(int(match["glibc"]), 4, -1):
        platforms.append(f"manylinux_2_{glibc}_{match['arch']}")
        if glibc in _LEGACY:
            platforms.append(f"{_LEGACY[glibc]}_{match['arch']}")
    platforms.append(f"linux_{match['arch']}")
    version = tuple(int(part) for part in python.split("."))
    return (
        *cpython_tags(version, platforms=platforms),
        *compatible_tags(version, interpreter=f"cp{version[0]}{version[1]}", platforms=platforms),
    )


def layers(stack: Stack, sizes: Mapping[str, int]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The wheel layers of a stack, bottom first: (name, packages), every package once.

    A package named under `requires` has its own layer, so that bumping a pin changes one layer; so has a heavy one. The
    rest goes to the first group that matches. Largest layers come first: they change least, and pulls start with them.

    Args:
        stack: the pins.
        sizes: bytes of each package's wheel, by canonical name; verl is not among them.
    """
    own = {canonicalize_name(Requirement(line).name) for line in stack.requires}
    alone = {p for p in sizes if p in own or sizes[p] >= stack.heavy_bytes}
    if taken := sorted({group.name for group in stack.groups} & {*alone, VERL_LAYER, SMOKE_LAYER}):
        raise PinsError(f"a layer group and another layer are both called {taken[0]}", todo="rename the group")
    grouped: dict[str, list[str]] = {group.name: [] for group in stack.groups}
    for package in sorted(set(sizes) - alone):
        grouped[_group(package, stack.groups, stack.name)].append(package)
    found: list[tuple[str, tuple[str, ...]]] = [(package, (package,)) for package in alone]
    found += [(name, tuple(members)) for name, members in grouped.items() if members]
    return tuple(sorted(found, key=lambda layer: (-sum(sizes[p] for p in layer[1]), layer[0])))


def _group(package: str, groups: Iterable[Group], stack: str) -> str:
    for group in groups:
        if any(fnmatch.fnmatchcase(package, glob) for glob in group.packages):
            return group.name
    raise PinsError(
        f"no layer group takes {package}",
        where=f"stacks.toml, stack {stack}",
        todo='end the groups with one that takes "*"',
    )
