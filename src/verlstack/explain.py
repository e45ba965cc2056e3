"""Why two builders' trees differ at a path: which file, which pin, which known cause."""

from __future__ import annotations

import contextlib
import csv
import posixpath
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from verlstack import told

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from verlstack.trees import Difference, Node

RECORDS = re.compile(r".*\.dist-info/RECORD")
UNKNOWN = "not known yet: find it, mend it, and add a row to data/differences.toml"
_DIST_INFO = re.compile(r"(?P<name>[^/]+?)-(?P<version>[^/-]+)\.dist-info/RECORD")


@dataclass(frozen=True, kw_only=True)
class Explained:
    """One difference in words.

    Attributes:
        path: where, with leading slash.
        shows: what differs: `only-one`, `only-other`, or names of facts.
        one: what the first tree has there, in words; "nothing" if so.
        other: likewise the second.
        owner: the pin whose wheel has this file, as `name version`, else the layer's name.
        cause: what is known to do this.
        source: where that is known from; empty for an unknown cause.
    """

    path: str
    shows: tuple[str, ...]
    one: str
    other: str
    owner: str
    cause: str
    source: str


@dataclass(frozen=True, kw_only=True)
class _Cause:
    pattern: re.Pattern[str]
    shows: frozenset[str]
    cause: str
    source: str


def explain(differences: Iterable[Difference], owners: Mapping[str, str]) -> tuple[Explained, ...]:
    """Put differences into words.

    Args:
        differences: from `trees.compare`.
        owners: path → pin or layer.
    """
    return tuple(_one(difference, owners.get(difference.path, "")) for difference in differences)


def _one(difference: Difference, owner: str) -> Explained:
    missing = ("only-other",) if difference.one is None else ("only-one",)
    shows = difference.fields or missing
    found = next(
        (c for c in _causes() if c.pattern.search(difference.path) and (not c.shows or c.shows & {*shows})), None
    )
    one, other = (_words(node, difference.fields) for node in (difference.one, difference.other))
    return Explained(
        path=f"/{told.escaped(difference.path)}",
        shows=shows,
        one=one,
        other=other,
        owner=told.escaped(owner),
        cause=found.cause if found else UNKNOWN,
        source=found.source if found else "",
    )


def _words(node: Node | None, fields: tuple[str, ...]) -> str:
    if node is None:
        return "nothing"
    facts: dict[str, Any] = {"kind": node.kind, "mode": f"{node.mode:04o}", "uid": node.uid, "gid": node.gid}
    facts |= {"size": node.size, "content": node.content[:64], "xattrs": dict(node.xattrs)}
    words = " ".join(f"{name} {facts[name]}" for name in fields)
    return told.escaped(words) or f"{node.kind} {node.mode:04o} of {node.size} bytes"


@cache
def _causes() -> tuple[_Cause, ...]:
    text = resources.files("verlstack").joinpath("data/differences.toml").read_text(encoding="utf-8")
    return tuple(
        _Cause(
            pattern=re.compile(row["pattern"]),
            shows=frozenset(row.get("shows", ())),
            cause=row["cause"],
            source=row["source"],
        )
        for row in tomllib.loads(text)["cause"]
    )


def owners(records: Mapping[str, bytes]) -> dict[str, str]:
    """Path → `name version` of the wheel that installed it.

    Args:
        records: path → bytes of each wheel's RECORD (pattern `RECORDS`).
    """
    found: dict[str, str] = {}
    for path, data in records.items():
        match = _DIST_INFO.fullmatch(posixpath.basename(posixpath.dirname(path)) + "/RECORD")
        if match is None:
            continue
        site = posixpath.dirname(posixpath.dirname(path))
        with contextlib.suppress(csv.Error):  # a field longer than any path; what follows it has no owner
            for row in csv.reader(data.decode("utf-8", "replace").splitlines()):
                if row:
                    found[posixpath.normpath(posixpath.join("/", site, row[0])).lstrip("/")] = f"{match[1]} {match[2]}"
    return found
