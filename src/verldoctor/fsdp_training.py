"""Reads a verl training configuration with verl's own defaults below it, and runs the rules for its kind of trainer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from verldoctor.saying import say
from verldoctor.versions import applies, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from verldoctor.context import Context
    from verldoctor.finding import Finding
    from verldoctor.fsdp_load import Config

_RL_KEYS = ("actor_rollout_ref", "algorithm", "critic", "reward_model")
_SFT_KEYS = ("model.partial_pretrain", "model.lora_rank", "data.micro_batch_size_per_gpu", "data.response_key")
_OTHERS = {  # trainer/config/generation.yaml and evaluation.yaml, v0.2.0.post2
    "main_generation": {"data.path", "data.output_path", "model.path"},
    "main_eval": {"data.path", "data.response_key", "data.reward_model_key"},
}
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_INTERPOLATIONS = 8  # ${a} that is ${b} that is …; verl's own chains have two links


@dataclass(frozen=True)
class Training:
    """A training configuration as verl would see it.

    Attributes:
        config: what was given.
        trainer: `ppo` or `sft`.
        stack: the pins.
    """

    config: Config
    trainer: str
    stack: Mapping[str, str]

    @property
    def defaults(self) -> dict[str, Any]:
        """Verl's own values by dotted key."""
        values: dict[str, Any] = table("verl_defaults")[self.trainer]
        return values

    def given(self, key: str) -> bool:
        """Whether the input itself sets `key`."""
        return key in self.config.settings

    def certain(self, key: str) -> bool:
        """Whether the value of `key` in the run is known: given, or verl's because only overrides were given."""
        return self.given(key) or self.config.whole

    def get(self, key: str) -> Any:
        """The value of `key`, interpolations like `${data.seed}` followed; verl's default where it is not given."""
        for _ in range(_INTERPOLATIONS):
            setting = self.config.settings.get(key)
            value = setting.value if setting else self.defaults.get(key)
            inner = value[2:-1] if isinstance(value, str) and value.startswith("${") and value.endswith("}") else None
            if inner is None or not (inner in self.config.settings or inner in self.defaults):
                return value
            key = inner
        return "$"  # goes round in circles

    def number(self, key: str) -> int | None:
        """The value of `key` if it is a whole number, in quotes or not."""
        value = self.get(key)
        if isinstance(value, str) and _WHOLE.fullmatch(value):
            return int(value)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def on(self, key: str) -> bool:
        """Whether `key` is switched on."""
        value = self.get(key)
        return value is True or (isinstance(value, str) and value.lower() in {"true", "yes", "on"})

    def where(self, key: str) -> str:
        """`key` with its place in the input, or marked as verl's default."""
        setting = self.config.settings.get(key)
        return setting.where if setting else f"{self.config.name} {key} (verl's default)"

    def say(self, code: str, key: str, **words: object) -> Iterator[Finding]:
        """The finding `code` about `key`, if that rule holds for the stack; none about a variable we cannot follow."""
        value = self.get(key)
        if applies(code, self.stack) and not (isinstance(value, str) and "$" in value):
            words.setdefault("measured", value)
            yield say("fsdp", code, self.where(key), key=key, **pins(self.stack), **words)


def pins(stack: Mapping[str, str]) -> dict[str, str]:
    """The versions that sentences of the rules may quote."""
    return {name: stack.get(name, "?") for name in ("torch", "transformers", "verl", "vllm")}


def other_program(config: Config) -> str:
    """The program of verl that `config` is for, where that is one that trains nothing: its two smaller YAML files."""
    for name, keys in _OTHERS.items():
        if keys <= config.settings.keys() and not any(key.startswith("actor_rollout_ref.") for key in config.settings):
            return name
    return ""


def recognises(config: Config) -> bool:
    """Whether `config` is for one of verl's trainers."""
    return bool(_trainer(config))


def judge(config: Config, context: Context) -> Iterator[Finding]:
    """Findings about a verl training configuration."""
    from verldoctor import fsdp_keys, fsdp_limits, fsdp_rl, fsdp_sft  # noqa: PLC0415 - loaded when such a file comes

    training = Training(config=config, trainer=_trainer(config), stack=context.stack)
    yield from fsdp_keys.judge(training)
    if training.trainer == "sft":
        yield from fsdp_sft.judge(training)
        return
    yield from fsdp_limits.judge(training)
    yield from fsdp_rl.judge(training)


def _trainer(config: Config) -> str:
    """`ppo`, `sft`, or "" if it is for neither."""
    if config.entry:
        return {"main_ppo": "ppo", "fsdp_sft_trainer": "sft"}.get(config.entry, "")
    tops = {key.partition(".")[0] for key in config.settings}
    if tops & set(_RL_KEYS):
        return "ppo"
    if any(key in config.settings for key in _SFT_KEYS):
        return "sft"
    return "ppo" if tops and tops <= {"data", "trainer"} else ""
