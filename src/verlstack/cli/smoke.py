"""The verb that runs the smoke tests inside an image."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from verlstack import canonical
from verlstack.cli.common import project, shown_progress, stacks_wanted
from verlstack.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from verlstack.smoke.request import Request
    from verlstack.smoke.run import Verdict


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    """Add the verb to the parser."""
    verb = verbs.add_parser(
        "smoke", parents=[common], help="run the smoke tests inside an image, on CPU or GPUs, and report"
    )
    verb.add_argument(
        "image", nargs="?", default="cu121", help="a stack that was built, a layout's folder, or an engine's image"
    )
    verb.add_argument("--gpus", type=_gpus, default=0, metavar="N|all", help="GPUs for it (default: none, the CPU)")
    verb.add_argument(
        "--ranks",
        type=_numbers,
        metavar="N,…",
        help="numbers of ranks (default: 1,2,4, or powers of two up to the GPUs)",
    )
    verb.add_argument("--nodes", type=_node_count, default=1, metavar="N", help="containers on a network of their own")
    verb.add_argument(
        "--launcher",
        choices=("engine", "slurm"),
        default="engine",
        help="who starts it: a container engine (without one the image is unpacked), or Slurm (default: engine)",
    )
    verb.add_argument("--quick", action="store_true", help="leave out the slow tests")
    verb.add_argument("--report", type=Path, metavar="DIR", help="folder of the report (default: smoke-report)")
    verb.add_argument(
        "--record",
        action="store_true",
        help="keep what the stack can do beside its lock, for `verlstack stacks`",
    )
    verb.add_argument("-k", dest="only", metavar="EXPR", help="only tests whose names match, as pytest's -k")
    verb.add_argument("--dist", type=Path, metavar="DIR", help="where images are (default: dist beside constraints)")
    verb.set_defaults(verb=_smoke)


def _gpus(text: str) -> int:
    from verlstack.smoke.request import ALL_GPUS  # noqa: PLC0415

    return ALL_GPUS if text == "all" else _node_count(text)


def _node_count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= _MANY):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {_MANY}")
    return int(text)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(sorted({_node_count(part) for part in text.split(",")}))


_MANY = 1024


def _smoke(arguments: argparse.Namespace) -> int:
    """0: passed; 1: something failed, or could not be run."""
    from verlstack.smoke.request import Request  # noqa: PLC0415

    request = Request(
        ranks=arguments.ranks,
        gpus=arguments.gpus,
        nodes=arguments.nodes,
        quick=arguments.quick,
        only=arguments.only,
        cannot=_cannot(arguments),
    )
    request.check(scheduled=arguments.launcher == "slurm")
    told: list[Verdict] = []

    def tell(verdict: Verdict) -> None:
        if arguments.record:
            _record(arguments, verdict.folder)
        _print(verdict, as_json=arguments.json)
        told.append(verdict)

    try:
        with stacks_wanted(arguments, arguments.image):
            verdict = _run(arguments, request, tell)
    except KeyboardInterrupt:
        if not told:
            raise
        _say("verlstack: stopped while the image was removed; the verdict stands, and the next run removes the rest")
        return 128 + signal.SIGINT
    return 0 if verdict.passed else 1


def _run(arguments: argparse.Namespace, request: Request, tell: Callable[[Verdict], object]) -> Verdict:
    from verlstack.cache import Cache  # noqa: PLC0415
    from verlstack.engine import Engine  # noqa: PLC0415
    from verlstack.smoke import run  # noqa: PLC0415

    report = (arguments.report or Path("smoke-report")).absolute()
    folder = _layout(arguments)
    cache = Cache.from_environment(os.environ)
    start: Callable[..., Verdict]
    if arguments.launcher == "slurm":
        start = partial(run.scheduled, arguments.image, folder)
    elif folder is None:
        engine = Engine.connect(os.environ)
        return run.reference(arguments.image, request, report, engine=engine, say=_say, tell=tell)
    else:
        start = partial(run.layout, folder, engine=Engine.connect(os.environ))
    with cache.use(), contextlib.ExitStack() as shown:
        progress = shown.enter_context(shown_progress())

        def tell_below(verdict: Verdict) -> None:
            shown.close()  # bars would take what goes to standard output
            tell(verdict)

        return start(request, report, cache=cache, progress=progress, say=_say, tell=tell_below)


def _cannot(arguments: argparse.Namespace) -> tuple[str, ...] | None:
    """What the pins say that the stack cannot do; None where the image is not named as a stack."""
    from verlstack import capabilities, pins  # noqa: PLC0415

    try:
        path = project(arguments) / "stacks.toml"
    except UsageError:
        known = False
    else:
        known = arguments.image in pins.names(path)
    if known:
        return tuple(capabilities.declared(path, arguments.image))
    if arguments.record:
        raise UsageError(f"{arguments.image} is no stack, and only a stack has a record", todo="name a stack")
    return None


def _record(arguments: argparse.Namespace, report: Path) -> None:
    from verlstack import capabilities, lockfile, pins  # noqa: PLC0415

    constraints = project(arguments)
    lock = lockfile.load(constraints, pins.load(constraints / "stacks.toml", arguments.image))
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    _say(f"recorded: {capabilities.record(constraints, lock, report, date=today)}")


def _layout(arguments: argparse.Namespace) -> Path | None:
    """The folder of the layout that is meant, or None: then it is the name of an image in an engine."""
    given = Path(arguments.image)
    if (given / "oci-layout").is_file():
        return given
    try:
        constraints = project(arguments)
    except UsageError:
        return None  # outside of a checkout there are no stacks
    dist = Path(arguments.dist).absolute() if arguments.dist else constraints.parent / "dist"
    folder = dist / str(arguments.image)
    if not (folder / "oci-layout").is_file():
        return None
    _check_lock(constraints, arguments.image, folder)
    return folder


def _check_lock(constraints: Path, name: str, folder: Path) -> None:
    """An image that is asked for by its stack must be that of the present lock, as for `verlstack prove`."""
    from verlstack import lockfile, oci, pins, prove  # noqa: PLC0415

    if name not in pins.names(constraints / "stacks.toml"):
        return  # dist/cu121-fast, or a base
    lock = lockfile.load(constraints, pins.load(constraints / "stacks.toml", name))
    prove.check_lock(oci.read_layout(folder)[2], lock, folder)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _print(verdict: Verdict, *, as_json: bool) -> None:
    if as_json:
        print(canonical.dumps(verdict).decode(), flush=True)
        return
    print(f"{verdict.image}\n{verdict.headline}")
    print(f"report: {verdict.folder}/smoke.html", flush=True)
