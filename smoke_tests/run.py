"""Run the smoke tests on 1, 2, 4, … ranks of this machine, or of several at once, and write one report.

`python run.py --ranks 1,2,4 --report DIR`; on several nodes the same on each, with
`--nodes N --node K --rendezvous HOST:PORT`, where HOST is node 0, which writes the report.
What it does not know goes to pytest.
"""

import argparse
import dataclasses
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import launch
from launch import Member
from smoke import doctor, ended, nodes, report, together
from smoke.part import Here, Run

PROBE = 120.0  # seconds to import torch and count GPUs; a broken driver can hang there
OURS = re.compile(r"ranks-\d+(\.json|\.txt|-logs|-so-far\.jsonl)")  # of an earlier run; nothing else is removed
COUNT_GPUS = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"


class CannotStartError(RuntimeError):
    """This environment cannot run the tests; one line that says why."""


def main(arguments: Sequence[str]) -> int:
    """Start pytest once per number of ranks; 0 when nothing failed, 1 when something did, 2 when it cannot start."""
    options, more = _parser().parse_known_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was started ends too
    try:
        here = _here(options, more)
        return _alone(here) if options.nodes == 1 else together.run(here, lambda *found: _report(options, *found))
    except (CannotStartError, launch.PlanError, nodes.MeetingError) as e:
        print(e, file=sys.stderr)
        return 2
    except nodes.GoneError as e:
        print(f"node 0 has ended: {e}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Everything else is passed on to pytest.", allow_abbrev=False
    )
    default = "on GPUs 1, 2, 4, … up to all of them, else 1,2,4"
    parser.add_argument("--ranks", type=launch.numbers, help=f"on all nodes together, such as 1,2,4 ({default})")
    parser.add_argument("--report", type=Path, default=Path("smoke-report"), help="folder of the report")
    parser.add_argument("--quick", action="store_true", help="leave out the slow tests")
    parser.add_argument(
        "--patience", type=float, default=300.0, metavar="SECONDS", help="a test that takes longer hangs (300)"
    )
    several = parser.add_argument_group("several nodes")
    several.add_argument("--nodes", type=int, default=1, help="how many (1)")
    several.add_argument("--node", type=int, help="which of them this is, from 0")
    several.add_argument(
        "--rendezvous", type=launch.endpoint, metavar="HOST:PORT", help="node 0, and a free port there"
    )
    several.add_argument(
        "--wait", type=float, default=120.0, metavar="SECONDS", help="how long for the other nodes (120)"
    )
    return parser


def _here(options: argparse.Namespace, more: Sequence[str]) -> Here:
    """Look at this environment, and make place for the report.

    Raises:
        CannotStartError: something is missing, or the call is wrong.
    """
    if options.nodes < 1 or (options.nodes > 1 and (options.node is None or options.rendezvous is None)):
        raise CannotStartError("several nodes need --nodes N, --node K and --rendezvous HOST:PORT on each")
    if options.nodes == 1 and (options.node or options.rendezvous):
        raise CannotStartError("--node and --rendezvous are for several nodes: say how many with --nodes")
    if not 0 <= (options.node or 0) < options.nodes:
        raise CannotStartError(f"--node {options.node}: the nodes are 0 to {options.nodes - 1}")
    _check_modules()
    me = _me(options.node or 0)
    for line in launch.warnings(gpus=me.gpus, shared_memory=launch.size_of("/dev/shm")):
        print(f"warning: {line}", file=sys.stderr)
    folder = options.report.resolve()
    if me.node == 0:
        _clear(folder)
    if options.nodes > 1:
        folder /= f"node-{me.node}"
        _clear(folder)
    return Here(options=options, me=me, folder=folder, more=more)


def _check_modules() -> None:
    for name in ("torch", "pytest"):
        if importlib.util.find_spec(name) is None:
            raise CannotStartError(f"this environment has no {name}: {sys.executable} is not the image's python?")


def _me(node: int) -> Member:
    """This node; where verldoctor found what makes a run pointless its GPUs are not counted: torch may not import."""
    me = Member(node=node, host=socket.gethostname(), gpus=0, findings=doctor.examine())
    for line in doctor.lines(me.findings):
        print(line, file=sys.stderr)
    return me if me.stops else dataclasses.replace(me, gpus=_gpus())


def _gpus() -> int:
    """How many GPUs the ranks of this node may use, found out in a process that ends again.

    Raises:
        CannotStartError: torch does not work.
    """
    if os.environ.get("SMOKE_DEVICE") == "cpu":
        return 0
    try:
        done = subprocess.run(
            [sys.executable, "-c", COUNT_GPUS], capture_output=True, text=True, timeout=PROBE, check=False
        )
    except subprocess.TimeoutExpired:
        raise CannotStartError(f"torch does not count the GPUs within {PROBE:g} s: see nvidia-smi and dmesg") from None
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [launch.how(done.returncode, PROBE)])[-1]
        raise CannotStartError(f"this environment has no torch that works: {why}")
    return int(done.stdout.split()[-1])


def _clear(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if OURS.fullmatch(path.name):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _alone(here: Here) -> int:
    documents = [] if here.me.stops else _runs(here)
    sys.stdout.write(_report(here.options, [here.me], documents))
    return 0 if documents and all(document["ok"] for document in documents) else 1


def _runs(here: Here) -> list[dict[str, Any]]:
    chosen, _ = launch.runs(here.options.ranks, [here.me])
    if max(chosen) > 1 and not _localhost():
        todo = "torchrun needs it: /etc/hosts wants `127.0.0.1 localhost`"
        raise CannotStartError(f"`localhost` has no address here, and {todo}")
    documents = []
    for ranks in chosen:
        with Run(here, ranks, None) as run:
            run.wait(lambda _: None)
        documents.append(ended.joined(ranks, [(here.me, run.result())]))
    return documents


def _localhost() -> bool:
    """An engine writes /etc/hosts into a container; an unpacked image has none, and torchrun would hang."""
    try:
        return bool(socket.getaddrinfo("localhost", None))
    except OSError:
        return False


def _report(options: argparse.Namespace, members: Sequence[Member], documents: Sequence[dict[str, Any]]) -> str:
    """Write the report; what to print of it: without headline and image where verlstack says both."""
    image = os.environ.get("VERLSTACK_IMAGE", "")
    report.write_whole(options.report, members, documents, image=image)
    headline, named, rest = (options.report / "smoke.txt").read_text(encoding="utf-8").split("\n", 2)
    return rest if image else f"{headline}\n{named}\n{rest}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
