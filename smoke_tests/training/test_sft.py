"""verl's SFT trainer: one step has the loss of the whole model on the same rows, and a few steps lower it."""

import importlib.util
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from smoke import api, models

ROWS = 8


def config_for(folder, world):
    """The package's own sft_trainer.yaml with a tiny model and a few rows."""
    import pandas as pd
    from omegaconf import OmegaConf

    if world.rank == 0:
        models.save(folder / "model")
        rows = [{"extra_info": {"question": f"{i}+{i}=", "answer": f"#### {2 * i}"}} for i in range(ROWS)]
        pd.DataFrame(rows).to_parquet(folder / "sft.parquet")
    dist.barrier()
    package = Path(importlib.util.find_spec("verl").submodule_search_locations[0])
    config = OmegaConf.load(package / "trainer/config/sft_trainer.yaml")
    # plain string columns crash in v0.2.0.post2; a dict column with the key inside it works
    changes = {
        "data": {
            "train_files": str(folder / "sft.parquet"),
            "val_files": str(folder / "sft.parquet"),
            "train_batch_size": ROWS,
            "micro_batch_size_per_gpu": ROWS // world.size,
            "max_length": 32,
            "prompt_key": "extra_info",
            "response_key": "extra_info",
            "prompt_dict_keys": ["question"],
            "response_dict_keys": ["answer"],
        },
        "model": {"partial_pretrain": str(folder / "model")},
        "optim": {"lr": 1e-2, "warmup_steps_ratio": 0.0},
        "trainer": {"total_epochs": 20},
    }
    return OmegaConf.merge(config, OmegaConf.create(changes))


def masked_loss(model, batch):
    """The mean loss over response tokens, from the definition, and its relative rounding.

    Parameters are bf16, as verl's mixed precision has them. Logits are fp32 from transformers up to 4.44, which convert
    them, and bf16 later: then verl's loss is computed and summed in 8 bits, here in fp32.
    """
    ids, mask = batch["input_ids"], batch["loss_mask"][:, :-1].reshape(-1)
    columns = {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
    logits = model(**columns, use_cache=False).logits[:, :-1].reshape(-1, models.VOCABULARY)
    # fp32: the same operations in the same order, 1e-5 leaves room for the sum over tokens. bf16: the loss of each
    # token, their sum and the quotient are rounded to half of 2**-7 each
    rounding = 1e-5 if logits.dtype == torch.float32 else 1.5 * 2**-7
    each = torch.nn.functional.cross_entropy(logits.float(), ids[:, 1:].reshape(-1), reduction="none")
    return (each * mask).sum() / mask.sum(), rounding


@pytest.fixture
def trainer(world, shared_folder):
    api.needs("verl.trainer.fsdp_sft_trainer")
    from torch.distributed.device_mesh import init_device_mesh
    from verl.trainer.fsdp_sft_trainer import FSDPSFTTrainer

    flat = init_device_mesh(world.device.type, (world.size,), mesh_dim_names=("fsdp",))
    with_sp = init_device_mesh(world.device.type, (world.size, 1), mesh_dim_names=("dp", "sp"))
    return FSDPSFTTrainer(config_for(shared_folder, world), device_mesh=flat, ulysses_device_mesh=with_sp)


def test_a_step_has_the_loss_of_the_whole_model_and_steps_lower_it(world, trainer, figure):
    from tensordict import TensorDict

    mine = list(range(world.rank, ROWS, world.size))
    columns = torch.utils.data.default_collate([trainer.train_dataset[i] for i in mine])
    batch = TensorDict(columns, batch_size=len(mine)).to(world.device)
    whole = models.tiny("llama").to(world.device)
    for p in whole.parameters():
        p.data = p.data.bfloat16()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=world.on_gpu):
        expected, rounding = masked_loss(whole, batch)
    dist.all_reduce(expected)
    losses = [trainer.training_step(batch.clone())["train/loss"] for _ in range(4)]
    figure("losses", losses)
    assert losses[0] == pytest.approx(expected.item() / world.size, rel=rounding)
    assert losses == sorted(losses, reverse=True)
    assert losses[3] < 0.98 * losses[0]
