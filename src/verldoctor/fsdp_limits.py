"""Finds in an RL training configuration what the stack cannot do: the run would fail late, or be silently wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verldoctor.modeltype import model_type
from verldoctor.saying import listed
from verldoctor.versions import brought_by, has, release

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verldoctor.finding import Finding
    from verldoctor.fsdp_training import Training

_ACTOR = "actor_rollout_ref"
_ROLLOUT_NAME, _ROLLOUT_COUNT = f"{_ACTOR}.rollout.name", f"{_ACTOR}.rollout.n"
_ROLES = {_ACTOR: f"{_ACTOR}.model", "critic": "critic.model", "reward_model": "reward_model.model"}
_PADDING_TYPES = {"llama", "mistral", "gemma", "qwen2"}  # verl/models/registry.py, v0.2.0.post2
_ULYSSES_TYPES = {"llama", "qwen2"}  # verl/models/transformers/monkey_patch.py, v0.2.0.post2
_VLLM_VERSIONS = {"0.3.1", "0.4.2", "0.5.4", "0.6.3"}  # verl/third_party/vllm/__init__.py; later: all from 0.6.6.post2
_VLLM_FROM = "0.6.6.post2.dev252"


def judge(training: Training) -> Iterator[Finding]:
    """What of `training` the stack cannot do."""
    for role in _roles(training):
        yield from model_known(training, f"{_ROLES[role]}.path", _ROLES[role])
    yield from _critic(training)
    yield from _reward_model(training)
    for role in _roles(training):
        yield from _remove_padding(training, role)
    yield from _ulysses(training)
    yield from _shuffle(training)
    yield from _rollout(training)


def model_known(training: Training, key: str, section: str) -> Iterator[Finding]:
    """Whether transformers has the model type that `key` names; a model may bring its own code, if that is allowed."""
    kind = model_type(training.get(key)) if training.given(key) else ""
    if kind and has("config", kind, training.stack) is False and not training.on(f"{section}.trust_remote_code"):
        since = brought_by("config", kind)
        yield from training.say("FSDP-MODEL-TYPE", key, family=kind, since=_later(since), right="a type it has")


def _roles(training: Training) -> list[str]:
    """The parts of the configuration that a run with these settings makes workers of."""
    used = {_ACTOR: True, "critic": training.get("algorithm.adv_estimator") == "gae"}
    used["reward_model"] = training.on("reward_model.enable")
    return [role for role, is_used in used.items() if is_used]


def _type_of(training: Training, role: str) -> str:
    """The model_type of a role's model; the critic's is the actor's where only that one is told."""
    key = f"{_ROLES[role]}.path"
    if role == "critic" and not training.given(key) and training.given(f"{_ACTOR}.model.path"):
        key = f"{_ACTOR}.model.path"
    return model_type(training.get(key))


def _critic(training: Training) -> Iterator[Finding]:
    key = "algorithm.adv_estimator"
    if training.get(key) != "gae":
        return
    kind = _type_of(training, "critic")
    known = has("token_classification", kind, training.stack) if kind else None
    since = brought_by("token_classification", kind) if kind else None
    if known is False:
        yield from training.say("FSDP-CRITIC", key, family=kind, since=_later(since), **_without_critic(training))
    elif known is None:
        yield from training.say("FSDP-CRITIC-UNSURE", key, **_without_critic(training))


def _without_critic(training: Training) -> dict[str, str]:
    """The estimator that does without a critic and has a baseline all the same: grpo's is the mean of its group."""
    groups = training.get(_ROLLOUT_NAME) != "hf" and (training.number(_ROLLOUT_COUNT) or 1) > 1
    why = "   (grpo has no baseline where each prompt has one response, as with the hf rollout)"
    return {"right": "grpo", "note": ""} if groups else {"right": "reinforce_plus_plus", "note": why}


def _later(since: str | None) -> str:
    return f"there from transformers {since}" if since else "in no release that was looked at"


def _reward_model(training: Training) -> Iterator[Finding]:
    if not training.on("reward_model.enable"):
        return
    key = "reward_model.model.path"
    kind = _type_of(training, "reward_model")
    if kind and has("token_classification", kind, training.stack) is False:
        since = brought_by("token_classification", kind)
        yield from training.say(
            "FSDP-REWARD-MODEL", key, family=kind, since=_later(since), right="reward_model.enable: false"
        )
    if training.get("reward_model.model.input_tokenizer") is None:
        yield from training.say(
            "FSDP-RM-TOKENIZER", "reward_model.model.input_tokenizer", right="the actor's model path"
        )
    elif not training.on("data.return_raw_chat"):
        yield from training.say("FSDP-RM-RAW-CHAT", "data.return_raw_chat", right="true")


def _remove_padding(training: Training, role: str) -> Iterator[Finding]:
    key = f"{_ROLES[role]}.use_remove_padding"
    if not training.on(key):
        return
    yield from training.say("FSDP-REMOVE-PADDING", key, right="false")
    kind = _type_of(training, role)
    if kind and kind not in _PADDING_TYPES:
        yield from training.say("FSDP-PADDING-TYPE", key, measured=kind, right="false", types=listed(_PADDING_TYPES))


def _ulysses(training: Training) -> Iterator[Finding]:
    for place in (f"{_ACTOR}.actor", f"{_ACTOR}.ref", "critic", "reward_model"):
        role = place.partition(".")[0]
        key = f"{place}.ulysses_sequence_parallel_size"
        follows = place.endswith(".ref") and not training.given(key)  # verl's default is the actor's value
        if role in _roles(training) and not follows and (training.number(key) or 1) > 1:
            yield from _sequence_parallel(training, role, key)


def _sequence_parallel(training: Training, role: str, key: str) -> Iterator[Finding]:
    yield from training.say("FSDP-ULYSSES", key, right=1)
    padding = f"{_ROLES[role]}.use_remove_padding"
    if not training.on(padding):
        yield from training.say("FSDP-ULYSSES-PADDING", key, right=1, padding=padding)
    kind = _type_of(training, role)
    if kind and kind not in _ULYSSES_TYPES:
        yield from training.say("FSDP-ULYSSES-TYPE", key, measured=kind, right=1, types=listed(_ULYSSES_TYPES))


def _shuffle(training: Training) -> Iterator[Finding]:
    if training.on("data.shuffle") and (training.number("trainer.save_freq") or -1) > 0:
        freq = training.get("trainer.save_freq")
        yield from training.say("FSDP-SHUFFLE-SAVE", "data.shuffle", right="false", freq=freq)


def _rollout(training: Training) -> Iterator[Finding]:
    key, count = _ROLLOUT_NAME, training.number(_ROLLOUT_COUNT) or 1
    name = training.get(key)
    if name == "hf" and count > 1:
        alone = training.get("algorithm.adv_estimator") == "grpo"  # without a group there is no baseline
        also = ", and algorithm.adv_estimator: reinforce_plus_plus" if alone else ""
        yield from training.say("FSDP-ROLLOUT-N", _ROLLOUT_COUNT, right=1, also=also)
    elif name == "vllm":
        yield from _vllm(training, key)
    elif name != "hf":
        yield from training.say("FSDP-ROLLOUT-NAME", key, right="hf or vllm")


def _vllm(training: Training, key: str) -> Iterator[Finding]:
    version = training.stack.get("vllm", "")
    if not version:
        yield from training.say("FSDP-VLLM-ABSENT", key, right="hf")
    elif version.partition("+")[0] not in _VLLM_VERSIONS and not _recent(version):
        yield from training.say("FSDP-VLLM-VERSION", key, measured=version, right=listed(_VLLM_VERSIONS))
    if training.on(f"{_ACTOR}.rollout.free_cache_engine") and not training.on(f"{_ACTOR}.rollout.enforce_eager"):
        yield from training.say("FSDP-VLLM-EAGER", f"{_ACTOR}.rollout.enforce_eager", right="true")


def _recent(version: str) -> bool:
    mine, first = release(version), release(_VLLM_FROM)
    return mine is not None and first is not None and mine >= first
