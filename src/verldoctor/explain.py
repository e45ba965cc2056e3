"""Explains a traceback or log: the cause of the first real error among the ranks, its line, the fix and the source."""

from __future__ import annotations

import os
import re
import stat
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from verldoctor.finding import Finding, found
from verldoctor.incident import ordered
from verldoctor.logs import as_lines, read_lines
from verldoctor.scan import Event, Scan
from verldoctor.text import safe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from verldoctor.context import Context

_STDIN = Path("-")
_TOLD = 6  # explanations of one log: the first error and what followed, as far as anybody reads
_EVIDENCE = 300  # characters of the line shown
_BINARY = 0.3  # share of characters that are not text, above which a log without known messages is none
_LOGS = (".log", ".out", ".err", ".txt")
_FILES = 1000  # logs of one directory: 2 for each of 500 ranks
_RANK_IN_NAME = re.compile(r"(?:^|[._/-])rank[_-]?(\d{1,6})(?:[._/-]|$)|(?:^|/)(\d{1,6})/std(?:out|err)\.log$")


@dataclass(frozen=True)
class Explanation:
    """What an error means.

    Attributes:
        id: the signature's, or `unknown`.
        cause: what is wrong.
        line: number of the line that says so.
        evidence: that line, made safe to print.
        fix: the one line that mends it; "" if unknown.
        source: where that is known from; "" if unknown.
        secondary: whether it followed after, or stands beside, the first real error.
        rank: who wrote the line: `rank 3`, `WorkerDict pid=17`, or "".
        real: whether it is an error of its own, not only the consequence of one.
    """

    id: str
    cause: str
    line: int
    evidence: str
    fix: str
    source: str
    secondary: bool
    rank: str
    real: bool


def explain(lines: Iterable[bytes | str]) -> list[Explanation]:
    """Explains a log given as lines, the first real error first; empty if it holds no error.

    Args:
        lines: with or without line ends; each is cut at `logs.LINE_BYTES`, so none can be too long.
    """
    return explained(Scan().feed(as_lines(lines)))


def explained(scan: Scan) -> list[Explanation]:
    """Explains what a scan found: the first real error, then what followed."""
    return [_explanation(event, secondary=bool(index)) for index, event in enumerate(ordered(scan)[:_TOLD])]


def _explanation(event: Event, *, secondary: bool) -> Explanation:
    known, line = event.signature, event.line
    return Explanation(
        id=known.id if known else "unknown",
        cause=known.cause if known else "no signature matches this error",
        line=line.number,
        evidence=safe(line.text.strip(), _EVIDENCE),
        fix=known.fix if known else "",
        source=known.source if known else "",
        secondary=secondary,
        rank=safe(line.rank),
        real=event.level in ("cause", "unknown"),
    )


def check(paths: Sequence[Path], context: Context) -> list[Finding]:  # noqa: ARG001 - the signature of every check
    """Findings on logs: files, directories of logs, or - for standard input. Together they are one run's."""
    findings: list[Finding] = []
    told: list[tuple[str, list[Explanation]]] = []
    for path in _expanded(paths):
        name = safe(path)
        try:
            scan = _scan(path)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            why = getattr(error, "strerror", None) or error
            findings.append(found("explain", "EXPLAIN-UNREADABLE", name, measured=safe(why)))
            continue
        explanations = [_ranked(explanation, path) for explanation in explained(scan)]
        told.append((name, explanations))
        findings += [] if explanations else _silent(scan, name)
    return [*_findings(told), *findings]


def _expanded(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path != _STDIN and path.is_dir():
            logs = sorted(_logs_in(path))[:_FILES]
            yield from logs or [path]
        else:
            yield path


def _logs_in(directory: Path) -> Iterator[Path]:
    """Logs below a directory, as torchrun, Slurm and Ray write them; links to directories are not followed."""
    for folder, _, names in os.walk(directory):
        yield from (Path(folder, name) for name in names if name.endswith(_LOGS) or name in ("stdout", "stderr"))


def _scan(path: Path) -> Scan:
    if path == _STDIN and sys.stdin is None:  # closed by `<&-`
        raise OSError(0, "standard input is closed")
    if path == _STDIN:
        return Scan().feed(read_lines(sys.stdin.buffer))
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise OSError(0, "a directory without logs" if stat.S_ISDIR(mode) else "not a regular file")
    with path.open("rb") as stream:
        return Scan().feed(read_lines(stream))


def _ranked(explanation: Explanation, path: Path) -> Explanation:
    match = _RANK_IN_NAME.search(path.as_posix())
    if explanation.rank or not match:
        return explanation
    return replace(explanation, rank=f"rank {int(match[1] or match[2])}")


def _silent(scan: Scan, name: str) -> list[Finding]:
    """What to say of a log without any error: nothing, unless it is none."""
    if not scan.lines:
        return [found("explain", "EXPLAIN-EMPTY", name)]
    if scan.strange > _BINARY:
        return [found("explain", "EXPLAIN-BINARY", name, measured=f"{scan.strange:.0%}")]
    return []


def _findings(told: Sequence[tuple[str, list[Explanation]]]) -> list[Finding]:
    """Findings of all logs: where one holds a real error, consequences in the others are secondary too."""
    firsts = [explanations[0] for _, explanations in told if explanations]
    real = any(first.real for first in firsts)
    findings = [
        _finding(name, replace(explanation, secondary=explanation.secondary or (real and not explanation.real)))
        for name, explanations in told
        for explanation in explanations
    ]
    return sorted(findings, key=lambda finding: finding.severity == "warn")


def _finding(name: str, explanation: Explanation) -> Finding:
    where = f"{name}:{explanation.line}" + (f" ({explanation.rank})" if explanation.rank else "")
    if explanation.id == "unknown":
        return found("explain", "EXPLAIN-UNKNOWN", where, measured=explanation.evidence, line=explanation.line)
    role = "follows from the first error, or stands beside it: " if explanation.secondary else ""
    return Finding(
        code=f"EXPLAIN-{explanation.id.upper()}",
        severity="warn" if explanation.secondary else "fail",
        subject=where,
        message=f"{role}{explanation.cause} [source: {explanation.source}]",
        measured=explanation.evidence,
        right="",
        fix=explanation.fix,
    )
