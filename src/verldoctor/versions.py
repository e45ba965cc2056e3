"""Says what holds on a stack: which release brought a name, which rules apply to its pins; both are data in tables/."""

from __future__ import annotations

import json
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verldoctor.context import CU121

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packaging.version import Version

_TABLES = Path(__file__).with_name("tables")


@cache
def table(name: str) -> dict[str, Any]:
    """The data file tables/`name`.json."""
    loaded: dict[str, Any] = json.loads((_TABLES / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


@lru_cache(maxsize=256)
def release(text: str) -> Version | None:
    """`text` as a version without its local part (`2.3.1+cu121` is 2.3.1); None if it is none."""
    from packaging.version import InvalidVersion, Version  # noqa: PLC0415 - 10 ms that other checks need not pay

    try:
        return Version(text.partition("+")[0])
    except InvalidVersion:
        return None


@lru_cache(maxsize=256)
def _within(version: Version, bounds: tuple[str, ...]) -> bool:
    """Whether `version` satisfies at least one of the specifiers."""
    from packaging.specifiers import SpecifierSet  # noqa: PLC0415 - see release

    return any(SpecifierSet(bound).contains(version, prereleases=True) for bound in bounds)


def at_least(package: str, version: str, stack: Mapping[str, str]) -> bool:
    """Whether the stack's `package` is `version` or later; the default stack's where none is told or can be read."""
    mine, other = release(stack.get(package, "").removeprefix("v")) or release(CU121[package]), release(version)
    return mine is not None and other is not None and mine >= other


def applies(code: str, stack: Mapping[str, str]) -> bool:
    """Whether rule `code` was shown to hold for these pins; one without bounds in tables/limits.json always does.

    A package that the stack does not have, or whose version cannot be read, leaves the rule out: nothing is said that
    nobody has shown.
    """
    bounds = table("limits")["rules"].get(code, {})
    versions = {package: release(stack.get(package, "")) for package in bounds}
    return all(
        version is not None and _within(version, tuple(bounds[package])) for package, version in versions.items()
    )


def brought_by(list_name: str, name: str) -> str | None:
    """The transformers release that brought `name` to a list of tables/transformers.json.

    Returns:
        A version; "0" if it is older than all releases that were looked at; None if no such release has it.
    """
    value: str | None = table("transformers")[list_name].get(name)
    return value


def has(list_name: str, name: str, stack: Mapping[str, str]) -> bool | None:
    """Whether the stack's transformers has `name`; None if that cannot be told from its version."""
    mine, first = release(stack.get("transformers", "")), brought_by(list_name, name)
    if mine is None or (first is None and mine > _newest()):
        return None
    if first is None:
        return False
    since = release(first)
    return since is not None and mine >= since


def _newest() -> Version:
    """The newest transformers release that the tables were read from."""
    newest = release(table("limits")["newest_transformers"])
    if newest is None:  # our own file: a test keeps it right
        raise ValueError("tables/limits.json: newest_transformers is no version")
    return newest
