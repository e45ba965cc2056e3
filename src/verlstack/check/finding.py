"""What a check says: one finding a trouble, and the verdict over all of them."""

from __future__ import annotations

from dataclasses import dataclass

FAIL, UNKNOWN, WARN = "fail", "unknown", "warn"
SEVERITIES = (FAIL, UNKNOWN, WARN)  # in the order in which they are reported


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One trouble.

    Attributes:
        code: name of the rule in src/verlstack/data/check_*.toml.
        severity: "fail" breaks, "warn" may, "unknown" could not be looked at.
        subject: what it is about: a package, a file, a line's command.
        measured: what is so.
        right: what would be right.
        why: what happens otherwise.
        source: how that is known.
        fix: what to do.
        where: file:line, or "".
    """

    code: str
    severity: str
    subject: str
    measured: str
    right: str
    why: str
    source: str
    fix: str
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of one check.

    Attributes:
        target: what was asked for, as it was named.
        kind: "stack", "pins", "wheel" or "dockerfile".
        stack: the stack that it was held against.
        findings: the worst first.
    """

    target: str
    kind: str
    stack: str
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """0: nothing, or warnings; 1: something breaks; 2: not known, because not all could be looked at."""
        found = {one.severity for one in self.findings}
        return 1 if FAIL in found else 2 if UNKNOWN in found else 0


def ordered(findings: list[Finding]) -> tuple[Finding, ...]:
    """The worst first, each one once, otherwise as they came."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda one: SEVERITIES.index(one.severity)))
