"""The rules, read from data: what each finding says and why, and which releases are known not to go together."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet

from verlstack import told
from verlstack.check.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packaging.version import Version


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """Releases of a package that fail, alone or beside those of another one.

    Attributes:
        code: the rule that speaks of it.
        package: canonical name.
        versions: its releases that fail.
        beside: the other package, "" where it fails by itself.
        beside_versions: with which of its releases.
        shown: the message, or what happens.
        right: a release that works.
        source: how it is known.
        severity: "fail" or "warn".
    """

    code: str
    package: str
    versions: SpecifierSet
    beside: str
    beside_versions: SpecifierSet
    shown: str
    right: str
    source: str
    severity: str

    def hits(self, versions: Mapping[str, Version]) -> bool:
        """Whether these releases are the ones; a package that is not there hits nothing."""
        mine, other = versions.get(self.package), versions.get(self.beside)
        if mine is None or not self.versions.contains(mine, prereleases=True):
            return False
        return not self.beside or (other is not None and self.beside_versions.contains(other, prereleases=True))


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A rule of check_dockerfile.toml that a regular expression finds.

    Attributes:
        code: the rule that speaks of it.
        on: "command" for each command of a RUN, "environment" for each NAME=value of ENV and ARG.
        pattern: hits if it is found.
        unless: … and this one is not; None where nothing excuses.
    """

    code: str
    on: str
    pattern: re.Pattern[str]
    unless: re.Pattern[str] | None


@cache
def table(name: str) -> dict[str, Any]:
    """The content of data/check_NAME.toml."""
    text = resources.files("verlstack").joinpath(f"data/check_{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def finding(code: str, *, subject: str, measured: str, right: str = "", where: str = "", **other: str) -> Finding:
    """A finding of the rule `code`; severity, why, source and fix are the rule's, unless given.

    Subject and measured often quote somebody's file: credentials and what speaks to a terminal are taken out. `where`
    begins with a file's name, which must stay one: what cannot be printed is escaped.
    """
    rule = rules()[code]
    words = {key: other.get(key, rule[key]) for key in ("severity", "why", "source", "fix")}
    subject, measured = told.plain(subject), told.plain(measured)
    return Finding(
        code=code,
        subject=subject,
        measured=measured,
        right=right or rule.get("right", ""),
        where=told.escaped(where),
        **words,
    )


@cache
def rules() -> dict[str, dict[str, str]]:
    """Every rule by its code."""
    return {**table("rules")["rule"], **table("dockerfile")["rule"]}


@cache
def troubles() -> tuple[Trouble, ...]:
    """Every row of check_releases.toml."""
    return tuple(
        Trouble(
            code=row["code"],
            package=row["package"],
            versions=SpecifierSet(row["versions"]),
            beside=row.get("beside", ""),
            beside_versions=SpecifierSet(row.get("beside_versions", "")),
            shown=row["shown"],
            right=row["right"],
            source=row["source"],
            severity=row.get("severity", "fail"),
        )
        for row in table("releases")["release"]
    )


@cache
def patterns() -> tuple[Pattern, ...]:
    """Every row of check_dockerfile.toml that is found by a regular expression."""
    return tuple(
        Pattern(
            code=code,
            on=row["on"],
            pattern=re.compile(row["pattern"]),
            unless=re.compile(row["unless"]) if "unless" in row else None,
        )
        for code, row in table("dockerfile")["rule"].items()
        if "pattern" in row
    )
