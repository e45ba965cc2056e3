"""Rules on installed distributions: the stack's pins, one of each, nothing in front of them, pairs that do not work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verldoctor.finding import Finding, found
from verldoctor.text import safe
from verldoctor.versions import table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from verldoctor.installed import Distribution
    from verldoctor.stackfile import Image

_FLASH = "flash-attn"


def first_of(dists: Iterable[Distribution]) -> dict[str, Distribution]:
    """The distribution of each name that an import would take."""
    taken: dict[str, Distribution] = {}
    for dist in dists:
        taken.setdefault(dist.name, dist)
    return taken


def judge(dists: list[Distribution], image: Image | None) -> Iterator[Finding]:
    """Findings on what is installed."""
    yield from _twice(dists)
    yield from _pins(first_of(dists), image.here if image else {})
    yield from _flash_attn(first_of(dists), image)
    versions = {name: dist.version for name, dist in first_of(dists).items()}
    yield from judge_versions(versions, "")


def judge_versions(versions: Mapping[str, str], subject: str) -> Iterator[Finding]:
    """Findings on a set of versions by normalised name, installed or only listed; a version may be ""."""
    yield from _pairs(versions, subject)
    for name in table("packages")["simulators"].split():
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


def _pins(taken: Mapping[str, Distribution], pins: Mapping[str, str]) -> Iterator[Finding]:
    for name, pin in pins.items():
        if name not in taken:
            yield found("env", "ENV-MISSING", safe(name, 60), measured="absent", right=safe(pin, 40))
        elif _public(taken[name].version) != _public(pin):
            yield found("env", "ENV-PIN", safe(name, 60), measured=safe(taken[name].version, 40), right=safe(pin, 40))


def _flash_attn(taken: Mapping[str, Distribution], image: Image | None) -> Iterator[Finding]:
    """Whether what verl 0.2 imports at the top of its actor, critic and SFT trainer is there."""
    verl, chosen = taken.get("verl"), image is not None and not image.problem  # left out, or its stack has no pin of it
    if _FLASH in taken or verl is None or not verl.version.startswith("0.2") or (image and _FLASH in image.here):
        return
    right = image.pins[_FLASH] if image and _FLASH in image.pins else table("packages")["flash_attn"]
    words = {"measured": "absent", "right": safe(right, 40), "verl": safe(verl.version, 40)}
    yield found("env", "ENV-FLASH-LEFT-OUT" if chosen else "ENV-FLASH-ATTN", _FLASH, **words)


def _public(version: str) -> str:
    return version.partition("+")[0]  # the index's torch is 2.3.1 by its metadata and 2.3.1+cu121 by its own word


def _pairs(versions: Mapping[str, str], subject: str) -> Iterator[Finding]:
    from packaging.specifiers import SpecifierSet  # noqa: PLC0415 - 20 ms, needed here only

    for code, name, bad, other, when, right, error in table("packages")["pairs"]:
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
