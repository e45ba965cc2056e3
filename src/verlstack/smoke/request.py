"""What a smoke run shall be: checked, and turned into the command of each container; nothing is started here."""

from __future__ import annotations

from dataclasses import dataclass

from verlstack.compose import SMOKE_ROOT
from verlstack.errors import UsageError

REPORT = "/tmp/smoke-report"  # noqa: S108 - inside a container of ours, where nobody else is
PYTHON = "/opt/verl/bin/python"
PORT = 29400  # torchrun's own default for a rendezvous; each network of containers has all ports to itself
PATIENCE = 4 * 3600.0  # seconds for all of it; run.py ends each number of ranks by itself, in minutes
ALL_GPUS = -1  # as an engine counts
_SHM_CPU, _SHM_GPU = 1 << 30, 8 << 30  # bytes; NCCL wants tens of MB a rank, Ray's object store 100 MB


@dataclass(frozen=True, kw_only=True)
class Request:
    """One smoke run.

    Attributes:
        ranks: numbers of ranks to run on, all nodes together; None: what fits, as `run.py` finds.
        gpus: 0 (CPU), so many GPUs, all nodes together, or ALL_GPUS.
        nodes: machines under Slurm, else containers that pretend to be some.
        quick: leave out the slow tests.
        only: run only tests whose names match this, as pytest's -k.
        cannot: what the pins say that the image cannot do; None where nothing is said of it.
    """

    ranks: tuple[int, ...] | None = None
    gpus: int = 0
    nodes: int = 1
    quick: bool = False
    only: str | None = None
    cannot: tuple[str, ...] | None = None

    def check(self, *, scheduled: bool = False) -> None:
        """Refuse what cannot work, before anything is started.

        Args:
            scheduled: Slurm gives each node its GPUs; else the nodes are containers that share this machine's.

        Raises:
            UsageError: more ranks than GPUs, or ranks or GPUs that do not spread over the nodes.
        """
        most = max(self.ranks or (1,))
        if 0 < self.gpus < most:
            raise UsageError(
                f"{most} ranks on {self.gpus} GPU{'s' * (self.gpus > 1)}: NCCL gives each rank one of its own",
                todo="ask for fewer --ranks or more --gpus, or leave --gpus out to run on the CPU",
            )
        if self.nodes == 1:
            return
        if self.gpus == ALL_GPUS and scheduled:
            pass  # on each node all that the job has there
        elif self.gpus == ALL_GPUS:
            raise UsageError(
                "`--gpus all` with several nodes is for --launcher slurm",
                todo=f"give a number, a multiple of {self.nodes}: each node, a container here, gets its own",
            )
        elif self.gpus % self.nodes:
            raise UsageError(
                f"the GPUs do not spread over {self.nodes} nodes",
                todo=f"give --gpus as a multiple of {self.nodes}: each node gets its own",
            )
        if self.ranks and not any(n % self.nodes == 0 for n in self.ranks):
            raise UsageError(
                f"no number of ranks is a multiple of {self.nodes} nodes",
                todo=f"give --ranks {self.nodes} or {2 * self.nodes}",
            )

    @property
    def shm_bytes(self) -> int:
        """Size of /dev/shm."""
        return _SHM_GPU if self.gpus else _SHM_CPU

    def gpus_of(self, node: int) -> int | tuple[int, ...]:
        """What one container gets: GPUs by index where several share this machine."""
        if self.nodes == 1 or not self.gpus:
            return self.gpus
        each = self.gpus // self.nodes
        return tuple(range(node * each, (node + 1) * each))

    def environment(self, image: str) -> dict[str, str]:
        """What the tests are told: which image it is, what it is said to lack, and not to look for GPUs unasked."""
        said = {"VERLSTACK_IMAGE": image}
        if self.cannot is not None:
            said["SMOKE_CANNOT"] = ",".join(self.cannot)
        return said if self.gpus else {**said, "SMOKE_DEVICE": "cpu"}

    def command(self, node: int = 0, *, host: str = "localhost", report: str = REPORT) -> tuple[str, ...]:
        """The command of one node.

        Args:
            node: 0 … nodes - 1.
            host: name of node 0 for the others.
            report: folder of the report, inside.
        """
        words = [PYTHON, f"/{SMOKE_ROOT}/run.py", "--report", report]
        if self.ranks:
            words += ["--ranks", ",".join(map(str, self.ranks))]
        if self.nodes > 1:
            words += ["--nodes", str(self.nodes), "--node", str(node), "--rendezvous", f"{host}:{PORT}"]
        return (*words, *self.more)

    @property
    def more(self) -> tuple[str, ...]:
        """Which tests: words for run.py that are the same whoever starts it; one word, lest EXPR be an option."""
        return (*(["--quick"] if self.quick else []), *([f"-k{self.only}"] if self.only else []))
