"""Wrapping a tiny model in FSDP, and reading it back whole."""

import functools

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from smoke.world import World


def block_of(model: torch.nn.Module) -> type[torch.nn.Module]:
    """The class of a model's transformer blocks."""
    return type(model.model.layers[0])


def wrap(
    model: torch.nn.Module,
    world: World,
    *,
    strategy: ShardingStrategy = ShardingStrategy.FULL_SHARD,
    use_orig_params: bool = False,
    **options: object,
) -> FullyShardedDataParallel:
    """Wrap each block and the root, as verl does; the device is named because FSDP otherwise asks for a GPU."""
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={block_of(model)})
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=policy,
        sharding_strategy=strategy,
        use_orig_params=use_orig_params,
        device_id=world.device,
        **options,
    )


def whole(model: FullyShardedDataParallel) -> dict[str, torch.Tensor]:
    """Copies of all full parameters under the names they had before wrapping."""
    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        return {clean(name): p.detach().clone() for name, p in model.named_parameters()}


def gradients(model: FullyShardedDataParallel) -> dict[str, torch.Tensor]:
    """Copies of all full gradients; needs use_orig_params=True (torch refuses it otherwise)."""
    with FullyShardedDataParallel.summon_full_params(model, writeback=False, with_grads=True):
        return {clean(name): p.grad.detach().clone() for name, p in model.named_parameters()}


def clean(name: str) -> str:
    """A parameter's name without what FSDP puts into it."""
    return name.replace("_fsdp_wrapped_module.", "")


def mean(value: torch.Tensor, world: World) -> float:
    """The mean over ranks of a scalar; gloo has no ReduceOp.AVG."""
    total = value.detach().clone()
    dist.all_reduce(total)
    return total.item() / world.size


def slice_of(batch: torch.Tensor, world: World) -> torch.Tensor:
    """This rank's rows of a batch whose number of rows is a multiple of the ranks, on this rank's device."""
    return batch.chunk(world.size)[world.rank].to(world.device)
