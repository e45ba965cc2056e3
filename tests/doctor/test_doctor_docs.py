"""docs/verldoctor-checks.md says what the rules' data say; run as a script, this file writes the page again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from verldoctor.finding import rules
from verldoctor.run import KINDS
from verldoctor.signatures import signatures
from verldoctor.versions import table

if TYPE_CHECKING:
    from collections.abc import Sequence

DOCS = Path(__file__).resolve().parents[2] / "docs"
FILE = DOCS / "verldoctor-checks.md"
HEAD = """\
# What verldoctor looks for

Generated from `src/verldoctor/rules/` by `python tests/doctor/test_doctor_docs.py`; a test holds it to them. `…` stands
for a value of the input. [verldoctor.md](verldoctor.md) says how it is used.
"""


def rendered() -> str:
    """The page: a table for each kind of input, one row a rule; last, the messages that `explain` knows."""
    parts = [HEAD]
    for kind in (*KINDS, "doctor"):
        rows = [(r.code, r.severity, r.title, _bounds(r.code), r.source) for r in rules(kind).values()]
        title = "whatever the kind" if kind == "doctor" else kind
        parts.append(_table(title, ("code", "severity", "what is so", "holds for", "known from"), rows))
    known = sorted(signatures(), key=lambda signature: signature.id)
    messages = [(f"EXPLAIN-{s.id.upper()}", s.kind, s.cause, s.source) for s in known]
    parts.append(_table("messages that explain knows", ("code", "it is", "what it means", "known from"), messages))
    return "\n".join(parts)


def _table(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [f"## {title[0].upper()}{title[1:]}: {len(rows)}", "", _row(head), "|---" * len(head) + "|"]
    return "\n".join([*lines, *map(_row, rows), ""])


def _row(cells: tuple[str, ...]) -> str:
    texts = [re.sub(r"\{[^{}]*\}", "…", cell.replace("{{", "").replace("}}", "")) for cell in cells]
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def _bounds(code: str) -> str:
    """The versions for which a rule holds; empty if for all."""
    bounds = table("limits")["rules"].get(code, {})
    return ", ".join(f"{package} {' or '.join(ranges)}" for package, ranges in bounds.items())


def test_the_page_is_that_of_the_rules() -> None:
    assert FILE.read_text(encoding="utf-8") == rendered()


def test_every_kind_option_and_code_in_the_text_is_there() -> None:
    text = (DOCS / "verldoctor.md").read_text(encoding="utf-8")
    assert [kind for kind in (*KINDS, "all") if f"`{kind}`" not in text] == []
    known = {code for kind in (*KINDS, "doctor") for code in rules(kind)}
    known |= {f"EXPLAIN-{signature.id.upper()}" for signature in signatures()}
    prefixes = "|".join(sorted({code.partition("-")[0] for code in known}))
    assert set(re.findall(rf"\b(?:{prefixes})-[A-Z0-9-]+\b", text)) - known == set()


if __name__ == "__main__":
    FILE.write_text(rendered(), encoding="utf-8")
