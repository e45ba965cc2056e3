"""Writes findings for people and for programs, and says what they mean as an exit code."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from verldoctor.text import safe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from verldoctor.finding import Finding

_LINE = 1000  # no field of a finding is longer on a terminal; checks cut their own much earlier


def exit_code(findings: Sequence[Finding]) -> int:
    """1 with at least one fail; else 2 with at least one unknown; else 0."""
    severities = {finding.severity for finding in findings}
    return 1 if "fail" in severities else 2 if "unknown" in severities else 0


def as_json(findings: Sequence[Finding]) -> str:
    """A JSON list of objects with the fields of `Finding`; pure ASCII, so no control code survives."""
    return json.dumps([asdict(finding) for finding in findings], indent=2) + "\n"


def as_text(findings: Sequence[Finding], versions: str = "") -> str:
    """One block for each finding, then a line with the counts, and `versions` that were assumed where that is all."""
    blocks = [_block(finding) for finding in findings]
    return "\n".join([*blocks, _closing(findings, versions)])


def _block(finding: Finding) -> str:
    lines = [f"{finding.severity.upper()}  {finding.code}  {safe(finding.subject, _LINE)}"]
    lines.append(f"  {safe(finding.message, _LINE)}")
    if finding.measured and finding.right:
        lines.append(f"  {safe(finding.measured, _LINE)} → {safe(finding.right, _LINE)}")
    elif finding.right or finding.measured not in finding.message:
        lines.append(
            f"  {'measured' if finding.measured else 'right'}: {safe(finding.measured or finding.right, _LINE)}"
        )
    if finding.fix:
        lines.append(f"  fix: {safe(finding.fix, _LINE)}")
    return "\n".join(lines) + "\n"


def _closing(findings: Sequence[Finding], versions: str) -> str:
    counts = [sum(finding.severity == name for finding in findings) for name in ("fail", "warn", "unknown")]
    verdict = ("nothing found", "will break", "cannot tell")[exit_code(findings)] if findings else "nothing found"
    verdict = "goes, except for what the warnings name" if counts[1] and exit_code(findings) == 0 else verdict
    verdict += f" (judged for {safe(versions, _LINE)})" if versions and verdict == "nothing found" else ""
    return f"verldoctor: {counts[0]} fail, {counts[1]} warn, {counts[2]} unknown: {verdict}\n"
