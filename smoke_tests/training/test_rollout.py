"""verl's Hugging Face rollout generates from a sharded model what the whole model generates."""

from importlib import metadata

import pytest
import torch

from smoke import models


def prompts(world):
    from verl import DataProto

    ids = models.tokens(rows=4, length=6, seed=5)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    tensors = {"input_ids": ids * mask, "attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp_min(0)}
    data = DataProto.from_dict({name: t.to(world.device) for name, t in tensors.items()})
    data.meta_info = {"eos_token_id": models.EOS, "pad_token_id": models.PAD, "do_sample": False}
    return data


def test_greedy_rollout_is_that_of_the_whole_model(world, as_verl_wraps, figure):
    from omegaconf import OmegaConf
    from verl.workers.rollout.hf_rollout import HFRollout

    if lacks := sorted(getattr(HFRollout, "__abstractmethods__", ())):
        pytest.skip(f"verl {metadata.version('verl')} cannot make its HFRollout: it lacks {', '.join(lacks)}")
    length = 7
    config = {"response_length": length, "do_sample": False, "temperature": 1.0, "top_p": 1.0, "top_k": 0}
    data = prompts(world)
    # verl does not wrap blocks when it generates with transformers (fsdp_workers.py:239)
    rollout = HFRollout(as_verl_wraps(models.tiny("llama"), blocks=False), OmegaConf.create(config))
    out = rollout.generate_sequences(data).batch
    whole = models.tiny("llama").to(world.device).eval()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=world.on_gpu):
        wanted = whole.generate(
            input_ids=data.batch["input_ids"],
            attention_mask=data.batch["attention_mask"],
            do_sample=False,
            max_new_tokens=length,
            eos_token_id=models.EOS,
            pad_token_id=models.PAD,
        )
    assert out["input_ids"].shape == (4, 6 + length)
    assert torch.equal(out["input_ids"][:, : wanted.shape[1]], wanted)
    assert torch.equal(out["responses"], out["input_ids"][:, 6:])
    # what comes after the end is masked, and positions go on where the prompt ended
    ended = (out["responses"] == models.EOS).cumsum(-1) - (out["responses"] == models.EOS).long() > 0
    assert torch.equal(out["attention_mask"][:, 6:].bool(), ~ended)
    last = data.batch["position_ids"][:, -1:]
    assert torch.equal(out["position_ids"][:, 6:], last + torch.arange(1, length + 1, device=world.device))
    figure("tokens generated", int(wanted.shape[1] - 6) * 4)
