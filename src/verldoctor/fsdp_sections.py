"""Checks one `fsdp_config` section of verl: which classes it wraps, and in which precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verldoctor.modeltype import model_type, wrap_problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verldoctor.finding import Finding
    from verldoctor.fsdp_training import Training

# verl/utils/torch_dtypes.py, v0.2.0.post2: these words and no others, in this spelling
PRECISIONS = {
    16: "fp16", "16": "fp16", "fp16": "fp16", "float16": "fp16",
    32: "fp32", "32": "fp32", "fp32": "fp32", "float32": "fp32",
    "bf16": "bf16", "bfloat16": "bf16",
}  # fmt: skip


def precision(training: Training, section: str) -> Iterator[Finding]:
    """Findings about `mixed_precision` and `model_dtype` of `section`."""
    mixed = f"{section}.mixed_precision"
    whole = training.config.settings.get(mixed)
    if whole is not None and whole.value not in (None, {}):  # a word where param_dtype and reduce_dtype are due
        yield from training.say("FSDP-PRECISION", mixed, right="{param_dtype: bf16, reduce_dtype: fp32}")
    for name in ("param_dtype", "reduce_dtype", "buffer_dtype"):
        yield from _word(training, f"{mixed}.{name}")
    yield from _word(training, f"{section}.model_dtype")
    param, reduce = (_dtype(training, f"{mixed}.{name}") for name in ("param_dtype", "reduce_dtype"))
    if param == "fp16":
        yield from training.say("FSDP-FP16", f"{mixed}.param_dtype", right="bf16")
    if reduce in {"fp16", "bf16"}:
        yield from training.say("FSDP-REDUCE", f"{mixed}.reduce_dtype", right="fp32")
    trains = not section.startswith(("actor_rollout_ref.ref", "reward_model"))
    if trains and _dtype(training, f"{section}.model_dtype") in {"fp16", "bf16"}:
        yield from training.say("FSDP-MODEL-DTYPE", f"{section}.model_dtype", right="fp32")


def _word(training: Training, key: str) -> Iterator[Finding]:
    value = training.get(key)
    if value is not None and _dtype(training, key) is None:
        yield from training.say("FSDP-PRECISION", key, right="bf16, fp16 or fp32")


def _dtype(training: Training, key: str) -> str | None:
    value = training.get(key)
    return PRECISIONS.get(value) if isinstance(value, (str, int)) else None


def wrapping(training: Training, policy: str, model: str) -> Iterator[Finding]:
    """Findings about the wrap policy at `policy` for the model at the key `model`."""
    key = f"{policy}.transformer_layer_cls_to_wrap"
    names = training.get(key)
    if names is None or not training.given(key):
        return
    if isinstance(names, str):  # verl iterates over it: a text is its letters
        yield from training.say("FSDP-WRAP-TEXT", key, right=f"[{names}]" if names != "None" else "null")
        return
    if (training.number(f"{policy}.min_num_params") or 0) > 0:
        yield from training.say("FSDP-WRAP-IGNORED", key, why="min_num_params is above 0 and comes first")
        return
    kind = model_type(training.get(model))
    for name in names if isinstance(names, list) else []:
        right = wrap_problem(kind, name) if isinstance(name, str) else ""
        if right:
            yield from training.say("FSDP-WRAP-CLASS", key, measured=name, right=right, among=f"a {kind} model")
