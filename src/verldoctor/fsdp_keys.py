"""Finds keys that verl does not read: typing errors, keys of other releases, and overrides that Hydra refuses."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from verldoctor.versions import table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verldoctor.finding import Finding
    from verldoctor.fsdp_load import Setting
    from verldoctor.fsdp_training import Training

_MOST = 12  # findings; a configuration of another release has dozens, and they all say the same
_FIXED = {  # what fsdp_workers.py and fsdp_sft_trainer.py pass to FSDP, whatever a configuration says
    "use_orig_params": "False",
    "sharding_strategy": "FULL_SHARD",
    "sync_module_states": "True",
    "forward_prefetch": "False",
    "cpu_offload": "none for the actor and critic, on for the reference policy and reward model",
}


def judge(training: Training) -> Iterator[Finding]:
    """Findings about keys, at most a dozen; none where Megatron is asked for, whose keys are others."""
    if training.get("actor_rollout_ref.actor.strategy") == "megatron":
        return
    count = 0
    for key, setting in training.config.settings.items():
        for finding in _key(training, key, setting):
            yield finding
            count += 1
        if count >= _MOST:
            return


def _key(training: Training, key: str, setting: Setting) -> Iterator[Finding]:
    there, known = _in_yaml(training, key), _known(training, key)
    if key.startswith("hydra."):
        return
    if setting.op == "" and not there and training.config.whole:
        guess = f"+{key}" if known else _guess(training, key)
        yield from training.say("FSDP-HYDRA-PLUS", key, measured=key, right=f"+{key}", guess=guess)
    elif setting.op == "+" and there and training.config.whole:
        yield from training.say("FSDP-HYDRA-EXISTS", key, measured=f"+{key}", right=key)
    elif not known and setting.op != "~":
        yield from _ignored(training, key)


def _ignored(training: Training, key: str) -> Iterator[Finding]:
    fixed = _FIXED.get(key.rpartition(".")[2]) if ".fsdp_config." in key else None
    if fixed:
        yield from training.say("FSDP-KEY-FIXED", key, right=fixed)
    else:
        yield from training.say("FSDP-KEY-UNKNOWN", key, measured=key, right=_guess(training, key))


def _in_yaml(training: Training, key: str) -> bool:
    """Whether `key`, or a section of that name, is in verl's own file: what Hydra can change without a +."""
    if key in training.defaults:
        return True
    return any(name.startswith(f"{key}.") for name in training.defaults)


def _known(training: Training, key: str) -> bool:
    data = table("verl_defaults")
    if _in_yaml(training, key) or key in data["optional"][training.trainer]:
        return True
    return any(key == name or key.startswith(f"{name}.") for name in data["open"])


def _guess(training: Training, key: str) -> str:
    """The real key that `key` most resembles; the last name under the same section counts most."""
    names: list[str] = [*training.defaults, *table("verl_defaults")["optional"][training.trainer]]
    section, _, last = key.rpartition(".")
    beside = {name.rpartition(".")[2]: name for name in names if name.rpartition(".")[0] == section}
    close = difflib.get_close_matches(last[:80], list(beside), n=1, cutoff=0.7)
    if close:
        return beside[close[0]]
    far = difflib.get_close_matches(key[:120], names, n=1, cutoff=0.8)
    return far[0] if far else "nothing: leave it out"
