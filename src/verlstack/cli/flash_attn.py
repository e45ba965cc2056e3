"""Verbs for the flash-attn wheel: what is pinned and where it is, and how a compiled one gets into the image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from verlstack import canonical
from verlstack.cli.common import workshop

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from verlstack.extension.shelf import Shelved


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    """Add the verbs to the parser."""
    group = verbs.add_parser("flash-attn", help="the compiled flash-attn wheel: compile, show, add, pin")
    actions = group.add_subparsers(title="actions", required=True, metavar="ACTION")
    show = actions.add_parser("show", parents=[common], help="what is pinned, and where its wheel is found")
    add = actions.add_parser("add", parents=[common], help="gate a compiled wheel, put it into the cache")
    pin = actions.add_parser("pin", parents=[common], help="put a compiled wheel into the pins and the lock")
    compile_ = actions.add_parser("compile", parents=[common], help="compile it in a container engine, then add it")
    compile_.add_argument(
        "--base",
        choices=("debian",),
        help="debian: bootstrap, with nvcc from Debian's archive (default: the images that the pins name)",
    )
    add.add_argument("wheel", type=Path, metavar="WHEEL", help="the file")
    pin.add_argument(
        "wheel", metavar="SHA256|WHEEL", help="a hash that `add` or `show` printed, or a file to add first"
    )
    for verb, run in ((compile_, _compile), (show, _show), (add, _add), (pin, _pin)):
        verb.add_argument("stack", nargs="?", default="cu121", help="a [stack.NAME] of stacks.toml (default: cu121)")
        verb.set_defaults(verb=run)


def _show(arguments: argparse.Namespace) -> int:
    from verlstack import lockfile  # noqa: PLC0415
    from verlstack.extension import status  # noqa: PLC0415

    with workshop(arguments) as (stack, shop):
        report = status.status(stack, lockfile.load(shop.constraints, stack), shop)
    _print(arguments, report, lambda: "\n".join(report.lines))
    return 0


def _compile(arguments: argparse.Namespace) -> int:
    from verlstack import compiling, lockfile  # noqa: PLC0415

    with workshop(arguments) as (stack, shop):
        lock = lockfile.load(shop.constraints, stack)
        note = compiling.compile_wheel(stack, lock, shop, base=arguments.base, jobs=arguments.jobs)
    _print(arguments, note, lambda: _added(note))
    return 0


def _added(note: Shelved) -> str:
    lines = [f"{note.sha256}  {note.wheel}", f"{note.size / 1e6:.1f} MB, key {note.facts.key}"]
    cost = note.cost
    if cost.seconds and cost.peak_mib:
        lines.append(f"{cost.seconds / 60:.0f} min, {cost.jobs} jobs, at most {cost.peak_mib:.0f} MiB each")
    return "\n".join(lines)


def _add(arguments: argparse.Namespace) -> int:
    from verlstack import lockfile  # noqa: PLC0415
    from verlstack.extension import add  # noqa: PLC0415

    with workshop(arguments) as (stack, shop):
        note = add.add(arguments.wheel, stack, lockfile.load(shop.constraints, stack), shop)
    _print(arguments, note, lambda: _added(note))
    return 0


def _pin(arguments: argparse.Namespace) -> int:
    from verlstack import lockfile, repin  # noqa: PLC0415
    from verlstack.extension import add  # noqa: PLC0415

    with workshop(arguments) as (stack, shop):
        lock = lockfile.load(shop.constraints, stack)
        note = add.named(arguments.wheel, stack, lock, shop)
        values: dict[str, str | int] = {"wheel": note.wheel, "wheel_sha256": note.sha256, "wheel_size": note.size}
        values["wheel_compiler"] = note.facts.compiler
        made = repin.repin(stack.name, f"stack.{stack.name}.flash_attn", values, shop)
    result = {"stack": made.stack, "lock": f"sha256:{made.digest}", "wheel_sha256": note.sha256}
    _print(arguments, result, lambda: f"pinned {note.wheel}\nlock sha256:{made.digest}")
    return 0


def _print(arguments: argparse.Namespace, result: object, text: Callable[[], str]) -> None:
    print(canonical.dumps(result).decode() if arguments.json else text())
