"""What verldoctor says of the environment and the host before any test runs; it lies beside the Python of an image."""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

PROGRAM = Path(sys.executable).with_name("verldoctor")
PATIENCE = 60.0  # seconds; it takes 0.3, and leaves an nvidia-smi that hangs after 8
_GRAVEST_FIRST = ("fail", "unknown", "warn", "note")
_GRAVE = ("fail", "unknown")
_LONGEST = 400  # characters of a finding's line
# The tests bring stand-ins for flash-attn and say so in the report, for images that go without it.
_STOOD_IN_FOR = {"ENV-FLASH-ATTN"}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One of verldoctor's findings, as its `--json` has them.

    Attributes:
        code: the rule; ENV-… is of the environment, HOST-… of the host.
        severity: `fail`, `unknown`, `warn` or `note`.
        subject: what it is about.
        message: what is so.
        measured: the value found.
        right: the value that would be right.
        fix: the one line that mends it.
    """

    code: str
    severity: str
    subject: str
    message: str
    measured: str
    right: str
    fix: str

    @property
    def stops(self) -> bool:
        """Whether no test need run: the environment is not what it should be, and a test would only fail of that.

        Of the host nothing stops: what the tests need of it they see themselves, and much of it training needs alone.
        """
        return self.severity == "fail" and self.code.startswith("ENV-") and self.code not in _STOOD_IN_FOR


def examine(program: Path = PROGRAM) -> tuple[Finding, ...]:
    """Findings on this environment and this host, the gravest first; where verldoctor says nothing, that is one."""
    if not program.is_file():
        return (_own("note", "verldoctor is not there, so nothing looked at the environment and the host"),)
    words = [sys.executable, str(program), "env", "host", "--json"]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False)
        found = read(json.loads(done.stdout))
    except (OSError, subprocess.TimeoutExpired, ValueError, TypeError, RecursionError) as e:
        return (_own("unknown", f"verldoctor does not answer: {type(e).__name__}: {e}"),)
    return tuple(sorted(found, key=lambda finding: _rank(finding.severity)))


def read(rows: Sequence[Mapping[str, Any]]) -> tuple[Finding, ...]:
    """Findings from JSON.

    Raises:
        TypeError: a row is none.
    """
    names = {field.name for field in fields(Finding)}
    return tuple(Finding(**{name: str(value) for name, value in dict(row).items() if name in names}) for row in rows)


def _own(severity: str, message: str) -> Finding:
    words = {"measured": "", "right": "", "fix": ""}
    return Finding(code="VERLDOCTOR", severity=severity, subject="verldoctor", message=message, **words)


def _rank(severity: str) -> int:
    return _GRAVEST_FIRST.index(severity) if severity in _GRAVEST_FIRST else 0


def lines(findings: Iterable[Finding]) -> Iterator[str]:
    """Each finding in one line; what mends it only where that matters now, for the report has all of it."""
    found = list(findings)
    for finding in found:
        fix = f"; fix: {finding.fix}" if finding.severity in _GRAVE and finding.fix else ""
        yield f"verldoctor: {finding.severity} {finding.code}: {finding.message}{fix}"[:_LONGEST]
    if not found:
        yield "verldoctor: environment and host: nothing found"


def document(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Findings as the report keeps them; `stops` tells those for which no test was run."""
    return [{**asdict(finding), "stops": finding.stops} for finding in findings]
