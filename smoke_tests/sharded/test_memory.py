"""Bytes per rank after wrapping, forward, backward and step follow from the parameter counts, and fall as 1/N."""

import pytest
import torch
from torch.distributed.fsdp import ShardingStrategy

from smoke import models, sizes, wrap

PHASES = ("wrap", "forward", "backward", "step")
FULL, GRAD_OP, NO = (ShardingStrategy[name] for name in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"))


def expected(units, strategy, ranks):
    """Bytes of parameters, gradients and Adam's state by phase, fp32.

    With u elements in a flat parameter and s = ceil(u / N) of them on a rank, S the sum of s over all of them:

    - wrap: 4 S
    - forward: the shards, and what is still whole when the forward pass ends. FULL_SHARD has freed each block and kept
      the root (it is needed first in the backward pass); SHARD_GRAD_OP has freed nothing. A whole one is N s elements.
    - backward: the shards and as many gradients, 8 S; everything whole is freed again
    - step: two more tensors of the shards' size (Adam's moments), 16 S

    NO_SHARD, and every strategy on one rank, keeps u elements and never has a second, whole copy: S = P.
    """
    if strategy is NO or ranks == 1:
        shards, kept = sum(map(sum, units)), 0
    else:
        parts = [len(sizes.layout(unit, ranks=ranks, aligned=False)[0]) for unit in units]
        shards = sum(parts)
        kept = ranks * (parts[0] if strategy is FULL else shards)
    return dict(zip(PHASES, (4 * shards, 4 * (shards + kept), 8 * shards, 16 * shards), strict=True))


def activations(world, held, **changes):
    """Bytes that a whole model's forward pass leaves for the backward pass, on this rank's part of the batch."""
    before = held()
    whole = models.tiny("llama", **changes).to(world.device)
    batch = wrap.slice_of(models.tokens(rows=4), world)
    start = held()
    loss = models.loss_of(whole, batch)
    kept = held() - start
    del loss, whole, batch
    assert held() == before
    return kept


def measure(strategy, world, held, **changes):
    """Bytes by phase as `held()` sees them, less the model's buffers (rotary frequencies), which FSDP does not cut."""
    kept = activations(world, held, **changes)
    plain = models.tiny("llama", **changes)
    units = sizes.units(plain, wrap.block_of(plain))
    batch = wrap.slice_of(models.tokens(rows=4), world)
    model = wrap.wrap(plain, world, strategy=strategy)
    # Anything that is no parameter: buffers, and the batch, which is a constant of the same kind
    constant = sizes.stored([*model.buffers(), batch])
    found = {"wrap": held() - constant}
    loss = models.loss_of(model, batch)
    found["forward"] = held() - constant - kept  # the loss itself is among what is kept
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss.backward()
    del loss
    found["backward"] = held() - constant
    optimizer.step()
    # Adam counts its steps in one fp32 tensor per parameter
    steps = sizes.stored(state["step"] for state in optimizer.state.values())
    found["step"] = held() - constant - steps
    return found, expected(units, strategy, world.size)


@pytest.mark.parametrize("strategy", [FULL, GRAD_OP, NO], ids=lambda s: s.name)
def test_bytes_by_phase_are_exactly_what_the_counts_say(strategy, world, figure):
    if world.on_gpu:
        pytest.skip("on a GPU the allocator is asked; see the next test")
    with sizes.Ledger() as ledger:
        found, wanted = measure(strategy, world, ledger.bytes)
    figure("bytes per rank by phase", found)
    figure("bounds by phase", {phase: (n, n) for phase, n in wanted.items()})
    assert found == wanted


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", [FULL, GRAD_OP, NO], ids=lambda s: s.name)
def test_allocated_bytes_by_phase_on_a_gpu(strategy, world, figure):
    # Not run on a GPU yet. hidden 1024, 8 blocks: about 400 MB of parameters, so the constant is small beside.
    big = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "num_attention_heads": 16}
    # cuBLAS takes its workspace from torch's allocator at the first product, whichever test comes first
    models.loss_of(models.tiny("llama", **big).to(world.device), models.tokens(rows=1).to(world.device)).backward()
    start = torch.cuda.memory_allocated(world.device)
    held = lambda: torch.cuda.memory_allocated(world.device) - start  # noqa: E731
    found, wanted = measure(strategy, world, held, **big)
    figure("allocated bytes per rank by phase", found)
    figure("peak bytes per rank", torch.cuda.max_memory_allocated(world.device) - start)
    # Another workspace of cuBLAS, should FSDP's streams need one: 32 MiB on Hopper, 8 MiB before. The allocator rounds
    # each tensor up to 512 bytes; there are less than 4 * (9 flat parameters) of them.
    constant = (32 << 20) + 36 * 512
    figure("bounds by phase", {phase: (n, n + constant) for phase, n in wanted.items()})
    for phase in PHASES:
        assert wanted[phase] <= found[phase] <= wanted[phase] + constant, phase


@pytest.mark.ranks(2)
def test_a_rank_holds_less_than_one_rank_alone(world):
    # What the figures above come to: 1/N of the whole, plus at most one element of padding per flat parameter.
    if world.on_gpu:
        pytest.skip("on a GPU the allocator is asked")
    with sizes.Ledger() as ledger:
        found, _ = measure(FULL, world, ledger.bytes)
    plain = models.tiny("llama")
    total = sum(p.numel() for p in plain.parameters())
    for phase, copies in (("wrap", 1), ("backward", 2), ("step", 4)):
        ideal = 4 * copies * total / world.size
        assert ideal <= found[phase] <= ideal + 4 * copies * (models.BLOCKS + 1), phase
