"""FSDP2 (`fully_shard`): each parameter is cut by itself along its first dimension; torch 2.4 and later."""

import importlib

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from smoke import models, sizes, wrap


def fully_shard(world):
    """The function, wherever this release keeps it."""
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if release < (2, 4):
        pytest.skip(f"torch {torch.__version__}: FSDP2 is a prototype before 2.4, and that of 2.3 needs CUDA")
    if release < (2, 6) and not world.on_gpu:
        pytest.skip(f"torch {torch.__version__}: FSDP2 before 2.6 takes CUDA's streams, for parameters on the CPU too")
    place = "torch.distributed.fsdp" if release >= (2, 6) else "torch.distributed._composable.fsdp"
    return importlib.import_module(place).fully_shard


def test_each_parameter_is_cut_along_its_first_dimension(world, figure):
    cut = fully_shard(world)
    model = models.tiny("llama").to(world.device)
    mesh = init_device_mesh(world.device.type, (world.size,))
    shapes = {name: p.shape for name, p in model.named_parameters()}
    for layer in model.model.layers:
        cut(layer, mesh=mesh)
    cut(model, mesh=mesh)
    for name, p in model.named_parameters():
        rows = -(-shapes[name][0] // world.size)  # torch.chunk: ceil, and the last ranks get what is left, or nothing
        mine = max(0, min(rows, shapes[name][0] - world.rank * rows))
        assert p.to_local().shape == (mine, *shapes[name][1:]), name
    local = sum(p.to_local().numel() for p in model.parameters())
    figure("elements per rank", local)
    loss = models.loss_of(model, wrap.slice_of(models.tokens(rows=4), world))
    loss.backward()
    whole = models.tiny("llama").to(world.device)
    expected = models.loss_of(whole, models.tokens(rows=4).to(world.device))
    expected.backward()
    for (name, p), w in zip(model.named_parameters(), whole.parameters(), strict=True):
        # the same rounding argument as in test_gradients.py
        assert (p.grad.full_tensor() - w.grad).abs().max() <= 1e-5 * w.grad.abs().max(), name
    assert sizes.stored(p.to_local() for p in model.parameters()) >= 4 * local
