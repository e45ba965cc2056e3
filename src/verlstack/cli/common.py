"""What every verb of the command line needs first: the folder of the pins, a place for progress, the workshop."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from verlstack.cache import Cache
from verlstack.errors import UsageError
from verlstack.progress import Bars, Lines

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from verlstack.pins import Stack
    from verlstack.progress import Progress
    from verlstack.workshop import Workshop


def project(arguments: argparse.Namespace) -> Path:
    """Folder of the pins: given, or `constraints` here or in a folder above."""
    if arguments.constraints:
        return Path(arguments.constraints).absolute()
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / "constraints" / "stacks.toml").is_file():
            return folder / "constraints"
    raise UsageError(
        "no constraints/stacks.toml here or above",
        where=str(Path.cwd()),
        todo="run in a checkout, or pass --constraints",
    )


@contextlib.contextmanager
def shown_progress() -> Iterator[Progress]:
    """Progress bars on a terminal, plain lines elsewhere."""
    if sys.stderr.isatty():
        from rich.console import Console  # noqa: PLC0415 - 0.1 s that a log does not need

        bars = Bars(Console(stderr=True))
        try:
            yield bars
        finally:
            bars.close()
    else:
        yield Lines(sys.stderr)


@contextlib.contextmanager
def workshop(arguments: argparse.Namespace) -> Iterator[tuple[Stack, Workshop]]:
    """The stack that the arguments name and the surroundings of the command; the cache is in use meanwhile.

    Raises:
        UsageError: no pins here or above.
        PinsError: no such stack, or the pins are wrong.
        StorageError: the cache cannot be used.
    """
    from verlstack import pins  # noqa: PLC0415
    from verlstack.workshop import Workshop  # noqa: PLC0415

    constraints = project(arguments)
    stack = pins.load(constraints / "stacks.toml", arguments.stack)
    cache = Cache.from_environment(os.environ)
    with cache.use(), shown_progress() as progress:
        yield (
            stack,
            Workshop(
                constraints=constraints,
                smoke_tests=constraints.parent / "smoke_tests",
                cache=cache,
                env=dict(os.environ),
                progress=progress,
                workers=arguments.jobs or min(len(os.sched_getaffinity(0)), 8),
                offline=arguments.offline,
                python_tree=arguments.python_tree,
            ),
        )


def dist(arguments: argparse.Namespace, shop: Workshop) -> Path:
    """The folder of images: given, or `dist` beside the pins."""
    return Path(arguments.dist).absolute() if arguments.dist else shop.constraints.parent / "dist"
