"""Checks an RL training configuration by what verl's trainer and FSDP workers assert, read, or get wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verldoctor import batches, fsdp_sections
from verldoctor.versions import applies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verldoctor.finding import Finding
    from verldoctor.fsdp_training import Training

_ESTIMATORS = ("gae", "grpo", "reinforce_plus_plus", "remax")  # ray_trainer.py, v0.2.0.post2
_ROLLOUT = "actor_rollout_ref.rollout"
_ACTOR = "actor_rollout_ref.actor"
_BATCHES = {  # section: (deprecated key, key per GPU); ray_trainer.py, check_mutually_exclusive
    _ACTOR: ("ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu"),
    "actor_rollout_ref.ref": ("log_prob_micro_batch_size", "log_prob_micro_batch_size_per_gpu"),
    _ROLLOUT: ("log_prob_micro_batch_size", "log_prob_micro_batch_size_per_gpu"),
    "critic": ("ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu"),
    "reward_model": ("micro_batch_size", "micro_batch_size_per_gpu"),
}
_SECTIONS = {
    f"{_ACTOR}.fsdp_config": ("actor_rollout_ref.model.path", f"{_ACTOR}.fsdp_config.wrap_policy"),
    "actor_rollout_ref.ref.fsdp_config": (
        "actor_rollout_ref.model.path", "actor_rollout_ref.ref.fsdp_config.wrap_policy",
    ),
    "critic.model.fsdp_config": ("critic.model.path", "critic.model.fsdp_config.wrap_policy"),
    "reward_model.model.fsdp_config": ("reward_model.model.path", "reward_model.model.fsdp_config"),
}  # fmt: skip


def judge(training: Training) -> Iterator[Finding]:
    """What of `training` verl refuses, ignores, or computes wrongly, whatever the pins of torch and transformers."""
    for rule in (_names, _strategy, _world, _batch, _mini_batches, _kl, _resume):
        yield from rule(training)
    for section in _used(training):
        yield from _micro_batch(training, section)
    for section, (model, policy) in _SECTIONS.items():
        yield from fsdp_sections.precision(training, section)
        yield from fsdp_sections.wrapping(training, policy, model)
    yield from _wrapping_ignored(training)


def _names(training: Training) -> Iterator[Finding]:
    key = "algorithm.adv_estimator"
    if training.get(key) not in _ESTIMATORS:
        yield from training.say("FSDP-ADV-ESTIMATOR", key, right=", ".join(_ESTIMATORS))
    if training.given("actor_rollout_ref.hybrid_engine") and not training.on("actor_rollout_ref.hybrid_engine"):
        yield from training.say("FSDP-HYBRID-ENGINE", "actor_rollout_ref.hybrid_engine", right="true")


def _strategy(training: Training) -> Iterator[Finding]:
    actor, critic = training.get(f"{_ACTOR}.strategy"), training.get("critic.strategy")
    if actor != "fsdp":
        yield from training.say("FSDP-STRATEGY", f"{_ACTOR}.strategy", right="fsdp")
    if actor != critic:
        yield from training.say("FSDP-STRATEGY-DIFFERS", "critic.strategy", right=actor)


def _world_size(training: Training) -> int | None:
    """How many GPUs the run takes, if the input says it."""
    keys = ("trainer.n_gpus_per_node", "trainer.nnodes")
    if not training.certain(keys[0]):
        return None
    each, nodes = (training.number(key) for key in keys)
    return each * nodes if each and nodes and each > 0 and nodes > 0 else None


def _world(training: Training) -> Iterator[Finding]:
    world = _world_size(training)
    for key in (f"{_ACTOR}.fsdp_config.fsdp_size", "critic.model.fsdp_config.fsdp_size"):
        size = training.number(key)
        used = key.startswith("actor") or training.get("algorithm.adv_estimator") == "gae"
        if used and size is not None and size >= 0 and (world is None or size < world):
            yield from training.say("FSDP-HSDP", key, right=-1)
    key = f"{_ROLLOUT}.tensor_model_parallel_size"
    parallel = training.number(key) or 1
    if world and parallel > 0 and world % parallel:
        yield from training.say("FSDP-TENSOR-PARALLEL", key, right=1, world=world)


def _batch(training: Training) -> Iterator[Finding]:
    key, world = "data.train_batch_size", _world_size(training)
    size, count = training.number(key), training.number(f"{_ROLLOUT}.n") or 1
    if world and size and training.certain(key) and size * count % world:
        right = -(-size // world) * world
        yield from training.say("FSDP-BATCH", key, right=right, total=size * count, world=world)


def _mini_batches(training: Training) -> Iterator[Finding]:
    """What the check `devices` says of mini and micro batches, where the configuration tells the number of GPUs."""
    world, n = _world_size(training), training.number(f"{_ROLLOUT}.n") or 1
    if not world or not applies("FSDP-BATCH", training.stack):
        return
    train = training.number("data.train_batch_size") if training.certain("data.train_batch_size") else None
    for name, place, repeat in (("actor", _ACTOR, n), ("critic", "critic", 1)):
        key = f"{place}.ppo_mini_batch_size"
        role = batches.Role(
            name=name,
            mini=training.number(key),
            micro=training.number(f"{place}.ppo_micro_batch_size_per_gpu"),
            micro_total=training.number(f"{place}.ppo_micro_batch_size"),
            sp=training.number(f"{place}.ulysses_sequence_parallel_size") or 1,
            repeat=repeat,
            dynamic=training.on(f"{place}.use_dynamic_bsz"),
        )
        trains = name == "actor" or training.get("algorithm.adv_estimator") == "gae"
        if trains and training.certain(key) and role.mini and not (role.micro and role.micro_total):
            yield from batches.judge(role, train, world, training.where(key))


def _used(training: Training) -> Iterator[str]:
    """The sections whose micro batch size the trainer looks at."""
    if not training.on(f"{_ACTOR}.use_dynamic_bsz"):
        yield from (_ACTOR, "actor_rollout_ref.ref", _ROLLOUT)
    if training.get("algorithm.adv_estimator") == "gae" and not training.on("critic.use_dynamic_bsz"):
        yield "critic"
    if training.on("reward_model.enable") and not training.on("reward_model.use_dynamic_bsz"):
        yield "reward_model"


def _micro_batch(training: Training, section: str) -> Iterator[Finding]:
    old, new = (f"{section}.{name}" for name in _BATCHES[section])
    both = [training.get(key) for key in (old, new)]
    if None not in both:
        yield from training.say("FSDP-MICRO-BATCH", old, measured=f"{both[0]} and {both[1]}", right="null", other=new)
    elif both == [None, None] and training.certain(old) and training.certain(new):
        yield from training.say("FSDP-MICRO-BATCH", new, measured="neither set", right="a number", other=new)


def _kl(training: Training) -> Iterator[Finding]:
    key = "algorithm.kl_ctrl.type"
    kind = training.get(key)
    missing = [name for name in ("horizon", "target_kl") if training.get(f"algorithm.kl_ctrl.{name}") is None]
    if kind == "adaptive" and missing:
        yield from training.say("FSDP-KL", key, right="fixed", needs=" and ".join(missing))
    elif kind not in {"adaptive", "fixed"}:
        yield from training.say("FSDP-KL", key, right="fixed", needs="to be fixed or adaptive")


def _resume(training: Training) -> Iterator[Finding]:
    key, hdfs = "trainer.resume_mode", "trainer.default_hdfs_dir"
    mode, path = training.get(key), training.get("trainer.resume_from_path")
    if training.get(hdfs) is not None and mode == "auto":
        yield from training.say("FSDP-HDFS-RESUME", hdfs, right="null")
    if mode not in {"auto", "disable"} and not path and "global_step_" not in str(mode):
        yield from training.say("FSDP-RESUME", key, right="auto, disable, or a path …/global_step_N")


def _wrapping_ignored(training: Training) -> Iterator[Finding]:
    own = f"{_ACTOR}.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap"
    if training.get(f"{_ROLLOUT}.name") == "hf" and training.get(own):
        yield from training.say("FSDP-WRAP-IGNORED", own, why="the hf rollout wraps the whole model as one unit")
    for rest, setting in training.config.under("reward_model.model.fsdp_config.wrap_policy").items():
        if setting.value:
            key = f"reward_model.model.fsdp_config.wrap_policy.{rest}"
            why = f"the reward model's is reward_model.model.fsdp_config.{rest}"
            yield from training.say("FSDP-WRAP-IGNORED", key, why=why)
