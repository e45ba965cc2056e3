"""Runs checks by name: loads a kind when asked for, keeps unreadable paths from it, turns a crash into a finding."""

from __future__ import annotations

import importlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verldoctor import overrides
from verldoctor.finding import Finding, found
from verldoctor.text import safe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from verldoctor.context import Context

KINDS = ("env", "host", "fsdp", "devices", "model", "data", "checkpoint", "explain")
MACHINE = ("env", "host", "devices")  # without paths they look at this machine
_STDIN = Path("-")
_NEEDED = {"yaml": "PyYAML", "packaging": "packaging"}  # module to package: all that verldoctor itself may lack


def check_kind(kind: str, paths: Sequence[Path], context: Context) -> list[Finding]:
    """Findings of one check over `paths`; those that cannot be read are findings and are kept from it."""
    refused = [(path, _refusal(path, kind)) for path in paths]
    findings = [found("doctor", "DOCTOR-PATH", safe(path), measured=why) for path, why in refused if why]
    good = [path for path, why in refused if not why]
    if paths and not good:
        return findings
    if kind == "explain" and not good:
        good = [_STDIN]
    return findings + _guarded(kind, lambda: list(_module(kind).check(good, context)))


def check_all(kinds: Sequence[str], paths: Sequence[Path], context: Context) -> list[Finding]:
    """Findings over `paths`, each under the kind it looks like, then of env and host of this machine as asked."""
    from verldoctor.dispatch import kind_of  # noqa: PLC0415 - a single kind sorts nothing

    wanted = list(KINDS) if "all" in kinds else list(kinds)
    machine = [kind for kind in wanted if kind in (MACHINE[:2] if "all" in kinds else MACHINE)]
    groups: dict[str, list[Path]] = {}
    findings: list[Finding] = []
    for path in paths:
        if reason := _refusal(path, "all"):
            findings.append(found("doctor", "DOCTOR-PATH", safe(path), measured=reason))
            continue
        kind, why = kind_of(path)
        if kind in wanted:
            groups.setdefault(kind, []).append(path)
        else:
            findings.append(found("doctor", "DOCTOR-KIND", safe(path), measured=safe(why or f"looks like {kind}")))
    for kind, group in groups.items():
        findings += check_kind(kind, group, context)
    for kind in machine:
        findings += check_kind(kind, [], context)
    return findings


def fix_data(path: Path, out: Path) -> tuple[list[Finding], list[str]]:
    """Writes `path` in verl's format to `out`; findings and the lines that say what was kept and dropped."""
    if why := _refusal(path, "data"):
        return [found("doctor", "DOCTOR-PATH", safe(path), measured=why)], []
    report: list[Any] = []

    def work() -> list[Finding]:
        report.append(_module("data").fix(path, out))
        return []

    findings = _guarded("data", work)
    lines = [safe(line, 1000) for item in report for line in str(item).splitlines()]
    return findings + [x for item in report for x in getattr(item, "findings", ())], lines


def live_dump(kind: str, context: Context) -> str:
    """What this machine says, as the JSON text that `verldoctor KIND FILE` reads back."""
    text: str = _module(kind).dump(context)
    return text


def _module(kind: str) -> Any:
    return importlib.import_module(f"verldoctor.{kind}")


def _guarded(kind: str, work: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return work()
    except Exception as error:
        if os.environ.get("VERLDOCTOR_DEBUG") == "1":
            raise
        if isinstance(error, ModuleNotFoundError) and error.name in _NEEDED:
            package = _NEEDED[error.name]
            return [found("doctor", "DOCTOR-MODULE", kind, measured=error.name, right=package, check=kind)]
        what = safe(f"{type(error).__name__}: {error}")
        return [found("doctor", "DOCTOR-BUG", kind, measured=what, check=kind)]


def _refusal(path: Path, kind: str) -> str:
    """Why `path` is kept from a check, or "". A pipe or a device could block or never end; explain may read a pipe."""
    if kind in ("fsdp", "all") and overrides.instead_of(path):
        return ""
    if path == _STDIN:
        return "" if kind == "explain" else "only explain reads standard input"
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        return safe(getattr(error, "strerror", None) or error)
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or (stat.S_ISFIFO(mode) and kind == "explain"):
        return "" if os.access(path, os.R_OK) else "permission denied"
    return "neither a file nor a directory"
