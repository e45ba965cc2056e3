"""Parameters, gradients and optimizer state really are 1/N per rank, counted to the element, padding included."""

import re

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, MixedPrecision, ShardingStrategy

from smoke import models, sizes, wrap

FULL, GRAD_OP, NO, HYBRID = (
    ShardingStrategy[name] for name in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD")
)


def cut_over(strategy, world):
    """How many ranks share one copy of the parameters."""
    if strategy is NO:
        return 1
    return world.size // 2 if strategy is HYBRID else world.size


def options_of(strategy, world):
    """HYBRID_SHARD here: two copies, each over half of the ranks."""
    if strategy is not HYBRID:
        return {}
    shape = (2, world.size // 2)
    return {"device_mesh": init_device_mesh(world.device.type, shape, mesh_dim_names=("replicate", "shard"))}


def expected(model, world, strategy, *, aligned):
    """This rank's elements and how many of them are real, for each flat parameter of the wrapped model.

    Aligned flat parameters are padded to a multiple of the ranks even when they are not cut (NO_SHARD):
    then `ranks` is the world's size and the pieces lie together on each rank.
    """
    ranks = cut_over(strategy, world)
    found = []
    for unit in sizes.units(model, wrap.block_of(model)):
        if ranks == 1:
            pieces = sizes.layout(unit, ranks=world.size if aligned else 1, aligned=aligned)
            whole = [real for piece in pieces for real in piece]
            found.append((len(whole), sum(whole)))
        else:
            mine = sizes.layout(unit, ranks=ranks, aligned=aligned)[world.rank % ranks]
            found.append((len(mine), sum(mine)))
    return found


def one_step(model, world):
    """Forward, backward, Adam; returns the optimizer."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    models.loss_of(model, wrap.slice_of(models.tokens(rows=4), world)).backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("orig", [False, True], ids=["flat", "orig"])
@pytest.mark.parametrize("strategy", [FULL, GRAD_OP, NO, HYBRID], ids=lambda s: s.name)
@pytest.mark.parametrize("kind", models.KINDS)
def test_each_rank_holds_its_part_and_no_more(kind, strategy, orig, world, figure):
    if strategy is HYBRID and world.size < 4:
        pytest.skip("HYBRID_SHARD over two copies of two parts needs 4 ranks")
    plain = models.tiny(kind)
    total = sum(p.numel() for p in plain.parameters())
    parts = expected(plain, world, strategy, aligned=orig)
    model = wrap.wrap(plain, world, strategy=strategy, use_orig_params=orig, **options_of(strategy, world))

    elements, real = (sum(part[i] for part in parts) for i in (0, 1))
    # parameters: fp32, 4 bytes an element; one storage per flat parameter, whatever views there are
    assert sizes.stored(p.data for p in model.parameters()) == 4 * elements
    optimizer = one_step(model, world)
    # gradients: the same layout, in fp32
    assert sizes.stored(p.grad for p in model.parameters() if p.grad is not None) == 4 * elements
    # Adam: two tensors per parameter. Flat parameters take their padding along; views have none.
    state = [t for s in optimizer.state.values() for name, t in s.items() if name != "step"]
    assert sum(t.numel() for t in state) == 2 * (real if orig else elements)
    # all parts together are the model, and one part is 1/N of it up to padding of less than (step + N) per parameter
    ranks = cut_over(strategy, world)
    everything = torch.tensor(real, device=world.device)
    dist.all_reduce(everything)
    assert everything.item() == total * world.size // ranks
    assert total / ranks <= elements < total / ranks + 4 * len(list(plain.parameters())) * 2 + len(parts) * ranks
    figure("elements per rank", f"{elements} of {total} ({elements / total:.4f}, N = {ranks})")


@pytest.mark.parametrize("size", [1, 5, 21, 24])
def test_padding_of_odd_sizes(size, world):
    # 21 over 2 ranks: 11 + 10, one element of padding; 5 over 4: ceil = 2, so 2 + 2 + 1 + 0; 1 over 4: three empty
    module = torch.nn.Linear(size, 1, bias=False)
    before = module.weight.detach().clone()
    model = FullyShardedDataParallel(module, device_id=world.device)
    flat = next(iter(model.parameters()))
    assert flat.numel() == -(-size // world.size)
    assert torch.equal(wrap.whole(model)["weight"].cpu(), before)


@pytest.mark.parametrize("kind", models.KINDS)
def test_auto_wrap_wraps_each_block_and_the_root(kind, world):
    model = wrap.wrap(models.tiny(kind), world)
    wrapped = [name for name, m in model.named_modules() if isinstance(m, FullyShardedDataParallel)]
    assert [wrap.clean(name + ".").strip(".") for name in wrapped] == [
        "",
        *(f"model.layers.{i}" for i in range(models.BLOCKS)),
    ]


@pytest.mark.parametrize("kind", models.KINDS)
def test_names_with_flat_parameters(kind, world):
    model = wrap.wrap(models.tiny(kind), world)
    assert [name for name, _ in model.named_parameters()] == [
        "_fsdp_wrapped_module._flat_param",
        *(f"_fsdp_wrapped_module.model.layers.{i}._fsdp_wrapped_module._flat_param" for i in range(models.BLOCKS)),
    ]


@pytest.mark.parametrize("kind", models.KINDS)
def test_names_with_original_parameters(kind, world):
    plain = models.tiny(kind)
    before = {name: p.shape for name, p in plain.named_parameters()}
    model = wrap.wrap(plain, world, use_orig_params=True)
    block = re.compile(r"^(model\.layers\.\d+\.)")
    assert [name for name, _ in model.named_parameters()] == [
        "_fsdp_wrapped_module." + block.sub(r"\1_fsdp_wrapped_module.", name) for name in before
    ]
    if world.size > 1:  # each parameter's part is one-dimensional, and empty where a rank has nothing of it
        assert {p.dim() for p in model.parameters()} == {1}
        assert any(p.numel() == 0 for p in model.parameters())
    assert {name: p.shape for name, p in wrap.whole(model).items()} == before


@pytest.mark.ranks(2)
def test_wrapping_changes_no_value(world):
    before = {name: p.detach().clone() for name, p in models.tiny("llama").named_parameters()}
    after = wrap.whole(wrap.wrap(models.tiny("llama"), world))
    assert {name: torch.equal(p.cpu(), before[name]) for name, p in after.items()} == dict.fromkeys(before, True)


@pytest.mark.parametrize("orig", [False, True], ids=["flat", "orig"])
def test_mixed_precision_computes_in_bf16_and_keeps_fp32(orig, world):
    low = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.float32)
    model = wrap.wrap(models.tiny("llama"), world, use_orig_params=orig, mixed_precision=low)
    seen = []
    layer = model.model.layers[0]
    layer.register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
    optimizer = one_step(model, world)
    assert seen == [torch.bfloat16]
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}
    states = [t for s in optimizer.state.values() for name, t in s.items() if name != "step"]
    assert {t.dtype for t in states} == {torch.float32}


@pytest.mark.gpu
@pytest.mark.parametrize("orig", [False, True], ids=["flat", "orig"])
def test_cpu_offload_keeps_everything_on_the_host(orig, world):
    # Not run on a GPU yet. On the CPU there is nothing to offload from, and FSDP pins memory, which needs CUDA.
    model = wrap.wrap(models.tiny("llama"), world, use_orig_params=orig, cpu_offload=CPUOffload(offload_params=True))
    optimizer = one_step(model, world)
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert {p.grad.device.type for p in model.parameters() if p.grad is not None} == {"cpu"}
    states = [t for s in optimizer.state.values() for name, t in s.items() if name != "step"]
    assert {t.device.type for t in states} == {"cpu"}
