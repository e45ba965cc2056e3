"""The ranks of this run: their device, their process group, and what each of them thinks of a test."""

import os
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

# A collective of these tiny models takes milliseconds. A rank that waits this long waits for one that failed or died.
COLLECTIVE = timedelta(seconds=60)
# Longer than COLLECTIVE: a rank that hangs in a collective still gets to say that it failed. And longer than a test may
# take: a rank that hangs is ended by its own watch (smoke.watch), which knows where it hangs.
MARGIN = timedelta(seconds=30)


class NotEnoughGpusError(RuntimeError):
    """More ranks on this machine than GPUs."""


class SilentRankError(RuntimeError):
    """A rank has not said how its test went: it is dead, or cut off."""


@dataclass(kw_only=True)
class World:
    """One process of the run.

    Attributes:
        rank: 0 … size - 1, over all nodes.
        local_rank: from 0 on each node.
        size: number of ranks on all nodes.
        device: where this rank computes.
        store: what the ranks talk through besides the process group, so that a broken group can still be reported.
        groups: how many process groups were made; each has its own keys in the store.
    """

    rank: int
    local_rank: int
    size: int
    device: torch.device
    store: Any
    groups: int = field(default=0)

    @property
    def on_gpu(self) -> bool:
        """Whether this run says anything about GPUs."""
        return self.device.type == "cuda"

    @property
    def backend(self) -> str:
        """What carries the collectives: NCCL between GPUs, gloo between CPUs."""
        return "nccl" if self.on_gpu else "gloo"

    def start_group(self) -> None:
        """Make the default process group; on GPUs tensors of the CPU go over gloo."""
        name = "cpu:gloo,cuda:nccl" if self.on_gpu else "gloo"
        store = dist.PrefixStore(f"group-{self.groups}", self.store)
        self.groups += 1
        dist.init_process_group(name, store=store, rank=self.rank, world_size=self.size, timeout=COLLECTIVE)

    def stop_group(self) -> None:
        """End the default process group, if there is one."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def agree(self, key: str, mine: str) -> list[str]:
        """Tell the others `mine` and return what each rank said, in the order of ranks.

        Raises:
            SilentRankError: a rank said nothing for as long as a test may take, or the store is gone with rank 0.
        """
        said = []
        try:
            self.store.set(f"said/{key}/{self.rank}", mine)
            for rank in range(self.size):
                said.append(self.store.get(f"said/{key}/{rank}").decode())  # noqa: PERF401  how far it came counts
        except RuntimeError as e:
            raise SilentRankError(f"rank {len(said)} does not say how this test went: {e}") from e
        return said


def join(patience: float) -> World:
    """Find out where we are: one of torchrun's processes, or a plain process that is a world of one.

    Args:
        patience: seconds that a test may take.

    Raises:
        NotEnoughGpusError: more ranks here than GPUs. NCCL cannot share one, and the CPU would prove something else.
    """
    device = _device()
    if "RANK" not in os.environ:
        return World(rank=0, local_rank=0, size=1, device=device, store=dist.HashStore())
    if os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"]:
        # torchrun of torch 2.4.0 names the host here, whatever --local-addr says (RendezvousStoreInfo.build in
        # distributed/elastic/rendezvous/api.py); in a container without a network that name has no address.
        os.environ["MASTER_ADDR"] = "localhost"
    agreement = max(COLLECTIVE, timedelta(seconds=patience)) + MARGIN
    store, rank, size = next(dist.rendezvous("env://", timeout=agreement))
    store.set_timeout(agreement)
    return World(rank=rank, local_rank=int(os.environ["LOCAL_RANK"]), size=size, device=device, store=store)


def _device() -> torch.device:
    """SMOKE_DEVICE=cpu keeps GPUs out; otherwise a GPU is used where there is one."""
    if os.environ.get("SMOKE_DEVICE") == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    local, here = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if here > torch.cuda.device_count():
        message = f"{here} ranks on this machine but {torch.cuda.device_count()} GPUs: start fewer ranks"
        raise NotEnoughGpusError(f"{message}, or set SMOKE_DEVICE=cpu to run on the CPU")
    torch.cuda.set_device(local)
    return torch.device("cuda", local)
