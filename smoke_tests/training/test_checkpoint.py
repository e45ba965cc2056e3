"""verl's FSDP checkpoint: saved by each rank, loaded into other weights, and the next steps are the very same."""

import pytest
import torch
import torch.distributed as dist

from smoke import models, wrap


def make(as_verl_wraps, seed):
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    model = as_verl_wraps(models.tiny("llama", seed=seed))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    return model, optimizer, schedule, FSDPCheckpointManager(model, optimizer, schedule, models.tokenizer())


def steps(world, model, optimizer, schedule, numbers):
    losses = []
    for number in numbers:
        optimizer.zero_grad()
        loss = models.loss_of(model, wrap.slice_of(models.tokens(rows=4, seed=number), world))
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(wrap.mean(loss, world))
    return losses


def test_a_loaded_checkpoint_goes_on_with_the_same_losses(world, as_verl_wraps, shared_folder, figure):
    model, optimizer, schedule, manager = make(as_verl_wraps, seed=0)
    steps(world, model, optimizer, schedule, [1, 2])
    manager.save_checkpoint(str(shared_folder), 2)
    wanted = steps(world, model, optimizer, schedule, [3, 4])
    final = wrap.whole(model)

    model, optimizer, schedule, manager = make(as_verl_wraps, seed=99)
    manager.load_checkpoint(str(shared_folder))
    found = steps(world, model, optimizer, schedule, [3, 4])
    figure("losses after loading", found)
    # bit for bit: the same operations on the same numbers. Two steps, so that Adam's state and the schedule are seen
    assert found == wanted
    assert all(torch.equal(p, final[name]) for name, p in wrap.whole(model).items())


def test_each_rank_writes_its_own_files(world, as_verl_wraps, shared_folder):
    *_, manager = make(as_verl_wraps, seed=0)
    manager.save_checkpoint(str(shared_folder), 1)
    # nodes may have no file system in common: a file is where the rank is that wrote it
    everywhere: list = [None] * world.size
    dist.all_gather_object(everywhere, {path.name: path.stat().st_size for path in shared_folder.iterdir()})
    found = {name: size for here in everywhere for name, size in here.items()}
    kinds = ("model", "optim", "extra_state")
    ours = {f"{kind}_world_size_{world.size}_rank_{rank}.pt" for kind in kinds for rank in range(world.size)}
    # verl v0.9 adds a description
    assert set(found) - {"fsdp_config.json"} == ours | {"huggingface"}
    # sharded: together they hold about one copy. 75 276 parameters of 4 bytes, and as much again per rank for the rest
    size = sum(found[f"model_world_size_{world.size}_rank_{r}.pt"] for r in range(world.size))
    total = 4 * sum(p.numel() for p in models.tiny("llama").parameters())
    assert total <= size <= total + world.size * 64 * 1024


def test_a_cut_shard_is_noticed(world, as_verl_wraps, shared_folder):
    *_, manager = make(as_verl_wraps, seed=0)
    manager.save_checkpoint(str(shared_folder), 1)
    path = shared_folder / f"model_world_size_{world.size}_rank_{world.rank}.pt"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    # a zip file's directory is at its end; depending on where the cut falls, torch misses it or seeks before the start
    with pytest.raises((RuntimeError, OSError), match=r"central directory|archive|Invalid argument"):
        manager.load_checkpoint(str(shared_folder))
