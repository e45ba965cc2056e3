"""Rules about a plain description that come from the values of FSDP's own arguments."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from verldoctor.fsdp_description import ARGUMENTS, BESIDE, Description, dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from verldoctor.finding import Finding

# torch 2.3.1, torch/distributed/fsdp/api.py
_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
_HINTS = {
    "zero3": "FULL_SHARD",
    "zero2": "SHARD_GRAD_OP",
    "ddp": "NO_SHARD",
    "hsdp": "HYBRID_SHARD",
    "full": "FULL_SHARD",
}
_PREFETCHES = ("BACKWARD_PRE", "BACKWARD_POST")
_STATE_DICTS = ("FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT")
_BACKENDS = ("nccl", "gloo", "mpi", "ucc")
_SHORT = {"NO_PREFETCH": "null"}  # accelerate's word for none


def _strategy(d: Description) -> Iterator[Finding]:
    value = d.get("sharding_strategy")
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= len(_STRATEGIES)):
        return  # accelerate numbers them from 1
    word = str(value).removeprefix("ShardingStrategy.")
    if word not in _STRATEGIES:
        yield from d.say("FSDP-SHARDING", "sharding_strategy", right=_near(word, _STRATEGIES))
    elif word == "NO_SHARD":
        yield from d.say("FSDP-NO-SHARD", "sharding_strategy", right="FULL_SHARD")


def _near(word: str, names: tuple[str, ...]) -> str:
    """The name that `word` most resembles, else all of them."""
    plain = word.lower().replace("_", "").replace("-", "")
    if plain in _HINTS and names is _STRATEGIES:
        return _HINTS[plain]
    close = difflib.get_close_matches(word.upper()[:40], names, n=1, cutoff=0.6)
    return close[0] if close else ", ".join(name for name in names if not name.startswith("_"))


def _enums(d: Description) -> Iterator[Finding]:
    for name, allowed in (("backward_prefetch", _PREFETCHES), ("state_dict_type", _STATE_DICTS)):
        value = d.get(name)
        word = str(value).rpartition(".")[2]
        if value is not None and word not in allowed and word not in _SHORT:
            yield from d.say("FSDP-ENUM", name, right=_near(word, allowed))


def _backend(d: Description) -> Iterator[Finding]:
    value = d.get("backend")
    if value is None:
        return
    words = [part.rpartition(":")[2] for part in str(value).split(",")]  # cpu:gloo,cuda:nccl
    if any(word not in _BACKENDS for word in words):
        yield from d.say("FSDP-BACKEND", "backend", right="nccl (GPU) or gloo (CPU)")
    elif d.on_cpu and words == ["nccl"]:
        yield from d.say("FSDP-BACKEND-CPU", "backend", right="gloo")


def _precision(d: Description) -> Iterator[Finding]:
    values = {name: d.get(f"mixed_precision.{name}") for name in ("param_dtype", "reduce_dtype", "buffer_dtype")}
    for name, value in values.items():
        if value is not None and dtype(value) is None:
            yield from d.say("FSDP-DTYPE", f"mixed_precision.{name}", right="bf16, fp16 or fp32")
    param, reduce = dtype(values["param_dtype"]), dtype(values["reduce_dtype"])
    if param == "fp16" and not _scaled(d):
        yield from d.say("FSDP-FP16", "mixed_precision.param_dtype", right="bf16")
    if reduce in {"bf16", "fp16"} or (reduce is None and param in {"bf16", "fp16"} and values["reduce_dtype"] is None):
        measured = values["reduce_dtype"] or f"{param}, as param_dtype"
        yield from d.say("FSDP-REDUCE", "mixed_precision.reduce_dtype", measured=measured, right="fp32")


def _scaled(d: Description) -> bool:
    return any(d.get(name) not in (None, False, "none") for name in ("grad_scaler", "scaler", "ShardedGradScaler"))


def _sync(d: Description) -> Iterator[Finding]:
    if not d.on("sync_module_states"):
        return
    moved = 0 <= d.step("move") < d.step("wrap")
    if d.on_cpu or (d.order and d.get("device_id") is None and not moved):
        yield from d.say("FSDP-SYNC", "sync_module_states", right="device_id: the rank's GPU")


def _clip(d: Description) -> Iterator[Finding]:
    for name in ("grad_clip", "clip_grad", "clip_grad_norm", "gradient_clipping", "grad_norm"):
        value = d.config.settings.get(name)
        if value is not None and "torch.nn.utils" in str(value.value):
            yield from d.say("FSDP-CLIP", name, right="model.clip_grad_norm_(max_norm)")


def _summon(d: Description) -> Iterator[Finding]:
    asked = d.on("summon_full_params.with_grads") or d.on("with_grads")
    if asked and not d.original:
        yield from d.say("FSDP-SUMMON-GRADS", "use_orig_params", measured="false", right="true")


def _state_dict(d: Description) -> Iterator[Finding]:
    word = str(d.get("state_dict_type")).rpartition(".")[2]
    if d.on_cpu and word == "FULL_STATE_DICT" and (d.on("offload_to_cpu") or d.on("state_dict_config.offload_to_cpu")):
        yield from d.say("FSDP-STATE-DICT-CPU", "state_dict_type", right="offload_to_cpu: false")


def _use_orig_params(d: Description) -> Iterator[Finding]:
    value = d.get("use_orig_params")
    if value is not None and not isinstance(value, bool) and str(value).lower() not in {"true", "false"}:
        yield from d.say("FSDP-NOT-BOOLEAN", "use_orig_params", right="true or false")


def _arguments(d: Description) -> Iterator[Finding]:
    """Words in the fsdp section that are nearly, but not quite, an argument of FSDP."""
    for key in dict.fromkeys(rest.partition(".")[0] for rest, _ in d.sections()):
        name = key.removeprefix("fsdp_")
        close = difflib.get_close_matches(name[:40], ARGUMENTS, n=1, cutoff=0.75)
        if name not in ARGUMENTS and name not in BESIDE and close:
            yield from d.say("FSDP-ARGUMENT", key, measured=key, right=close[0])


RULES: tuple[Callable[[Description], Iterator[Finding]], ...] = (
    _strategy, _enums, _backend, _precision, _sync, _clip, _summon, _state_dict, _use_orig_params, _arguments,
)  # fmt: skip
