"""The smoke tests without an engine: in the unpacked image, in namespaces of its own, on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verlstack import shell, told, unpack
from verlstack.smoke import collect
from verlstack.smoke.request import PATIENCE, REPORT
from verlstack.unpacked import OUTSIDE, STRANGER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from verlstack.smoke.request import Request
    from verlstack.unpacked import Root


def run(
    root: Root,
    name: str,
    request: Request,
    folder: Path,
    say: Callable[[str], object],
) -> int:
    """Run the tests in the image as a stranger, hand on what they say, and bring the report into `folder`.

    Args:
        root: the unpacked image.
        name: what the report calls the image.
        request: the run; one node, no GPUs.
        folder: for the report.
        say: called with each line.

    Returns:
        Exit status of the tests: 0 passed, 1 failed, 2 could not be run.

    Raises:
        ProofError, StorageError: as `collect.from_folder`.
    """

    def hand_on(line: str) -> None:
        say(told.plain(line))

    words = root.command(request.command(), user=STRANGER, environment=request.environment(name))
    done = shell.follow(words, env=OUTSIDE, cwd=folder, each=hand_on, timeout=PATIENCE)
    with collect.arriving(folder) as fresh:
        collect.from_folder(unpack.resolve(root.folder, REPORT), fresh)
    return done.returncode
