"""Finds, in scripts, guides and requirement files, names that verl never had, and says the real ones."""

from __future__ import annotations

import bisect
import re
from typing import TYPE_CHECKING

from verldoctor.finding import Finding, found
from verldoctor.installed import normal
from verldoctor.text import safe
from verldoctor.versions import table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MODULE = re.compile(r"(?<![\w.])(?:from|import|-m)\s+(verl(?:\.\w{1,80}){1,8})")
_SHOWN = 50  # findings of a file; the rest are of the same kind
_REQUIREMENT = re.compile(
    r"^[ \t]*(?:pip3?[ \t]+install[ \t]+)?['\"]?([A-Za-z0-9][\w.-]{0,100})(\[[\w,. -]{0,200}\])?"
    r"[ \t]*(?:==[ \t]*([\w.+!-]{1,60}))?",
    re.MULTILINE,
)


def judge(text: str, subject: str, stack: Mapping[str, str]) -> Iterator[Finding]:
    """Findings on the names in `text`, each with its line."""
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    told = [*_never(text, subject, starts), *_modules(text, subject, starts, stack)]
    yield from (finding for _, finding in sorted(told, key=lambda pair: pair[0])[:_SHOWN])


def _where(subject: str, starts: list[int], at: int) -> str:
    return f"{subject}:{bisect.bisect_right(starts, at)}"


def _never(text: str, subject: str, starts: list[int]) -> Iterator[tuple[int, Finding]]:
    for pattern, name, right in table("verl_names")["never"]:
        for match in re.finditer(pattern, text):
            yield (
                match.start(),
                found("env", "ENV-NAME", _where(subject, starts, match.start()), measured=name, right=right),
            )


def _modules(text: str, subject: str, starts: list[int], stack: Mapping[str, str]) -> Iterator[tuple[int, Finding]]:
    version = stack.get("verl", "")
    known = set(table("verl_names")["modules"].get(version, "").split())
    never = [pattern for pattern, _, _ in table("verl_names")["never"]]
    for match in _MODULE.finditer(text) if known else ():
        name = match[1]
        if name in known or any(re.search(pattern, match[0]) for pattern in never):
            continue
        words = {"measured": safe(name, 100), "right": _near(name, known), "version": version}
        yield match.start(), found("env", "ENV-MODULE", _where(subject, starts, match.start()), **words)


def _near(name: str, known: set[str]) -> str:
    import difflib  # noqa: PLC0415 - only where something is wrong

    close = difflib.get_close_matches(name[:100], sorted(known), n=2, cutoff=0.5)
    return " or ".join(close) or "a module that verl has: verl.trainer.main_ppo, verl.workers.fsdp_workers"


def requirements(text: str) -> dict[str, str]:
    """Package to pinned version, "" if none, of a requirements file or pip freeze; gym[box2d] is two names."""
    versions: dict[str, str] = {}
    for match in _REQUIREMENT.finditer(text):
        versions.setdefault(normal(match[1]), match[3] or "")
        if match[2] and "box2d" in match[2].lower():
            versions.setdefault("box2d", "")
    return versions
