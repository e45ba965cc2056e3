"""Known error messages: a pattern, its cause, the fix and where that is known from; data in rules/signatures.json."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Kind = Literal["cause", "effect", "note"]
_DATA = Path(__file__).with_name("rules") / "signatures.json"
_RANKS: Mapping[Kind, int] = {"cause": 0, "effect": 1, "note": 2}


@dataclass(frozen=True)
class Signature:
    """One known error message.

    Attributes:
        id: stable name; the finding's code is EXPLAIN- and this in capitals.
        kind: `cause` (an error of its own), `effect` (follows when something else failed before), `note` (a warning
            that explains slowness or waiting, not a crash).
        priority: 0 says exactly what is wrong, 1 generally, 2 only that something is; smaller wins.
        needles: literal texts of which every matching line holds at least one; they make most lines cheap.
        pattern: regular expression searched in one line without its prefixes. Only bounded, unnested repeats, so
            no line can make it slow (tests/doctor/test_explain_data.py holds the data to it).
        near: literal text that must stand in the same traceback's last lines; "" if the message alone is enough.
        cause: what is wrong.
        fix: the one line that mends it.
        source: an experiment on the pinned versions, the release whose source holds the message, or a public report.
        versions: package to version specifier for which the cause is so; empty if for all.
        example: real lines of a log that match.
        counterexample: a near miss that does not match.
    """

    id: str
    kind: Kind
    priority: int
    needles: tuple[str, ...]
    pattern: re.Pattern[str]
    cause: str
    fix: str
    source: str
    example: str
    counterexample: str
    near: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def order(self) -> tuple[int, int]:
        """Sorts the signatures of one line: causes before effects before notes, exact ones first."""
        return _RANKS[self.kind], self.priority

    def matches(self, text: str, near: Iterable[str]) -> bool:
        """Whether a line is this message; `near` are the lines before it in its traceback."""
        if not any(needle in text for needle in self.needles) or not self.pattern.search(text):
            return False
        return not self.near or any(self.near in line for line in near)


@lru_cache(maxsize=1)
def signatures() -> tuple[Signature, ...]:
    """All signatures, in the order in which the first that matches a line is taken."""
    rows = json.loads(_DATA.read_text(encoding="utf-8"))
    table = [
        Signature(**{**row, "needles": tuple(row["needles"]), "pattern": re.compile(row["pattern"])}) for row in rows
    ]
    return tuple(sorted(table, key=lambda signature: signature.order))  # sorted() keeps the file's order of equals


def within(blob: str) -> list[Signature]:
    """The signatures that can match some line of `blob`: those of which a needle is in it."""
    return [signature for signature in signatures() if any(needle in blob for needle in signature.needles)]
