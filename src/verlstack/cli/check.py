"""The verb that says what would break, before anything is built."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from verlstack import canonical, told
from verlstack.cli.common import dist, workshop

if TYPE_CHECKING:
    import argparse

    from verlstack.check.finding import Finding, Report

_DEFAULT = "cu121"


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    """Add the verb to the parser."""
    verb = verbs.add_parser("check", parents=[common], help="say what would break, before anything is built")
    what = "a stack, or a file: requirements, pins in TOML, a wheel or its name, a Dockerfile (default: cu121)"
    verb.add_argument("target", nargs="?", default=_DEFAULT, metavar="STACK|FILE", help=what)
    verb.add_argument("--dist", type=Path, metavar="DIR", help="where images are (default: dist beside constraints)")
    verb.set_defaults(verb=_check)


def _check(arguments: argparse.Namespace) -> int:
    """0: nothing breaks; 1: something does; 2: it cannot be told."""
    from verlstack.check import run  # noqa: PLC0415
    from verlstack.errors import PinsError  # noqa: PLC0415

    is_stack = run.is_stack(arguments.target)
    arguments.stack = arguments.target if is_stack else _DEFAULT
    try:
        with workshop(arguments) as (stack, shop):
            report = run.check(arguments.target, stack, shop, dist(arguments, shop))
    except PinsError as e:
        report = run.invalid(arguments.target, e, stack=is_stack)
    if arguments.json:
        print(canonical.dumps({"exit": report.exit_code, "report": report}).decode())
    else:
        show(report)
    return report.exit_code


def show(report: Report, known: Report | None = None) -> None:
    """Print the findings, and the verdict last; of those that an earlier report has, only how many there are."""
    had = {(one.code, one.subject, one.measured) for one in known.findings} if known else set()
    new = [one for one in report.findings if (one.code, one.subject, one.measured) not in had]
    for one in new:
        _print_finding(one)
    if old := len(report.findings) - len(new):
        print(f"{old} more were found before, too: `verlstack check {report.target}` prints them")
    counts = {word: sum(one.severity == word for one in report.findings) for word in ("fail", "unknown", "warn")}
    verdict = ("nothing breaks", "it would break", "it cannot be told")[report.exit_code]
    said = ", ".join(f"{number} {word}" for word, number in counts.items() if number) or "no findings"
    print(f"{told.escaped(report.target)} ({report.kind}, against {report.stack}): {verdict}; {said}")


def _print_finding(one: Finding) -> None:
    print(f"{one.severity.upper():7} {one.code}  {one.subject}")
    rows = (
        *(("where", one.where), ("so", one.measured), ("right", one.right)),
        *(("why", f"{one.why} [{one.source}]"), ("fix", one.fix)),
    )
    for word, text in rows:
        if text:
            print(f"  {word + ':':7}" + text.replace("\n", "\n         "))
    print()
