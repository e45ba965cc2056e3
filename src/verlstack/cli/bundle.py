"""The verb that writes all that an image is made from into one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from verlstack import canonical
from verlstack.cache import behind_links
from verlstack.cli.common import dist, workshop

if TYPE_CHECKING:
    import argparse


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    """Add the verb to the parser."""
    verb = verbs.add_parser(
        "bundle", parents=[common], help="all that an image is made from in one file, to make it again without network"
    )
    verb.add_argument("stack", help="a [stack.NAME] of stacks.toml, whose image is built")
    verb.add_argument("file", type=Path, metavar="FILE.tar", help="what to write")
    verb.add_argument("--dist", type=Path, metavar="DIR", help="where images are (default: dist beside constraints)")
    verb.set_defaults(verb=_bundle)


def _bundle(arguments: argparse.Namespace) -> int:
    from verlstack import bundle  # noqa: PLC0415

    target = behind_links(arguments.file.absolute(), todo="choose another FILE")
    with workshop(arguments) as (stack, shop):
        report = bundle.bundle(stack, shop, dist(arguments, shop) / stack.name, target)
    if arguments.json:
        print(canonical.dumps(report).decode())
        return 0
    print(f"{report.path}  sha256:{report.sha256}")
    print(f"{report.size / 1e6:.0f} MB, {report.members} files; makes {report.image} again, from lock {report.lock}")
    if not report.tool:
        print("without the wheels that the tool runs on: there is no tools.txt beside the pins")
    return 0
