"""Checks a config.json against the stack's transformers: does it load, and does it compute the same model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verldoctor.versions import brought_by, has, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verldoctor.finding import Finding
    from verldoctor.model_folder import Folder

_FILE = "config.json"
_TORCH_DTYPES = {
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "half",
    "float",
    "double",
    "float8_e4m3fn",
    "float8_e5m2",
    "auto",
}
_ROPES = (
    "default",
    "linear",
    "dynamic",
    "yarn",
    "longrope",
    "llama3",
)  # transformers 4.43 to 4.57, modeling_rope_utils.py
_OWN_ROPES = {"su", "mrope"}  # translated by the model's own configuration class
_THETA = 10000.0  # the default of rope_theta in every class that verl trains


def judge(folder: Folder) -> Iterator[Finding]:
    """Findings about config.json."""
    if not folder.config:
        return
    for rule in (_type, _shape, _rope, _rope_parameters, _attention, _dtype, _quantized):
        yield from rule(folder)


def _type(folder: Folder) -> Iterator[Finding]:
    kind, remote = folder.kind, folder.remote
    if not kind and "AutoConfig" not in remote:
        yield from folder.say("MODEL-TYPE-MISSING", _FILE, measured=folder.config.get("model_type", "none"))
    elif "AutoConfig" in remote and has("config", kind, folder.stack) is not True:
        yield from folder.say("MODEL-REMOTE-CODE", _FILE, measured=remote["AutoConfig"])
    elif kind and has("config", kind, folder.stack) is False:
        yield from folder.say("MODEL-TYPE", _FILE, measured=kind, right=_since("config", kind))
    elif kind:
        yield from _heads(folder, kind)


def _since(list_name: str, name: str) -> str:
    first = brought_by(list_name, name)
    newest = table("limits")["newest_transformers"]
    return f"transformers {first} or later" if first else f"no transformers up to {newest} has it; is it spelled right?"


def _heads(folder: Folder, kind: str) -> Iterator[Finding]:
    """Whether transformers has the class that verl's worker asks for."""
    scores = any(name.endswith(("Classification", "RewardModel")) for name in folder.architectures)
    auto, needed = ("token_classification", "TokenClassification") if scores else ("causal", "CausalLM")
    if f"AutoModelFor{needed}" in folder.remote or has(auto, kind, folder.stack) is not False:
        return
    yield from folder.say("MODEL-HEAD", _FILE, measured=kind, right=_since(auto, kind), needed=f"AutoModelFor{needed}")


def _shape(folder: Folder) -> Iterator[Finding]:
    hidden, heads, size = (folder.number(key) for key in ("hidden_size", "num_attention_heads", "head_dim"))
    groups = folder.number("num_key_value_heads")
    if not hidden or not heads or heads < 0:
        return
    if size is None and hidden % heads:
        yield from folder.say("MODEL-HEADS", _FILE, measured=f"hidden_size {hidden}, num_attention_heads {heads}")
    elif groups and heads % groups:
        yield from folder.say(
            "MODEL-HEADS", _FILE, measured=f"num_attention_heads {heads}, num_key_value_heads {groups}"
        )
    elif size and size * heads != hidden and _reads_head_dim(folder) is False:
        right = _since("head_dim", folder.kind)
        yield from folder.say("MODEL-HEAD-DIM", _FILE, measured=size, right=right, own=hidden // heads)


def _reads_head_dim(folder: Folder) -> bool | None:
    if brought_by("head_dim", folder.kind) is None:  # some read it past the configuration class: not known
        return None
    return has("head_dim", folder.kind, folder.stack)


def _rope(folder: Folder) -> Iterator[Finding]:
    rope, kind = folder.config.get("rope_scaling"), folder.kind
    if not isinstance(rope, dict) or not rope or has("config", kind, folder.stack) is not True:
        return
    word = rope.get("rope_type", rope.get("type"))
    since = brought_by("rope_init", kind)
    if word == "default" or since is None:
        return
    modern = has("rope_init", kind, folder.stack)
    if modern and word not in _ROPES and word not in _OWN_ROPES:
        yield from folder.say("MODEL-ROPE-UNKNOWN", _FILE, measured=word, right=", ".join(_ROPES))
    elif modern is False and has("rope_validated", kind, folder.stack):
        if kind != "phi3" and not _old_rope(rope):
            yield from folder.say("MODEL-ROPE", _FILE, measured=word, right=f"transformers {since} or later")
    elif modern is False and word not in _OWN_ROPES:
        yield from folder.say(
            "MODEL-ROPE-IGNORED", _FILE, measured=word, right=f"transformers {since} or later", family=kind
        )


def _old_rope(rope: dict[str, Any]) -> bool:
    """Whether transformers before modeling_rope_utils accepts it: exactly type and factor, a float above 1."""
    factor = rope.get("factor")
    return (
        rope.keys() == {"type", "factor"}
        and rope["type"] in {"linear", "dynamic"}
        and isinstance(factor, float)
        and factor > 1
    )


def _rope_parameters(folder: Folder) -> Iterator[Finding]:
    """Transformers 5 writes rope_parameters; older releases do not read it and take their default of rope_theta."""
    value = folder.config.get("rope_parameters")
    if (
        not isinstance(value, dict)
        or "rope_theta" in folder.config
        or folder.kind not in table("transformers")["rope_theta"]
    ):
        return
    theta, word = value.get("rope_theta", _THETA), value.get("rope_type", "default")
    scaled = word != "default" and "rope_scaling" not in folder.config
    if theta != _THETA or scaled:
        yield from folder.say(
            "MODEL-ROPE-PARAMETERS", _FILE, measured=f"rope_theta {theta}, rope_type {word}", theta=theta
        )


def _attention(folder: Folder) -> Iterator[Finding]:
    kind = folder.kind
    if has("causal", kind, folder.stack) and has("flash_attention_2", kind, folder.stack) is False:
        yield from folder.say("MODEL-FLASH2", _FILE, measured=kind, right=_since("flash_attention_2", kind))
    for key in ("_attn_implementation", "attn_implementation", "_attn_implementation_internal"):
        value = folder.config.get(key)
        if isinstance(value, str) and value not in {"flash_attention_2", "auto"}:
            yield from folder.say("MODEL-ATTENTION", _FILE, measured=f"{key}: {value}", right="flash_attention_2")


def _dtype(folder: Folder) -> Iterator[Finding]:
    word = folder.config.get("torch_dtype")
    if isinstance(word, str) and word not in _TORCH_DTYPES:
        bare = word.removeprefix("torch.")
        short = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}.get(bare, bare)
        yield from folder.say(
            "MODEL-DTYPE-WORD", _FILE, measured=word, right=short if short in _TORCH_DTYPES else "bfloat16"
        )


def _quantized(folder: Folder) -> Iterator[Finding]:
    value = folder.config.get("quantization_config")
    if isinstance(value, dict) and value:
        yield from folder.say("MODEL-QUANTIZED", _FILE, measured=value.get("quant_method", "quantization_config"))
