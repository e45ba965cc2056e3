"""Plan the runs of the smoke tests: which numbers of ranks on which nodes, and the words that start them."""

import argparse
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from smoke.doctor import Finding

HUNG = 124  # exit status of a rank whose test did not end, as of coreutils' `timeout`
LITTLE_SHARED_MEMORY = 64 << 20  # bytes of /dev/shm; an engine's default, on which NCCL stops


class PlanError(ValueError):
    """The runs that are asked for cannot be; one line that says why."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One node, as it introduces itself.

    Attributes:
        node: its number, from 0.
        host: its host name.
        gpus: how many GPUs it will use; 0 for a run on the CPU.
        findings: of verldoctor.
    """

    node: int
    host: str
    gpus: int
    findings: tuple[Finding, ...] = ()

    def __str__(self) -> str:
        return f"node {self.node} ({self.host})"

    @property
    def stops(self) -> bool:
        """Whether verldoctor found something for which no test need run."""
        return any(finding.stops for finding in self.findings)


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Where the nodes of one run meet.

    Attributes:
        nodes: how many there are.
        node: which one this is.
        host: name or address of node 0.
        port: where its torchrun listens during this run.
        id: tells this run from all others.
        address: this node's own address, by which the others reach it.
        patience: seconds to wait for the other nodes.
    """

    nodes: int
    node: int
    host: str
    port: int
    id: str
    address: str
    patience: float


def endpoint(text: str) -> tuple[str, int]:
    """Take `HOST:PORT` apart; an IPv6 address stands in brackets.

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise argparse.ArgumentTypeError("a host and a port, such as node0:29400")
    return host, int(port)


def numbers(text: str) -> list[int]:
    """Take `1,2,4` apart.

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError("whole numbers from 1 on, such as 1,2,4")
    return [int(part) for part in parts]


def runs(asked: Sequence[int] | None, members: Sequence[Member]) -> tuple[list[int], list[int]]:
    """Which total numbers of ranks to run, and which of those asked for must be left out.

    A run has as many ranks on each node, so the nodes' number divides it. Without a wish: on GPUs 1, 2, 4, … ranks
    per node up to all of them, on the CPU the same up to 4 ranks on one node and 2 on each of several.

    Raises:
        PlanError: no run is left, some nodes have GPUs and others none, or a node has fewer than a run needs.
    """
    nodes = len(members)
    fewest = min(members, key=lambda member: member.gpus)
    if fewest.gpus == 0 and any(member.gpus for member in members):
        most = max(members, key=lambda member: member.gpus)
        message = f"{fewest} has no GPU, {most} has {most.gpus}"
        raise PlanError(f"{message}: all nodes must be alike, or set SMOKE_DEVICE=cpu on each")
    if asked is None:
        most_here = fewest.gpus or (4 if nodes == 1 else 2)
        asked = [nodes << power for power in range(most_here.bit_length())]
    chosen = [ranks for ranks in dict.fromkeys(asked) if ranks % nodes == 0]
    if not chosen:
        raise PlanError(f"--ranks {','.join(map(str, asked))}: none is a multiple of the {nodes} nodes")
    here = max(chosen) // nodes
    if 0 < fewest.gpus < here:
        message = f"{max(chosen)} ranks are {here} on each node, but {fewest} has {fewest.gpus} GPUs"
        raise PlanError(f"{message}: start fewer ranks, or set SMOKE_DEVICE=cpu to run on the CPU")
    return chosen, [ranks for ranks in dict.fromkeys(asked) if ranks % nodes]


def command(ranks: int, pytest: Sequence[str], logs: Path, meeting: Meeting | None) -> list[str]:
    """The words that start this node's part of a run: pytest alone, or below torchrun.

    Args:
        ranks: on all nodes together.
        pytest: `pytest` and its arguments.
        logs: folder for what the ranks print.
        meeting: None for a run on this machine alone.
    """
    if ranks == 1:
        return [sys.executable, "-m", *pytest]
    here = ranks // (meeting.nodes if meeting else 1)
    words = [sys.executable, "-m", "torch.distributed.run", *(_together(meeting) if meeting else _alone())]
    # --tee: one rank on the terminal is enough; --monitor-interval: a dead rank is seen after one second, not five
    words += ["--nproc-per-node", str(here), "--max-restarts", "0", "--monitor-interval", "1"]
    return [*words, "--log-dir", str(logs), "--redirects", "3", "--tee", "0:3", "-m", *pytest]


def _alone() -> list[str]:
    return ["--standalone", "--local-addr", "localhost"]


def _together(meeting: Meeting) -> list[str]:
    """The node's address is given: its name often has none, or 127.0.1.1, and then the others do not reach it."""
    host = f"[{meeting.host}]" if ":" in meeting.host else meeting.host
    patience = max(1, int(meeting.patience))
    conf = f"join_timeout={patience},read_timeout={patience},is_host={int(meeting.node == 0)}"
    words = ["--nnodes", str(meeting.nodes), "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{host}:{meeting.port}"]
    return [*words, "--rdzv-id", meeting.id, "--rdzv-conf", conf, "--local-addr", meeting.address]


def environment(given: Mapping[str, str], here: int, cores: int, interface: str | None) -> dict[str, str]:
    """Variables of the ranks of this node; what the user has set stays, but for options of pytest.

    One core per rank where there are not more, so that ranks do not fight over them. Gloo else listens on the address
    of the host's own name, which on many machines is 127.0.1.1.

    Args:
        given: this process's own.
        here: how many ranks this node runs.
        cores: of this node.
        interface: the network interface by which the other nodes are reached; None where there are none.
    """
    # ERROR: torch 2.3's FSDP makes C++ warn of its own weak references, dozens of lines that tell a user nothing
    own = {"OMP_NUM_THREADS": str(max(1, cores // here)), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    if interface:
        own["GLOO_SOCKET_IFNAME"] = interface
    # options of pytest that nobody sees could leave tests out, and the report would not say so
    kept = {name: value for name, value in given.items() if name not in {"PYTEST_ADDOPTS", "PYTEST_PLUGINS"}}
    # unbuffered: one sees what goes on, and what a rank wrote before it was killed
    return {**own, **kept, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}


def how(status: int, patience: float) -> str:
    """An exit status in words."""
    if status < 0:
        try:
            return f"killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"killed by signal {-status}"
    if status == HUNG:
        return f"hung: no end of a test after {patience:g} s"
    return f"ended with exit status {status}"


def size_of(folder: str) -> int:
    """Bytes of the file system that is mounted there; 0 where there is no such folder."""
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return 0


def warnings(*, gpus: int, shared_memory: int) -> list[str]:
    """What will go wrong on this node, although one may try."""
    if not shared_memory:
        return ["there is no /dev/shm: NCCL, Ray and torch's data loaders want it; mount one, 1 GB or more"]
    if gpus and shared_memory <= LITTLE_SHARED_MEMORY:
        size = f"/dev/shm has {shared_memory >> 20} MB, too little for NCCL between processes"
        return [f"{size}: start the container with --shm-size 1g or more, or --ipc=host"]
    return []
