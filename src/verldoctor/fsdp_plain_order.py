"""Rules about a plain description that come from the order of its steps and from what the model is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verldoctor.fsdp_description import Description, dtype
from verldoctor.modeltype import model_type, modules_of_torch, wrap_problem
from verldoctor.saying import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from verldoctor.finding import Finding


# what a description calls adapters beside frozen weights, and frozen modules beside trained ones
_PARTLY = (
    "lora", "peft", "qlora", "lora_rank", "lora.r", "lora.rank", "frozen", "freeze", "frozen_modules", "freeze_modules",
    "frozen_layers", "freeze_layers",
)  # fmt: skip


def _optimizer(d: Description) -> Iterator[Finding]:
    made, wrapped = d.step("optimizer"), d.step("wrap", last=True)
    if 0 <= made < wrapped and not d.original:
        yield from d.say("FSDP-OPTIMIZER-EARLY", "use_orig_params", measured=_steps(d), right="wrap before optimizer")


def _move(d: Description) -> Iterator[Finding]:
    if d.offloads and d.step("move", last=True) > d.step("wrap") >= 0:
        yield from d.say("FSDP-OFFLOAD-MOVE", "cpu_offload", measured=_steps(d), right="no move after wrap")


def _load(d: Description) -> Iterator[Finding]:
    if d.step("load", last=True) > d.step("wrap") >= 0 and d.step("load") == d.step("load", last=True):
        yield from d.say("FSDP-LOAD-LATE", "order", measured=_steps(d), right="load before wrap")


def _compile(d: Description) -> Iterator[Finding]:
    if "TORCH_COMPILE_DISABLE" in d.env:  # any value disables, "0" too: measured
        return
    wrapped = d.step("wrap", last=True)
    inner = d.step("compile_submodules")
    asked = d.step("compile") >= 0 or inner >= 0 or d.on("compile") or d.on("torch_compile")
    if 0 <= inner < wrapped:
        yield from d.say("FSDP-COMPILE-EARLY", "order", measured=_steps(d), right="compile after wrap")
    elif asked and not d.original:
        yield from d.say("FSDP-COMPILE", "use_orig_params", measured=_kept(d), right="true")


def _requires_grad(d: Description) -> Iterator[Finding]:
    if _mixed(d) and not d.original and not _apart(d):
        yield from d.say("FSDP-REQUIRES-GRAD", "use_orig_params", measured=_kept(d), right="true")


def _mixed(d: Description) -> bool:
    """Whether frozen and trainable parameters meet in one model."""
    settings = d.config.settings
    value = settings["requires_grad"].value if "requires_grad" in settings else None
    values = value if isinstance(value, list) else [s.value for s in d.config.under("requires_grad").values()]
    words = isinstance(value, str) and value.strip().lower() in {"mixed", "partial", "some", "lora"}
    told = [settings[key].value for key in _PARTLY if key in settings]
    return words or len({str(v).lower() for v in values}) > 1 or any(map(_switched, told)) or d.step("adapters") >= 0


def _switched(value: Any) -> bool:
    """Whether a rank, a switch or a list of modules says that something is adapted or frozen."""
    if isinstance(value, str):
        return value.strip().lower() not in {"", "false", "no", "off", "none"}
    return bool(value)


def _apart(d: Description) -> bool:
    """Whether the wrap policy puts trainable leaves into units of their own, as verl's SFT trainer does for LoRA."""
    return any(d.on(f"wrap_policy.{name}") for name in ("is_lora", "lora", "lambda", "lambda_policy", "lambda_fn"))


def _dtypes(d: Description) -> Iterator[Finding]:
    settings = d.config.settings
    value = settings["param_dtypes"].value if "param_dtypes" in settings else None
    inner = d.config.under("param_dtypes")
    names = value if isinstance(value, list) else list(inner) or str(value or "").replace("+", ",").split(",")
    if inner and all(dtype(name) is None for name in names):  # {lm_head: fp32, layers: bf16}
        names = [setting.value for setting in inner.values()]
    kinds = {dtype(name) or str(name).strip() for name in names} - {""}
    if len(kinds) > 1 or kinds == {"mixed"}:
        yield from d.say("FSDP-PARAM-DTYPES", "param_dtypes", measured=listed(kinds), right="one dtype")


def _wrap_classes(d: Description) -> Iterator[Finding]:
    for key in ("wrap_policy.transformer_layer_cls_to_wrap", "transformer_layer_cls_to_wrap", "wrap_class"):
        value = d.get(key)
        names = value.split(",") if isinstance(value, str) else value
        for name in names if isinstance(names, list) else []:
            yield from _wrap_class(d, key, str(name).strip())


def _wrap_class(d: Description, key: str, name: str) -> Iterator[Finding]:
    modules = d.config.settings.get("model_modules")
    if modules and isinstance(modules.value, list):
        if name not in modules.value:
            layers = [m for m in modules.value if str(m).endswith(("Layer", "Block"))] or modules.value
            yield from d.say("FSDP-WRAP-CLASS", key, measured=name, right=listed(layers), among="model_modules")
        return
    kind = next((_kind(d, k) for k in ("model_type", "model.model_type", "model.path", "model") if _kind(d, k)), "")
    right = wrap_problem(kind, name) if kind and name not in modules_of_torch() else ""
    if right:
        yield from d.say("FSDP-WRAP-CLASS", key, measured=name, right=right, among=f"a {kind} model")


def _kind(d: Description, key: str) -> str:
    setting = d.config.settings.get(key)
    if setting is None or not isinstance(setting.value, str):
        return ""
    return setting.value if key.endswith("model_type") else model_type(setting.value)


def _kept(d: Description) -> str:
    """How a sentence names the value of use_orig_params."""
    return "false" if d.setting("use_orig_params") else "false, torch's default"


def _steps(d: Description) -> str:
    return " -> ".join(d.order)


RULES: tuple[Callable[[Description], Iterator[Finding]], ...] = (
    _optimizer, _move, _load, _compile, _requires_grad, _dtypes, _wrap_classes,
)  # fmt: skip
