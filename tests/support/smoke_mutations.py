"""A pytest plugin that breaks one thing around one smoke test at a time, so that one sees that test fail.

`pytest -p smoke_mutations` runs the tests named in MUTATIONS for its number of ranks and no others, each with its
breakage in force, and turns the verdicts round: a test that fails passes, and one that passes although something is
broken fails. It lies outside of the image.
"""

import copy
import os
import sys
from pathlib import Path

import pytest


def no_shard(put):
    """NO_SHARD passed off as FULL_SHARD."""
    _force_strategy(put, "NO_SHARD")


def kept_whole(put):
    """SHARD_GRAD_OP passed off as FULL_SHARD: parameters stay whole after the forward pass."""
    _force_strategy(put, "SHARD_GRAD_OP")


def _force_strategy(put, name):
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    real = FullyShardedDataParallel.__init__

    def init(self, *a, sharding_strategy=None, **k):
        del sharding_strategy
        real(self, *a, sharding_strategy=ShardingStrategy[name], **k)

    put(FullyShardedDataParallel, "__init__", init)


def scaled_gradient(put):
    """Every reduced gradient times 1.001."""
    import torch.distributed as dist

    real = dist.reduce_scatter_tensor

    def reduce_scatter_tensor(output, *a, **k):
        done = real(output, *a, **k)
        output.mul_(1.001)
        return done

    put(dist, "reduce_scatter_tensor", reduce_scatter_tensor)


def stale_optimizer(put):
    """Optimizers over copies of the parameters."""
    import torch

    real = torch.optim.SGD.__init__

    def init(self, params, *a, **k):
        real(self, [p.detach().clone().requires_grad_() for p in params], *a, **k)

    put(torch.optim.SGD, "__init__", init)


def _last_rank(path):
    world = int(os.environ.get("WORLD_SIZE", "1"))
    return Path(str(path)).name == f"model_world_size_{world}_rank_{world - 1}.pt"


def cut_shard(put):
    """The model file of the last rank loses its second half."""
    import torch

    real = torch.save

    def save(what, path, *a, **k):
        real(what, path, *a, **k)
        if _last_rank(path):
            os.truncate(path, Path(path).stat().st_size // 2)

    put(torch, "save", save)


def zeroed_shard(put):
    """The model file of the last rank is whole, but its tensors are zero."""
    import torch

    real = torch.save

    def save(what, path, *a, **k):
        if _last_rank(path):
            what = copy.deepcopy(what)
            for t in what.values():
                local = t.to_local() if hasattr(t, "to_local") else t.local_shards()[0].tensor
                local.zero_()
        real(what, path, *a, **k)

    put(torch, "save", save)


def lost_moments(put):
    """A checkpoint that forgets Adam's state."""
    import torch

    put(torch.optim.AdamW, "load_state_dict", lambda *_: None)


def unwrapped_blocks(put):
    """An auto-wrap policy that finds no block."""
    from smoke import wrap

    put(wrap, "transformer_auto_wrap_policy", lambda *_, **__: False)


def own_norm(put):
    """clip_grad_norm_ that reports the norm of this rank's shards."""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel

    put(
        FullyShardedDataParallel,
        "clip_grad_norm_",
        lambda self, norm: torch.nn.utils.clip_grad_norm_(self.parameters(), norm),
    )


def no_sync_forgets(put):
    """no_sync that drops what it should accumulate."""
    import contextlib

    from torch.distributed.fsdp import FullyShardedDataParallel

    @contextlib.contextmanager
    def no_sync(self):
        yield
        self.zero_grad()

    put(FullyShardedDataParallel, "no_sync", no_sync)


def one_rank_fails(put):
    """The last rank alone fails; rank 0, whose report is read, must say so."""
    import torch.distributed as dist

    from smoke import wrap

    real = wrap.whole

    def whole(model):
        if dist.get_rank() == dist.get_world_size() - 1:
            raise ValueError("only here")
        return real(model)

    put(wrap, "whole", whole)


def off_log_probs(put):
    """Log-probabilities off by 1e-4."""
    from verl.workers.actor import dp_actor

    real = dp_actor.logprobs_from_logits
    put(dp_actor, "logprobs_from_logits", lambda *a, **k: real(*a, **k) + 1e-4)


def weak_policy(put):
    """A policy loss of 0.99 of what it is."""
    from verl.trainer.ppo import core_algos

    real = core_algos.compute_policy_loss

    def loss(*a, **k):
        value, *more = real(*a, **k)
        return (0.99 * value, *more)

    put(core_algos, "compute_policy_loss", loss)


def shuffled_rows(put):
    """DataProto.reorder that leaves the non-tensors where they were."""
    from verl import DataProto

    def reorder(self, indices):
        self.batch = self.batch[indices]

    put(DataProto, "reorder", reorder)


def blind_rollout(put):
    """A rollout that lets the model see the padding of its prompts."""
    import torch
    from transformers import LlamaForCausalLM

    real = LlamaForCausalLM.generate

    def generate(self, input_ids, attention_mask, **k):
        ours = "generation_config" in k  # verl passes one; the reference does not
        return real(self, input_ids, attention_mask=torch.ones_like(input_ids) if ours else attention_mask, **k)

    put(LlamaForCausalLM, "generate", generate)


def full_precision(put):
    """Mixed precision that is not."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    real = FullyShardedDataParallel.__init__

    def init(self, *a, mixed_precision=None, **k):
        del mixed_precision
        real(self, *a, **k)

    put(FullyShardedDataParallel, "__init__", init)


def stale_moments(put):
    """A training run that is resumed with Adam's state of one step earlier."""
    import shutil

    (trainer,) = (module for name, module in sys.modules.items() if name.rpartition(".")[2] == "test_main_ppo")
    real = trainer.run

    def run(world, folder, arguments, **k):
        for word in arguments:
            if word.startswith("trainer.resume_mode="):
                left = Path(word.partition("=")[2])
                before = left.with_name(f"global_step_{trainer.STEPS - 2}")
                for path in (before / "actor").glob("optim_*"):
                    shutil.copy(path, left / "actor")
        return real(world, folder, arguments, **k)

    put(trainer, "run", run)


def unmasked_sft(put):
    """An SFT loss over prompts too."""
    import torch
    from verl.trainer.fsdp_sft_trainer import FSDPSFTTrainer

    real = FSDPSFTTrainer._compute_loss_and_backward

    def everything(self, batch, **k):
        batch["loss_mask"] = torch.ones_like(batch["loss_mask"])
        return real(self, batch, **k)

    put(FSDPSFTTrainer, "_compute_loss_and_backward", everything)


_HOLDS = "sharded/test_sharding.py::test_each_rank_holds_its_part_and_no_more"
_BYTES = "sharded/test_memory.py::test_bytes_by_phase_are_exactly_what_the_counts_say"
_AGREE = "sharded/test_gradients.py::test_gradients_agree_with_the_whole_model_over_several_steps"
_RESUME = "training/test_checkpoint.py::test_a_loaded_checkpoint_goes_on_with_the_same_losses"
# what is broken, and the test that must fail of it, by the number of ranks
MUTATIONS = {
    1: ((stale_moments, "training/test_main_ppo.py::test_killed_and_resumed_training_ends_with_the_same_weights"),),
    2: (
        (no_shard, f"{_HOLDS}[llama-FULL_SHARD-flat]"),
        (no_shard, f"{_HOLDS}[llama-FULL_SHARD-orig]"),
        (no_shard, f"{_BYTES}[SHARD_GRAD_OP]"),
        (no_shard, "sharded/test_memory.py::test_a_rank_holds_less_than_one_rank_alone"),
        (kept_whole, f"{_BYTES}[FULL_SHARD]"),
        (scaled_gradient, f"{_AGREE}[llama-FULL_SHARD]"),
        (scaled_gradient, f"{_AGREE}[qwen2-SHARD_GRAD_OP]"),
        (scaled_gradient, "sharded/test_gradients.py::test_bf16_gradients_agree_with_a_whole_model_in_bf16"),
        (scaled_gradient, "sharded/test_gradients.py::test_parameters_agree_after_several_steps[flat]"),
        (own_norm, f"{_AGREE}[llama-SHARD_GRAD_OP]"),
        (
            no_sync_forgets,
            "sharded/test_gradients.py::test_accumulated_gradients_are_those_of_one_large_batch[no_sync]",
        ),
        (stale_optimizer, "sharded/test_order.py::test_load_wrap_optimizer_trains[flat]"),
        (stale_optimizer, "training/test_actor.py::test_one_policy_update_is_the_gradient_step_it_should_be"),
        (unwrapped_blocks, "sharded/test_sharding.py::test_auto_wrap_wraps_each_block_and_the_root[llama]"),
        (one_rank_fails, "sharded/test_sharding.py::test_wrapping_changes_no_value"),
        (cut_shard, _RESUME),
        (zeroed_shard, _RESUME),
        (lost_moments, _RESUME),
        (off_log_probs, "training/test_actor.py::test_log_probabilities_are_those_of_the_whole_model[llama]"),
        (weak_policy, "training/test_actor.py::test_one_policy_update_is_the_gradient_step_it_should_be"),
        (shuffled_rows, "training/test_data.py::test_reordering_moves_everything_alike"),
        (blind_rollout, "training/test_rollout.py::test_greedy_rollout_is_that_of_the_whole_model"),
        (unmasked_sft, "training/test_sft.py::test_a_step_has_the_loss_of_the_whole_model_and_steps_lower_it"),
        (full_precision, "sharded/test_sharding.py::test_mixed_precision_computes_in_bf16_and_keeps_fp32[flat]"),
    ),
    4: ((no_shard, f"{_HOLDS}[llama-HYBRID_SHARD-flat]"),),
}
# These end in an error of torch's own on one rank and in a timeout on the others; all else must fail an assertion, for
# a breakage that raises by itself would prove nothing of the test.
_CRASH = {cut_shard, one_rank_fails}
_BREAKS = pytest.StashKey()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Each named test once per breakage, and nothing else."""
    known = {item.nodeid: item for item in items}
    mine = MUTATIONS[int(os.environ.get("WORLD_SIZE", "1"))]
    missing = {name for _, name in mine} - set(known)
    if missing:
        raise pytest.UsageError(f"no such tests: {sorted(missing)}")
    some = os.environ.get("SMOKE_MUTATIONS", "").split(",")
    chosen = [(breaks, name) for breaks, name in mine if some == [""] or breaks.__name__ in some]
    items[:] = [_broken(known[name], breaks) for breaks, name in chosen]


def _broken(item, breaks):
    name = f"{item.originalname}" + (f"[{item.callspec.id}]" if hasattr(item, "callspec") else "")
    made = type(item).from_parent(
        item.parent,
        name=name,
        callobj=item.obj,
        callspec=getattr(item, "callspec", None),
        fixtureinfo=item._fixtureinfo,
        originalname=item.originalname,
        keywords=dict(item.keywords),
    )
    made.own_markers = list(item.own_markers)
    made.stash[_BREAKS] = breaks
    return made


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """Break, run, mend."""
    with pytest.MonkeyPatch.context() as patch:
        pyfuncitem.stash[_BREAKS](patch.setattr)
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    """Turn the verdict of the test itself round; what goes wrong in setup is wrong."""
    said = yield
    said.nodeid = f"{item.nodeid}<{item.stash[_BREAKS].__name__}>"
    if said.when == "call" and not said.skipped:
        breaks = item.stash[_BREAKS]
        noticed = Exception if breaks in _CRASH else (AssertionError, pytest.fail.Exception)
        failed = said.failed and isinstance(call.excinfo.value, noticed)
        said.outcome = "passed" if failed else "failed"
        why = f"{call.excinfo.typename}: {call.excinfo.value}".splitlines()[0] if call.excinfo else "nothing"
        said.user_properties.append(("failed with", why))
        said.longrepr = None if failed else f"{item.nodeid} did not notice, but ended with {why}: {breaks.__doc__}"
    return said
