"""The verb that builds an image once more by another builder, and compares."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from verlstack import canonical
from verlstack.cli.common import dist, workshop

if TYPE_CHECKING:
    import argparse

    from verlstack.reproduce import Report

_SHOWN = 40  # differences printed; --json has them all


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    """Add the verb to the parser."""
    verb = verbs.add_parser(
        "reproduce", parents=[common], help="build the image once more by another builder, and compare file by file"
    )
    verb.add_argument("stack", nargs="?", default="cu121", help="a [stack.NAME] of stacks.toml (default: cu121)")
    verb.add_argument("--engine", choices=("buildkit",), required=True, help="who builds it: docker buildx bake")
    verb.add_argument(
        "--dist", type=Path, metavar="DIR", help="where the composed image is (default: dist beside constraints)"
    )
    verb.set_defaults(verb=_reproduce)


def _reproduce(arguments: argparse.Namespace) -> int:
    """0: identical; 1: not."""
    from verlstack import lockfile, reproduce  # noqa: PLC0415

    with workshop(arguments) as (stack, shop):
        lock = lockfile.load(shop.constraints, stack)
        report = reproduce.by_buildkit(lock, shop, dist(arguments, shop) / stack.name)
    if arguments.json:
        print(canonical.dumps({"identical": report.identical, "report": report}).decode())
    else:
        _print(report)
    return 0 if report.identical else 1


def _print(report: Report) -> None:
    """Layers, differences with their causes, leftovers, and the verdict."""
    width = max(len(row.layer) for row in report.rows)
    for row in report.rows:
        ids = f"{_short(row.composed)}  {_short(row.built)}"
        print(f"{row.layer:{width}}  {ids}  {'same' if row.same else row.note or 'differs'}")
    for one in report.differences[:_SHOWN]:
        print(f"\n{one.path}  ({one.owner or 'no layer'}; {', '.join(one.shows)})")
        print(f"  composed: {one.one}\n  built:    {one.other}\n  cause:    {one.cause}")
        if one.source:
            print(f"  source:   {one.source}")
    if len(report.differences) > _SHOWN:
        print(f"\nand {len(report.differences) - _SHOWN} more: --json shows them")
    for left in report.leftovers[:_SHOWN]:
        print(f"{left.path} must not be in an image: {left.why}")
    verdict = "identical" if report.identical else "NOT identical"
    print(f"\n{report.stack}  {report.digest}  and the image of {report.builder}: {verdict}")
    size = f"{report.files} paths, {report.bytes / 1e9:.2f} GB unpacked"
    found = f"{len(report.differences)} paths differ, {len(report.leftovers)} left over"
    print(f"{size}; {found}; {report.seconds:.0f} s")


def _short(diff_id: str | None) -> str:
    return diff_id[7:19] if diff_id else "-" * 12
