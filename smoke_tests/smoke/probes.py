"""What a stack can do, one function for each: it returns where it can, and raises where it cannot.

The names are those of src/verlstack/data/capabilities.toml, the order too.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
from typing import TYPE_CHECKING, Any

import torch

from smoke import attention, models

if TYPE_CHECKING:
    from collections.abc import Callable

    Put = Callable[[Any, str, Any], None]

# fp32: log-probabilities of size 5 with eps = 1.2e-7 and some dozens of additions, as in training/test_actor.py
LOG_PROB = 5e-6


def critic_llama(put: Put) -> None:
    """The class with which verl loads its critic gives one value for each token."""
    del put
    from transformers import AutoModelForTokenClassification

    for kind in models.KINDS:
        config = models.tiny(kind).config
        config.num_labels = 1
        model = AutoModelForTokenClassification.from_config(config)
        values = model(input_ids=models.tokens(rows=2)).logits
        assert values.shape == (2, 12, 1), values.shape


def remove_padding(put: Put) -> None:
    """Rows of unequal length, one after the other in one row with positions from 0 for each, as verl packs them."""
    for kind in models.KINDS:
        rows = [models.tokens(rows=1, length=length, seed=length) for length in (5, 9, 3)]
        with torch.no_grad():
            alone = torch.cat([log_probs(models.tiny(kind), row, None) for row in rows], 1)
            model = models.tiny(kind)
            attention.use_in(model, put)
            positions = torch.cat([torch.arange(row.shape[1]) for row in rows])[None]
            packed = log_probs(model, torch.cat(rows, 1), positions)
        difference = (packed - alone).abs().max().item()
        assert difference <= LOG_PROB, f"{kind}: log-probabilities differ by {difference:.2g}"


def log_probs(model: torch.nn.Module, ids: torch.Tensor, positions: torch.Tensor | None) -> torch.Tensor:
    """Of every token of the vocabulary after each token, shape (1, length, vocabulary)."""
    more = {} if positions is None else {"position_ids": positions}
    return torch.log_softmax(model(input_ids=ids, use_cache=False, **more).logits, -1)


def ulysses(put: Put) -> None:
    """In verl v0.2 for a config, in later ones for a model."""
    del put
    import inspect

    from verl.models.transformers.monkey_patch import apply_monkey_patch

    for kind in models.KINDS:
        model = models.tiny(kind, num_attention_heads=2, hidden_size=52)
        of_model = "ulysses_sp_size" in inspect.signature(apply_monkey_patch).parameters
        apply_monkey_patch(model, ulysses_sp_size=2) if of_model else apply_monkey_patch(model.config)


def shuffle_checkpoint(put: Put) -> None:
    """As verl does it: v0.2 pickles the whole loader with dill; later ones take the state of a StatefulDataLoader."""
    del put
    rows = list(range(16))
    if importlib.util.find_spec("torchdata"):
        from torchdata.stateful_dataloader import StatefulDataLoader
        from torchdata.stateful_dataloader.sampler import RandomSampler

        sampler = RandomSampler(rows, generator=torch.Generator().manual_seed(1))
        loader = StatefulDataLoader(rows, batch_size=4, sampler=sampler)
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        wanted = [batch.tolist() for batch in batches]
        other = RandomSampler(rows, generator=torch.Generator().manual_seed(2))
        again = StatefulDataLoader(rows, batch_size=4, sampler=other)
        again.load_state_dict(state)
        found = [batch.tolist() for batch in again]
    else:
        import dill
        from torch.utils.data import DataLoader, RandomSampler

        sampler = RandomSampler(rows, generator=torch.Generator().manual_seed(1))
        kept = io.BytesIO()
        torch.save(DataLoader(rows, batch_size=4, sampler=sampler), kept, pickle_module=dill)
        wanted = [batch.tolist() for batch in DataLoader(rows, batch_size=4, sampler=sampler)]
        kept.seek(0)
        found = [batch.tolist() for batch in torch.load(kept, weights_only=False)]
    assert wanted, "no rows are left"
    assert found == wanted, f"{found} instead of {wanted}"


def vllm(put: Put) -> None:
    """A worker that trains with it imports both."""
    del put
    for name in ("vllm", "verl.workers.rollout.vllm_rollout"):
        importlib.import_module(name)


def hf_rollout(put: Put) -> None:
    """Greedy, one answer."""
    del put
    found = rolled_out(answers=1)
    assert found == 2, f"{found} answers to 2 prompts"


def hf_rollout_n(put: Put) -> None:
    """Sampled, three answers to each prompt."""
    del put
    found = rolled_out(answers=3)
    assert found == 6, f"{found} answers to 2 prompts with rollout.n = 3"


def rolled_out(*, answers: int) -> int:
    """Number of answers to two prompts."""
    from omegaconf import OmegaConf
    from torch.distributed.fsdp import FullyShardedDataParallel
    from verl import DataProto
    from verl.workers.rollout.hf_rollout import HFRollout

    ids = models.tokens(rows=2, length=4)
    tensors = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    data = DataProto.from_dict({**tensors, "position_ids": torch.arange(4).repeat(2, 1)})
    sampled = answers > 1
    data.meta_info = {"eos_token_id": models.EOS, "pad_token_id": models.PAD, "do_sample": sampled}
    config = {"response_length": 3, "do_sample": sampled, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "n": answers}
    model = FullyShardedDataParallel(models.tiny("llama"), device_id=torch.device("cpu"))
    return len(HFRollout(model, OmegaConf.create(config)).generate_sequences(data))


def fsdp2(put: Put) -> None:
    """One step on one rank."""
    del put
    from torch.distributed.device_mesh import init_device_mesh

    place = "torch.distributed.fsdp"
    if not hasattr(importlib.import_module(place), "fully_shard"):
        place = "torch.distributed._composable.fsdp"  # before 2.6
    cut = importlib.import_module(place).fully_shard
    model = models.tiny("llama")
    cut(model, mesh=init_device_mesh("cpu", (1,)))
    before = [p.to_local().detach().clone() for p in model.parameters()]
    models.loss_of(model, models.tokens(rows=2)).backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert any(not torch.equal(a, b.to_local()) for a, b in zip(before, model.parameters(), strict=True))


PROBES: dict[str, Callable[[Any], None]] = {
    probe.__name__: probe
    for probe in (critic_llama, remove_padding, ulysses, shuffle_checkpoint, vllm, hf_rollout, hf_rollout_n, fsdp2)
}
