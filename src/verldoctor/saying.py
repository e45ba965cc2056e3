"""Makes findings whose words come from inputs: every one is made fit to print first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verldoctor.finding import Finding, found
from verldoctor.text import safe

if TYPE_CHECKING:
    from collections.abc import Iterable

_WORD = 120  # characters of a value that a sentence quotes


def say(kind: str, code: str, subject: str, *, measured: object = "", right: object = "", **words: object) -> Finding:
    """A finding of rule `code`; `measured`, `right` and `words` may be anything that an input held."""
    return found(
        kind,
        code,
        safe(subject),
        measured=safe(measured, _WORD),
        right=safe(right, _WORD),
        **{key: safe(value, _WORD) for key, value in words.items()},
    )


def listed(names: Iterable[object], most: int = 8) -> str:
    """`names` sorted, with commas, at most `most` of them."""
    ordered = sorted({str(name) for name in names})
    return ", ".join(ordered[:most]) + (f" and {len(ordered) - most} more" if len(ordered) > most else "")
