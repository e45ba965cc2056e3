"""Pins as a file gives them: do they resolve, to what, and is anything among it known to break."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import re
from typing import TYPE_CHECKING

from packaging.version import Version

from verlstack import closure
from verlstack.check import knowledge, releases
from verlstack.check.asked import pinned
from verlstack.check.finding import FAIL, WARN
from verlstack.errors import FetchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from verlstack.check.against import Against
    from verlstack.check.answers import Answer, Asker
    from verlstack.check.asked import Asked, Line
    from verlstack.check.finding import Finding

_CAPPED = {"<", "<=", "==", "~="}  # operators that bound from above


def check(asked: Asked, against: Against, asker: Asker) -> list[Finding]:
    """Everything that is wrong with the pins of a file."""
    found = [*asked.findings, *_index(asked, against)]
    against = dataclasses.replace(against, python=asked.python or against.python)
    lines = [line for line in asked.lines if closure.applies(line.requirement, against.python)]
    asked = dataclasses.replace(asked, lines=lines)
    compiled = knowledge.table("rules")["compiled"]
    versions = _newest(asked, compiled) | asked.exact
    if "torch" in versions:
        found += releases.torch_cuda(versions["torch"], against.cuda, asked.where("torch"), asked.cuda)
    asked_lines = [line for line in asked.lines if line.name not in compiled]
    if asked_lines:
        try:
            answer = _ask(asked_lines, against, asker)
        except FetchError as e:
            found.append(unasked(e))
        else:
            found += _conflict(asked, answer)
            found += yanked(answer.yanked, asked)
            found += _sdists(answer, asked)
            resolved = {name: Version(version) for name, version in answer.versions.items()}
            if not answer.conflict:
                found += _backtracked(asked_lines, answer, against, asker)
            versions = resolved | versions
    if "verl" in versions and not asked.verl_tag:
        found += releases.verl(f"v{versions['verl']}", asked.where("verl"))[1]
    if asked.verl_tag:
        version, wrong = releases.verl(*asked.verl_tag)
        found += wrong
        if version and not wrong:
            versions["verl"] = version
    return found + list(_troubles(asked, versions, against))


def _index(asked: Asked, against: Against) -> Iterator[Finding]:
    """An index of PyTorch's that is named for another CUDA."""
    address, where = asked.index or ("", "")
    match = releases.INDEX_CUDA.search(address)
    if match and match["major"] != against.cuda.partition(".")[0]:
        measured, right = f"torch for {match['build']}", f"CUDA {against.cuda}, as the stack"
        yield knowledge.finding("INDEX-CUDA", subject="--index-url", measured=measured, right=right, where=where)


def _newest(asked: Asked, known: Mapping[str, Sequence[str]]) -> dict[str, Version]:
    """The release that an open bound takes of a package that no resolver is asked for: the newest that it allows."""
    found = {}
    for name, listed in known.items():
        bounds = [line.requirement.specifier for line in asked.lines if line.name == name]
        fitting = [Version(one) for one in listed if all(bound.contains(one) for bound in bounds)]
        if bounds and fitting:
            found[name] = max(fitting)
    return found


def unasked(e: FetchError) -> Finding:
    """The index did not answer."""
    return knowledge.finding(
        "INDEX-UNASKED", subject="the package index", measured=e.what, **({"fix": e.todo} if e.todo else {})
    )


def _ask(lines: Sequence[Line], against: Against, asker: Asker) -> Answer:
    """The releases that satisfy all lines; a local version is of another index, what is public is asked for."""
    return asker.ask([_public(line) for line in lines], python=against.python, platform=against.platform)


def _public(line: Line) -> str:
    version = pinned(line.requirement)
    if version and version.local:
        return str(line.requirement).replace(str(version), version.public)
    return str(line.requirement)


def _conflict(asked: Asked, answer: Answer) -> Iterator[Finding]:
    if answer.conflict:
        named = [
            line for line in asked.lines if re.search(rf"(?<![\w.-]){re.escape(line.name)}(?![\w.-])", answer.conflict)
        ]
        subject = ", ".join(dict.fromkeys(line.name for line in named)) or "the pins"
        where = named[-1].where if named else ""
        yield knowledge.finding("PINS-CONFLICT", subject=subject, measured=answer.conflict, where=where)


def yanked(found: dict[str, str], asked: Asked | None = None) -> Iterator[Finding]:
    """A finding for each yanked release."""
    for release, reason in found.items():
        where = asked.where(release.partition("==")[0]) if asked else ""
        yield knowledge.finding(
            "PINS-YANKED", subject=release, measured=f"yanked: {reason or 'no reason given'}", where=where
        )


def _sdists(answer: Answer, asked: Asked) -> Iterator[Finding]:
    for name in answer.sdists:
        measured = "the index has no wheel of it for this Python and platform"
        yield knowledge.finding(
            "PINS-SDIST", subject=f"{name} {answer.versions[name]}", measured=measured, where=asked.where(name)
        )


def _backtracked(lines: Sequence[Line], answer: Answer, against: Against, asker: Asker) -> Iterator[Finding]:
    """Open bounds that were answered with a release much older than the newest that they allow."""
    still = [line for line in lines if pinned(line.requirement) is None and line.name in answer.versions]
    if not still:
        return
    try:
        alone = asker.ask(
            [str(x.requirement) for x in still], python=against.python, platform=against.platform, deep=False
        )
    except FetchError as e:
        yield unasked(e)
        return
    for line in still:
        chosen, newest = answer.versions[line.name], alone.versions.get(line.name)
        if newest is None or Version(chosen) >= Version(newest):
            continue
        severity = _severity(line, answer, alone)
        if severity:
            yield knowledge.finding(
                "PINS-BACKTRACK",
                subject=str(line.requirement),
                measured=f"with the other pins, the resolver takes {line.name} {chosen}{_day(answer, line.name)}",
                right=f"alone it takes {line.name} {newest}{_day(alone, line.name)}, which contradicts another pin",
                where=line.where,
                severity=severity,
            )


def _severity(line: Line, answer: Answer, alone: Answer) -> str | None:
    """How bad an older release is: by its date, or, where the index tells none, by the bound that names another."""
    older = _days_older(line, answer, alone)
    if older is not None:
        return FAIL if older > knowledge.table("rules")["backtrack"]["days"] else None
    chosen, newest = Version(answer.versions[line.name]), Version(alone.versions[line.name])
    return WARN if _is_capped(line) and chosen.release[:2] != newest.release[:2] else None


def _is_capped(line: Line) -> bool:
    return any(one.operator in _CAPPED for one in line.requirement.specifier)


def _day(answer: Answer, name: str) -> str:
    return f" of {answer.dates[name]}" if name in answer.dates else ""


def _days_older(line: Line, answer: Answer, alone: Answer) -> int | None:
    """By how much what was chosen is too old; None where the index tells no dates.

    A bound from above names a time: what it allows at most is what was meant. Without one, the anchors tell the time.
    """
    dates = {name: datetime.date.fromisoformat(day) for name, day in answer.dates.items()}
    if line.name not in dates:
        return None
    meant = [dates[name] for name in knowledge.table("rules")["backtrack"]["anchors"] if name in dates]
    if _is_capped(line) and line.name in alone.dates:
        meant.append(datetime.date.fromisoformat(alone.dates[line.name]))
    return max(((day - dates[line.name]).days for day in meant), default=0)


def _troubles(asked: Asked, versions: dict[str, Version], against: Against) -> Iterator[Finding]:
    """Known troubles among the file's releases, and between them and the stack's, whose own limits are its own."""
    where = functools.partial(_where, asked=asked)
    named = {line.name for line in asked.lines} | ({"verl"} if asked.verl_tag else set())
    for one in releases.troubles(versions, frozenset(versions), where):
        if one.severity == FAIL or one.subject.partition(" ")[0] in named:
            yield one  # of what a resolver adds, only what breaks is worth a word
    for one in releases.troubles(against.near(versions), frozenset(named & versions.keys()), where):
        if one.severity == FAIL:
            yield one


def _where(name: str, asked: Asked) -> str:
    if name == "verl" and asked.verl_tag:
        return asked.verl_tag[1]
    return asked.where(name)
