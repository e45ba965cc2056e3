"""The verb that changes pins, and says what that changes, costs, and breaks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from verlstack import canonical
from verlstack.cli.check import show
from verlstack.cli.common import dist, workshop
from verlstack.cli.diff import lines

if TYPE_CHECKING:
    import argparse

    from verlstack.pin import Report


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    """Add the verb to the parser."""
    verb = verbs.add_parser(
        "pin", parents=[common], help="change pins, lock again, check, and say what changes and what a host must pull"
    )
    verb.add_argument("stack", help="a [stack.NAME] of stacks.toml")
    verb.add_argument("pins", nargs="+", metavar="NAME==VERSION", help="what to pin")
    verb.add_argument("--why", metavar="TEXT", help="the reason, for stacks.toml (default: that nobody tried it)")
    verb.add_argument("--dist", type=Path, metavar="DIR", help="where images are (default: dist beside constraints)")
    verb.set_defaults(verb=_pin)


def _pin(arguments: argparse.Namespace) -> int:
    """0: pinned; 1: pinned, and known to break."""
    from verlstack import pin  # noqa: PLC0415
    from verlstack.check import run  # noqa: PLC0415

    with workshop(arguments) as (stack, shop):
        images = dist(arguments, shop)
        before = run.check(stack.name, stack, shop, images, probing=False)
        report = pin.pin(stack, arguments.pins, arguments.why, shop, images / stack.name)
        check = run.check(stack.name, stack, shop, images)
    if arguments.json:
        print(canonical.dumps({"pull_bytes": report.pull.known, "report": report, "check": check}).decode())
    else:
        _print(report)
        show(check, known=before)
    return 1 if check.exit_code == 1 else 0


def _print(report: Report) -> None:
    for one in report.pins:
        print(f"{one.key}  {one.before or 'not pinned'} → {one.after}")
        if one.lost is not None:
            print(f"  its reason is now: {one.why}; that of {one.before} was: {one.lost}")
            print("  do: say why with --why, or in stacks.toml, once you know that it works")
    print(f"lock  {report.lock_before}\n   →  {report.lock}")
    print("\n".join(lines(report.packages, report.layers, report.pull)))
    if report.note:
        print(report.note)
    for name in report.stale:
        print(f"{name} inherits this, so its lock is stale now: run `verlstack lock {name}`")
    print(f"locking composed the layers that changed; `verlstack build {report.stack}` makes the image")
