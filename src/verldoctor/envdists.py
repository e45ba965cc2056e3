"""Rules on installed distributions: the stack's pins, one of each, nothing in front of them, pairs that do not work."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verldoctor.context import pins_of
from verldoctor.finding import Finding, found
from verldoctor.installed import Distribution, normal
from verldoctor.text import safe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_TABLE = Path(__file__).with_name("tables") / "packages.json"
_NO_PACKAGE = ("name", "cuda", "python")  # keys of the pins that are no distributions


@lru_cache(maxsize=1)
def table() -> dict[str, Any]:
    """Pairs that do not work together, and the simulators."""
    loaded: dict[str, Any] = json.loads(_TABLE.read_text(encoding="utf-8"))
    return loaded


def first_of(dists: Iterable[Distribution]) -> dict[str, Distribution]:
    """The distribution of each name that an import would take."""
    taken: dict[str, Distribution] = {}
    for dist in dists:
        taken.setdefault(dist.name, dist)
    return taken


def judge(dists: list[Distribution], labels: Mapping[str, str]) -> Iterator[Finding]:
    """Findings on what is installed."""
    yield from _twice(dists)
    yield from _pins(first_of(dists), labels)
    versions = {name: dist.version for name, dist in first_of(dists).items()}
    yield from judge_versions(versions, "")


def judge_versions(versions: Mapping[str, str], subject: str) -> Iterator[Finding]:
    """Findings on a set of versions by normalised name, installed or only listed; a version may be ""."""
    yield from _pairs(versions, subject)
    for name in table()["simulators"].split():
        if name in versions:
            yield found("env", "ENV-SIMULATOR", f"{subject}: {name}" if subject else name, name=name)


def _twice(dists: list[Distribution]) -> Iterator[Finding]:
    by_name: dict[str, list[Distribution]] = {}
    for dist in dists:
        by_name.setdefault(dist.name, []).append(dist)
    for name, copies in by_name.items():
        same = [dist for dist in copies if dist.place == copies[0].place]
        if len(same) > 1:
            measured = safe(", ".join(dist.folder for dist in same))
            yield found("env", "ENV-TWICE", name, measured=measured, right=safe(same[-1].version, 40))
        others = [dist for dist in copies if dist.place != copies[0].place and dist.version != copies[0].version]
        if others:
            yield _shadow(copies[0], others[0])


def _shadow(front: Distribution, behind: Distribution) -> Finding:
    user = ".local" in front.place.parts
    remedy = "export PYTHONNOUSERSITE=1" if user else f"take {safe(front.place, 120)} off PYTHONPATH"
    right = f"{safe(behind.version, 40)} in {safe(behind.place, 120)}"
    words = {"place": safe(front.place, 120), "remedy": remedy}
    return found("env", "ENV-SHADOW", front.name, measured=safe(front.version, 40), right=right, **words)


def _pins(taken: Mapping[str, Distribution], labels: Mapping[str, str]) -> Iterator[Finding]:
    left_out = {normal(name) for name in labels.get("dev.verlstack.left-out", "").split()}
    for name, pin in pins_of(labels).items():
        if name in _NO_PACKAGE or name in left_out:
            continue
        if name not in taken:
            yield found("env", "ENV-MISSING", name, measured="absent", right=safe(pin, 40))
        elif _public(taken[name].version) != _public(pin):
            yield found("env", "ENV-PIN", name, measured=safe(taken[name].version, 40), right=safe(pin, 40))


def _public(version: str) -> str:
    return version.partition("+")[0]  # the index's torch is 2.3.1 by its metadata and 2.3.1+cu121 by its own word


def _pairs(versions: Mapping[str, str], subject: str) -> Iterator[Finding]:
    from packaging.specifiers import SpecifierSet  # noqa: PLC0415 - 20 ms, needed here only

    for code, name, bad, other, when, right, error in table()["pairs"]:
        pair = [_public(versions.get(key, "")) for key in (name, other)]
        if all(pair) and _in(pair[0], SpecifierSet(bad)) and _in(pair[1], SpecifierSet(when)):
            where = f"{subject}: {name}" if subject else name
            words = {"measured": safe(pair[0], 40), "other": f"{other} {safe(pair[1], 40)}", "right": right}
            yield found("env", code, where, error=error, name=name, **words)


def _in(version: str, bounds: Any) -> bool:
    from packaging.version import InvalidVersion  # noqa: PLC0415 - as above

    try:
        return bool(bounds.contains(version, prereleases=True))
    except InvalidVersion:
        return False
