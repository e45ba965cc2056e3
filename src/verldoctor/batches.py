"""Whether batches, mini batches and micro batches come out even over the GPUs, by verl's own arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from verldoctor.finding import Finding, found

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True)
class Role:
    """One trained model's batch settings; None where not told.

    Attributes:
        name: actor or critic.
        mini: ppo_mini_batch_size, in prompts.
        micro: ppo_micro_batch_size_per_gpu, in samples.
        micro_total: ppo_micro_batch_size, the deprecated sum over GPUs.
        sp: Ulysses sequence parallel size.
        repeat: how often a prompt counts in the mini batch: rollout.n for the actor, 1 for the critic.
        dynamic: use_dynamic_bsz, which ignores micro batch sizes.
    """

    name: str
    mini: int | None
    micro: int | None
    micro_total: int | None
    sp: int
    repeat: int
    dynamic: bool


def judge(role: Role, train: int | None, world: int, subject: str) -> Iterator[Finding]:
    """Findings for one role on `world` GPUs; a mini batch that is not told is the whole train batch."""
    mini = role.mini or train
    if role.sp < 1 or world % role.sp:
        return  # said already, and nothing below has a meaning
    dp = world // role.sp
    if role.micro and role.micro_total:
        words = {"role": role.name, "per_gpu": role.micro, "right": role.micro}
        yield found("devices", "DEVICES-MICRO-BOTH", subject, measured=role.micro_total, **words)
    if mini is None:
        return
    yield from _mini(role, mini, train, dp, subject)
    if not role.dynamic:
        yield from _micro(role, mini, dp, subject)
        yield from _total(role, mini, world, dp, subject)


def _mini(role: Role, mini: int, train: int | None, dp: int, subject: str) -> Iterator[Finding]:
    samples = mini * role.repeat
    even = max(round(samples / dp), 1) * dp // role.repeat or dp
    if samples < dp:
        yield found("devices", "DEVICES-MINI-ZERO", subject, measured=mini, right=dp, role=role.name, dp=dp)
    elif samples % dp:
        measured = f"mini batch {mini} x {role.repeat} over {dp} ranks"
        yield found("devices", "DEVICES-MINI", subject, measured=measured, right=even, role=role.name)
    elif train and role.mini and train % mini and role.name == "actor":
        measured = f"train batch {train} by mini batch {mini}"
        right = max((n for n in range(dp, min(train, mini) + 1, dp) if train % n == 0), default=train)
        yield found("devices", "DEVICES-MINI", subject, measured=measured, right=right, role=role.name)


def _micro(role: Role, mini: int, dp: int, subject: str) -> Iterator[Finding]:
    per_gpu = mini * role.repeat // dp
    if role.micro and per_gpu and per_gpu % role.micro:
        words = {"right": divisors(per_gpu), "role": role.name, "per_gpu": per_gpu}
        yield found("devices", "DEVICES-MICRO", subject, measured=role.micro, **words)


def _total(role: Role, mini: int, world: int, dp: int, subject: str) -> Iterator[Finding]:
    total = role.micro_total
    if total is None or role.micro:
        return
    least = -(-world // role.sp)
    if mini % total or total < least:
        right = max(total // dp, 1)
        words = {"right": right, "role": role.name, "mini": mini, "least": least}
        yield found("devices", "DEVICES-MICRO-TOTAL", subject, measured=total, **words)
    elif (per_gpu := mini * role.repeat // dp) and per_gpu % (total // dp):
        words = {"right": divisors(per_gpu), "role": role.name, "per_gpu": per_gpu}
        yield found("devices", "DEVICES-MICRO", subject, measured=total // dp, **words)


def train_batch(train: int, n: int, sizes: Mapping[str, int], subject: str) -> Iterator[Finding]:
    """Findings where `train` prompts of `n` answers do not split evenly; `sizes` is the group size of each role."""
    for role, size in sizes.items():
        if size > 0 and (train * n) % size:
            measured = f"{train} x n {n} = {train * n}" if n > 1 else str(train)
            near = (train // size + 1) * size
            words = {"right": near, "size": size, "role": f" of {role}" if role else ""}
            yield found("devices", "DEVICES-TRAIN-BATCH", subject, measured=measured, **words)


def divisors(number: int, most: int = 12) -> str:
    """The first divisors of `number`, for a fix."""
    return ", ".join(str(n) for n in [n for n in range(1, min(number, 4096) + 1) if number % n == 0][:most])
