"""How FSDP lays parameters out over ranks, derived from their sizes alone, and what is really stored."""

import contextlib
import gc
from collections.abc import Iterable, Sequence

import torch

ALIGNMENT = (
    16  # bytes; FSDP aligns each parameter so when use_orig_params is True (_flat_param.py, torch 2.1 and later)
)


def layout(sizes: Sequence[int], *, ranks: int, aligned: bool, element: int = 4) -> list[list[bool]]:
    """One flat parameter cut over `ranks`: for each rank, which of its elements are real and which are padding.

    Args:
        sizes: elements of each parameter, in the order of `named_parameters()`.
        ranks: how many ranks it is cut over; 1 is NO_SHARD.
        aligned: use_orig_params: padding goes before a parameter that would not start at a multiple of ALIGNMENT
            bytes, and after the last one up to a multiple of `ranks`.
        element: bytes of one element.

    Returns:
        `ranks` lists of equal length ceil(total / ranks): torch.chunk cuts into pieces of that size, and FSDP fills
        the short or missing last ones up.
    """
    step = ALIGNMENT // element if aligned else 1
    flat: list[bool] = []
    for size in sizes:
        flat += [False] * (-len(flat) % step) + [True] * size
    if aligned:
        flat += [False] * (-len(flat) % ranks)
    shard = -(-len(flat) // ranks)
    flat += [False] * (shard * ranks - len(flat))
    return [flat[rank * shard : (rank + 1) * shard] for rank in range(ranks)]


def units(model: torch.nn.Module, block: type[torch.nn.Module]) -> list[list[int]]:
    """The sizes of the flat parameters that auto-wrapping `block` leads to: the root's own first, then each block's."""
    blocks = [module for module in model.modules() if isinstance(module, block)]
    inner = {id(p) for module in blocks for p in module.parameters()}
    root = [p.numel() for p in model.parameters() if id(p) not in inner]
    return [root, *([p.numel() for p in module.parameters()] for module in blocks)]


def stored(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the storages behind `tensors`, each counted once: what is held, not what is in view."""
    storages = {s.data_ptr(): s.nbytes() for t in tensors if (s := t.untyped_storage()).nbytes()}
    return sum(storages.values())


class Ledger:
    """Bytes of all tensors that Python can reach and that were made inside of `with Ledger() as ledger`.

    Sharded and unsharded parameters, gradients, optimizer state, buffers; of what autograd keeps for the backward pass
    those tensors that Python once had in hand, so a whole model's forward pass must be measured to take them off.
    """

    def __enter__(self) -> "Ledger":  # noqa: PYI034  typing.Self came with Python 3.11
        """Put everything that exists aside, so that later looks see new objects alone, and are quick."""
        gc.collect()
        gc.freeze()
        return self

    def __exit__(self, *_: object) -> None:
        gc.unfreeze()

    def bytes(self) -> int:
        """Bytes held now, each storage counted once."""
        gc.collect()
        found: dict[int, int] = {}
        for thing in gc.get_objects():
            # type() and not isinstance(): proxies and lazy modules run code when asked for their class
            if issubclass(type(thing), torch.Tensor):
                with contextlib.suppress(RuntimeError):  # a tensor whose storage is gone, or never was, holds nothing
                    storage = thing.untyped_storage()
                    found[storage.data_ptr()] = storage.nbytes()
        return sum(found.values())
