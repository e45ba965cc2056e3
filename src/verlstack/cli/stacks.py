"""The verb that lists the stacks, and the builds of all of them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from verlstack import canonical, told
from verlstack.cli.common import project
from verlstack.errors import VerlstackError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from verlstack.build import Report
    from verlstack.stacks import Row


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    """Add the verb to the parser."""
    verb = verbs.add_parser("stacks", parents=[common], help="every stack with its pins, and what it can and cannot do")
    verb.set_defaults(verb=_stacks)


def _stacks(arguments: argparse.Namespace) -> int:
    from verlstack import stacks  # noqa: PLC0415

    found = stacks.rows(project(arguments))
    if arguments.json:
        print(canonical.dumps(found).decode())
    else:
        _print(found)
    return 0


def _print(found: list[Row]) -> None:
    """Stacks are columns: there are few of them, and many things to say of each."""
    from verlstack import capabilities  # noqa: PLC0415

    table = [("", *(row.stack for row in found))]
    pinned = ("python", "cuda", "torch", "transformers", "vllm", "verl")
    table += [(name, *(getattr(row, name) or "none" for row in found)) for name in pinned]
    table.append(("flash-attn", *(_flash_attn(row) for row in found)))
    table.append(("wheels, MB", *(f"{row.bytes / 1e6:.0f}" if row.bytes else "no lock" for row in found)))
    table += [(name, *(_can(row, name) for row in found)) for name in capabilities.known()]
    table.append(("measured", *(row.measured or "not for this lock" for row in found)))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    print()
    for name, sentence in capabilities.known().items():
        print(f"{name}: {sentence}")
        for row in found:
            if name in row.cannot:
                print(f"  not {row.stack}: {row.cannot[name]}")


def _flash_attn(row: Row) -> str:
    if row.flash_attn is None:
        return "none"
    return row.flash_attn if row.compiled else f"{row.flash_attn}, not compiled"


def _can(row: Row, name: str) -> str:
    if name not in row.can:
        return "not measured"
    return "can" if row.can[name] else "cannot"


def build_all(arguments: argparse.Namespace, one: Callable[[str], Report], show: Callable[[Report], object]) -> int:
    """Build every stack; one that fails does not stop the rest. 0: all were built, else 1.

    Args:
        arguments: of the command line.
        one: builds a stack.
        show: prints what was built.
    """
    from verlstack import pins  # noqa: PLC0415

    reports: dict[str, Report] = {}
    failed: dict[str, VerlstackError] = {}
    names = pins.names(project(arguments) / "stacks.toml")
    for name in names:
        print(f"== {name}", file=sys.stderr)
        try:
            reports[name] = one(name)
        except VerlstackError as e:
            failed[name] = e
            print(f"verlstack: error: {told.plain(str(e))}", file=sys.stderr)
        else:
            if not arguments.json:
                show(reports[name])
    if arguments.json:
        made = [{"stack": x, "report": reports.get(x), "error": str(failed[x]) if x in failed else None} for x in names]
        print(canonical.dumps(made).decode())
    else:
        print()
        for name in names:
            said = (
                f"failed: {told.plain(failed[name].what)}"
                if name in failed
                else f"{reports[name].tag}  {reports[name].digest}"
            )
            print(f"{name}  {said}")
    return 1 if failed else 0
