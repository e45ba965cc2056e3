"""The verb that says what is in an image, for programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from verlstack.cache import atomic, behind_links
from verlstack.cli.common import dist, surroundings
from verlstack.errors import UsageError

if TYPE_CHECKING:
    import argparse

IMAGE = "a stack whose image is built, a folder with a layout, or sha256:… of one in dist"

_ELSEWHERE = "choose another --output"


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    """Add the verb to the parser."""
    verb = verbs.add_parser(
        "sbom", parents=[common], help="what is in an image, held against its layers: CycloneDX or SPDX"
    )
    verb.add_argument("image", nargs="?", default="cu121", metavar="STACK|LAYOUT", help=f"{IMAGE} (default: cu121)")
    verb.add_argument(
        "--format", choices=("cyclonedx", "spdx"), default="cyclonedx", help="CycloneDX 1.6 or SPDX 2.3, both in JSON"
    )
    verb.add_argument("--output", type=Path, metavar="FILE", help="where to write (default: stdout)")
    verb.add_argument("--dist", type=Path, metavar="DIR", help="where images are (default: dist beside constraints)")
    verb.set_defaults(verb=_sbom)


def layout(image: str, place: Path) -> Path:
    """The layout that a user names, `place` being the folder of images.

    Raises:
        UsageError: there is none.
    """
    from verlstack import images  # noqa: PLC0415

    if found := images.find(image, place):
        return found
    raise UsageError(f"there is no image {image!r} in {place}", todo=f"run `verlstack build`, or name {IMAGE}")


def _sbom(arguments: argparse.Namespace) -> int:
    from verlstack.sbom import make  # noqa: PLC0415

    target = behind_links(arguments.output.absolute(), todo=_ELSEWHERE) if arguments.output else None
    with surroundings(arguments, arguments.image) as shop:
        folder = layout(arguments.image, dist(arguments, shop))
        found = make.inventory(folder, shop.constraints, cache=shop.cache, workers=shop.workers, progress=shop.progress)
        text = make.FORMATS[arguments.format].document(found)
    if target:
        with atomic(target, todo=_ELSEWHERE) as out:
            out.write(text)
        print(f"{arguments.output}  {len(found.components)} components of {found.digest}", file=sys.stderr)
    else:
        sys.stdout.write(text.decode())
    return 0
