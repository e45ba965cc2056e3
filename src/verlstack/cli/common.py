"""What every verb of the command line needs first: the folder of the pins, a place for progress, the workshop."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
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

_STACK = re.compile(r"[A-Za-z0-9._-]+")


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

    constraints = project(arguments)
    stack = pins.load(constraints / "stacks.toml", arguments.stack)
    with _opened(arguments, constraints) as shop:
        yield stack, shop


@contextlib.contextmanager
def surroundings(arguments: argparse.Namespace, *images: str) -> Iterator[Workshop]:
    """As `workshop`, for a verb about images that say their own stack: whoever only pulls has no pins.

    Args:
        arguments: of the command line.
        images: what the user calls them; where such a name leads nowhere, the error tells which stacks there are.

    Raises:
        StorageError: the cache cannot be used.
    """
    try:
        constraints = project(arguments)
    except UsageError:
        constraints = Path.cwd() / "constraints"  # where there is none; images are looked for in ./dist
    with _opened(arguments, constraints) as shop, stacks_wanted(arguments, *images):
        yield shop


@contextlib.contextmanager
def _opened(arguments: argparse.Namespace, constraints: Path) -> Iterator[Workshop]:
    from verlstack.workshop import Workshop  # noqa: PLC0415

    cache = Cache.from_environment(os.environ)
    with cache.use(), shown_progress() as progress:
        yield Workshop(
            constraints=constraints,
            smoke_tests=constraints.parent / "smoke_tests",
            cache=cache,
            env=dict(os.environ),
            progress=progress,
            workers=arguments.jobs or min(len(os.sched_getaffinity(0)), 8),
            offline=arguments.offline,
            python_tree=arguments.python_tree,
        )


@contextlib.contextmanager
def stacks_wanted(arguments: argparse.Namespace, *words: str) -> Iterator[None]:
    """Where a name like a stack's leads to no image, say which stacks there are, or that no pins were found either."""
    from verlstack import pins  # noqa: PLC0415

    try:
        yield
    except UsageError as e:
        word = next((x for x in words if _STACK.fullmatch(x) and repr(x) in e.what), None)
        if e.where or word is None:  # about a file, or a name that no stack has
            raise
        try:
            path = project(arguments) / "stacks.toml"
        except UsageError as no_pins:
            todo = f"{no_pins.todo}; or {e.todo}"
            raise UsageError(f"{e.what}; {no_pins.what}", where=no_pins.where, todo=todo) from e
        if word in (known := pins.names(path)):
            raise
        near = difflib.get_close_matches(word, known, n=1)
        todo = f"did you mean {near[0]!r}? If not, {e.todo}" if near else f"{e.todo}"
        raise UsageError(f"{e.what}; stacks: {', '.join(known) or 'none'}", where=str(path), todo=todo) from e


def dist(arguments: argparse.Namespace, shop: Workshop) -> Path:
    """The folder of images: given, or `dist` beside the pins."""
    return Path(arguments.dist).absolute() if arguments.dist else shop.constraints.parent / "dist"
