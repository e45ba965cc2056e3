"""What a check may say: a finding, whose words come from the rule of that code."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

Severity = Literal["fail", "warn", "unknown", "note"]  # exit codes 1, 0, 2 and 0; a note is no warning
_RULES = Path(__file__).with_name("rules")


@dataclass(frozen=True)
class Rule:
    """Knowledge about one thing that goes wrong; data in rules/KIND.json.

    Attributes:
        code: stable name, e.g. `HOST-SHM`.
        severity: what it means for the run.
        title: one sentence, with {placeholders} for measured values.
        fix: the one line that mends it, with the same placeholders.
        why: what happens if nobody mends it.
        source: where this is known from: an experiment on the pinned versions, or a public document.
    """

    code: str
    severity: Severity
    title: str
    fix: str
    why: str
    source: str


@dataclass(frozen=True)
class Finding:
    """One thing found.

    Attributes:
        code: the rule.
        severity: `fail` (the run will break or be wrong), `warn`, `unknown` (could not be told), or `note` (was not
            looked at, and need not be).
        subject: what it is about: a file, file:line, variable or package.
        message: what is so, one sentence.
        measured: the value found, or "".
        right: the value that would be right, or "".
        fix: the one line that mends it.
    """

    code: str
    severity: Severity
    subject: str
    message: str
    measured: str
    right: str
    fix: str


@cache
def rules(kind: str) -> dict[str, Rule]:
    """The rules of one kind (env, host, devices, fsdp, model, data, checkpoint), by code."""
    table = json.loads((_RULES / f"{kind}.json").read_text(encoding="utf-8"))
    return {code: Rule(code=code, **fields) for code, fields in table.items()}


def found(kind: str, code: str, subject: str, *, measured: object = "", right: object = "", **words: object) -> Finding:
    """A finding of rule `code`, its sentences filled with `measured`, `right`, `subject` and `words`."""
    rule = rules(kind)[code]
    values = {"subject": subject, "measured": measured, "right": right, **words}
    return Finding(
        code=code,
        severity=rule.severity,
        subject=subject,
        message=rule.title.format(**values),
        measured=str(measured),
        right=str(right),
        fix=rule.fix.format(**values),
    )
