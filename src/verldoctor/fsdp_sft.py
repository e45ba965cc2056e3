"""Checks a configuration of verl's SFT trainer by what that trainer asserts, reads, or gets wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verldoctor import fsdp_sections
from verldoctor.fsdp_limits import model_known
from verldoctor.modeltype import model_type
from verldoctor.saying import listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verldoctor.finding import Finding
    from verldoctor.fsdp_training import Training

_FSDP = "model.fsdp_config"
_ULYSSES_TYPES = {"llama", "qwen2"}  # verl/models/transformers/monkey_patch.py, v0.2.0.post2
_TRUNCATIONS = ("error", "left", "right")  # verl/utils/dataset/sft_dataset.py


def judge(training: Training) -> Iterator[Finding]:
    """What of an SFT configuration verl or the stack cannot do. LoRA is fine: verl wraps each LoRA layer by itself."""
    yield from model_known(training, "model.partial_pretrain", "model")
    for rule in (_keys, _data, _batch, _parallel, _offload, _lora):
        yield from rule(training)
    yield from fsdp_sections.wrapping(training, f"{_FSDP}.wrap_policy", "model.partial_pretrain")


def _keys(training: Training) -> Iterator[Finding]:
    for side in ("prompt", "response"):
        key = f"data.{side}_key"
        sure = training.certain(key) or training.given("data.train_files")
        if sure and not training.get(f"data.{side}_dict_keys"):
            yield from training.say("FSDP-SFT-KEYS", key, right=f"+data.{side}_dict_keys=[…]", side=side)


def _data(training: Training) -> Iterator[Finding]:
    if training.get("data.chat_template") is not None:
        yield from training.say("FSDP-SFT-TEMPLATE", "data.chat_template", right="null")
    if training.get("data.truncation") not in _TRUNCATIONS:
        yield from training.say("FSDP-SFT-TRUNCATION", "data.truncation", right=", ".join(_TRUNCATIONS))


def _batch(training: Training) -> Iterator[Finding]:
    """A batch must split over the ranks that torchrun starts (where that is not told: over one) into micro batches."""
    key, parallel = "data.train_batch_size", training.number("ulysses_sequence_parallel_size") or 1
    size, micro = training.number(key), training.number("data.micro_batch_size_per_gpu")
    ranks = max((training.config.world or 1) // max(parallel, 1), 1)
    sure = training.certain(key) and training.certain("data.micro_batch_size_per_gpu")
    if sure and size and micro and micro > 0 and size % (ranks * micro):
        right = -(-size // (ranks * micro)) * ranks * micro
        yield from training.say("FSDP-SFT-BATCH", key, right=right, ranks=ranks, micro=micro)


def _parallel(training: Training) -> Iterator[Finding]:
    key = "ulysses_sequence_parallel_size"
    if (training.number(key) or 1) <= 1:
        return  # without it the trainer does not use use_remove_padding either
    yield from training.say("FSDP-ULYSSES", key, right=1)
    if not training.on("use_remove_padding"):
        yield from training.say("FSDP-ULYSSES-PADDING", key, right=1, padding="use_remove_padding")
    kind = model_type(training.get("model.partial_pretrain"))
    if kind and kind not in _ULYSSES_TYPES:
        yield from training.say("FSDP-ULYSSES-TYPE", key, measured=kind, right=1, types=listed(_ULYSSES_TYPES))


def _offload(training: Training) -> Iterator[Finding]:
    offload, params = f"{_FSDP}.cpu_offload", f"{_FSDP}.offload_params"
    if training.on(params) and not training.on(offload):
        yield from training.say("FSDP-SFT-OFFLOAD", params, right=f"{offload}: true")


def _lora(training: Training) -> Iterator[Finding]:
    key = f"{_FSDP}.wrap_policy.disable"
    if (training.number("model.lora_rank") or 0) > 0 and training.on(key):
        yield from training.say("FSDP-LORA-NO-WRAP", key, right="false")
