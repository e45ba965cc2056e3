"""The parts of a plain FSDP description, whatever they are called: accelerate's and torch's names for one thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from verldoctor.saying import say

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from verldoctor.finding import Finding
    from verldoctor.fsdp_load import Config, Setting

# parameters of FullyShardedDataParallel in torch 2.3.1, and what a description says about the same thing
ARGUMENTS = {
    "process_group", "sharding_strategy", "cpu_offload", "auto_wrap_policy", "backward_prefetch", "mixed_precision",
    "ignored_modules", "param_init_fn", "device_id", "sync_module_states", "forward_prefetch", "limit_all_gathers",
    "use_orig_params", "ignored_states", "device_mesh",
}  # fmt: skip
BESIDE = {
    "wrap_policy", "transformer_layer_cls_to_wrap", "min_num_params", "state_dict_type", "offload_params", "fsdp_size",
    "activation_checkpointing", "param_offload", "grad_offload", "optimizer_offload", "cpu_ram_efficient_loading",
    "wrap_class", "version", "model_dtype", "backend", "device", "device_type", "reshard_after_forward",
}  # fmt: skip
_SECTIONS = ("fsdp", "fsdp_config", "fsdp_plugin")
_STEPS = {
    "load": "load", "load_weights": "load", "from_pretrained": "load", "load_model": "load", "init": "load",
    "load_checkpoint": "load", "load_state_dict": "load", "load_pretrained": "load",
    "wrap": "wrap", "fsdp": "wrap", "shard": "wrap", "fsdp_wrap": "wrap", "wrap_fsdp": "wrap",
    "wrap_model": "wrap", "apply_fsdp": "wrap", "fully_shard": "wrap",
    "move": "move", "to": "move", "to_cuda": "move", "cuda": "move", ".to('cuda')": "move", "to('cuda')": "move",
    "to_device": "move", "device": "move", ".cuda()": "move", "to(cuda)": "move",
    "to_gpu": "move", "move_to_gpu": "move", "move_to_cuda": "move", "move_to_device": "move",
    "optimizer": "optimizer", "optim": "optimizer", "create_optimizer": "optimizer", "make_optimizer": "optimizer",
    "build_optimizer": "optimizer", "init_optimizer": "optimizer", "optimiser": "optimizer", "adam": "optimizer",
    "adamw": "optimizer", "sgd": "optimizer",
    "lora": "adapters", "peft": "adapters", "get_peft_model": "adapters", "add_lora": "adapters",
    "adapter": "adapters", "adapters": "adapters", "freeze": "adapters",
    "compile": "compile", "torch.compile": "compile", "torch_compile": "compile",
    "compile_submodules": "compile_submodules", "compile_layers": "compile_submodules",
}  # fmt: skip
_DTYPES = {
    "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16", "half": "fp16", "16": "fp16",
    "fp32": "fp32", "float32": "fp32", "float": "fp32", "32": "fp32",
    "fp64": "fp64", "float64": "fp64", "double": "fp64",
    "fp8": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "uint8": "uint8", "int8": "int8",
}  # fmt: skip


@dataclass(frozen=True)
class Description:
    """A plain description.

    Attributes:
        config: the input.
        env: environment variables, the input's own `env` section over the process's.
        order: the steps, those of _STEPS by their common names, others as they stand.
    """

    config: Config
    env: Mapping[str, str]
    order: list[str]

    def setting(self, name: str) -> Setting | None:
        """The FSDP argument `name`, wherever the description has it."""
        for key in (*(f"{section}.{name}" for section in _SECTIONS), name, f"fsdp_config.fsdp_{name}", f"fsdp_{name}"):
            if key in self.config.settings:
                return self.config.settings[key]
        return None

    def get(self, name: str) -> Any:
        """The value of the FSDP argument `name`; None if the description does not have it."""
        found = self.setting(name)
        return found.value if found else None

    def on(self, name: str) -> bool:
        """Whether the FSDP argument `name` is switched on; `True` in quotes counts."""
        value = self.get(name)
        return value is True or (isinstance(value, str) and value.strip().lower() in {"true", "yes", "on", "1"})

    def sections(self) -> Iterator[tuple[str, Setting]]:
        """Every argument of the FSDP sections: its name and the setting."""
        for section in _SECTIONS:
            yield from self.config.under(section).items()

    def step(self, name: str, *, last: bool = False) -> int:
        """The place of step `name` in the order; -1 if it is not there."""
        places = [place for place, step in enumerate(self.order) if step == name]
        return (places[-1] if last else places[0]) if places else -1

    def where(self, name: str) -> str:
        """The place of `name` in the input."""
        found = self.setting(name)
        return found.where if found else f"{self.config.name} {name}"

    def say(self, code: str, name: str, **words: object) -> Iterator[Finding]:
        """The finding `code` about `name`."""
        words.setdefault("measured", self.get(name))
        yield say("fsdp", code, self.where(name), **words)

    @property
    def original(self) -> bool:
        """Whether parameters keep their own objects; torch's default is False (measured on 2.3.1 and 2.4.1)."""
        return self.on("use_orig_params")

    @property
    def offloads(self) -> bool:
        """Whether FSDP keeps parameters on the CPU."""
        return any(self.on(n) for n in ("cpu_offload", "cpu_offload.offload_params", "offload_params"))

    @property
    def on_cpu(self) -> bool:
        """Whether the description is of a run without GPUs."""
        devices = [str(self.get(name)).lower() for name in ("device", "device_type", "device_id")]
        return "cpu" in devices


def describe(config: Config, env: Mapping[str, str]) -> Description:
    """`config` read as a plain description."""
    own = {key: str(setting.value) for key, setting in config.under("env").items()}
    found = config.settings.get("order") or config.settings.get("steps")
    value = found.value if found else []
    steps = value.replace("->", ",").split(",") if isinstance(value, str) else value
    words = [str(step).strip().lower() for step in steps] if isinstance(steps, list) else []
    return Description(config=config, env={**env, **own}, order=[_STEPS.get(word, word) for word in words])


def dtype(value: object) -> str | None:
    """One name for a dtype: `torch.bfloat16`, `BFloat16` and `bf16` are bf16; None if it is none that is known."""
    return _DTYPES.get(str(value).strip().lower().removeprefix("torch."))
