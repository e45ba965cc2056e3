"""The check `devices`: which GPUs are visible, who sits where, and whether the batches divide."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from verldoctor import batches, placement, visible
from verldoctor.bounded import Unreadable
from verldoctor.dump import parse_table, read_dump, texts, whole
from verldoctor.finding import Finding, found
from verldoctor.text import safe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from verldoctor.context import Context

_ALIASES = {  # our name, then verl's and torchrun's
    "nproc_per_node": ("nproc_per_node", "n_gpus_per_node"),
    "nnodes": ("nnodes",),
    "sp": ("sp", "ulysses_sequence_parallel_size", "sequence_parallel"),
    "tp": ("tp", "tensor_model_parallel_size", "tensor_parallel"),
    "micro": ("micro_batch", "ppo_micro_batch_size_per_gpu", "micro_batch_size_per_gpu", "micro_batch_per_gpu"),
    "micro_total": ("ppo_micro_batch_size", "micro_batch_total"),
    "mini": ("mini_batch", "ppo_mini_batch_size", "mini_batch_size"),
    "train": ("train_batch", "train_batch_size"),
    "n": ("n", "rollout_n"),
}
_OTHERS = {
    "kind",
    "env",
    "gpus",
    "placement",
    "pools",
    "mapping",
    "critic",
    "use_dynamic_bsz",
    "dynamic_bsz",
    "gpu_uuids",
}
_WORDS = ("gpu", "auto", "cpu")  # torchrun --nproc_per_node accepts these


def check(paths: Sequence[Path], context: Context) -> list[Finding]:
    """Findings on each dump in `paths`, or on this machine where there is none."""
    if not paths:
        table = _facts(context)
        none = [] if table["gpus"] else [found("devices", "DEVICES-NONE", "this machine")]
        return none or list(judge(table, "this machine"))
    return [finding for path in paths for finding in _file(path)]


def dump(context: Context) -> str:
    """This machine's GPUs and launch variables as JSON, in the form that `check` reads; add batch sizes by hand."""
    return json.dumps(_facts(context), indent=2) + "\n"


def _facts(context: Context) -> dict[str, Any]:
    from verldoctor.machine import facts  # noqa: PLC0415 - a saved dump needs nothing of this machine

    here = facts({key: value for key, value in context.env.items() if key != visible.NAME})
    table: dict[str, Any] = {"kind": "devices", "gpus": here["gpus"], "env": {}}
    uuids = [row["uuid"] for row in here.get("smi", []) if row.get("uuid")]
    table |= {"gpu_uuids": uuids} if uuids else {}
    if visible.NAME in context.env:
        table["env"][visible.NAME] = context.env[visible.NAME]
    if local := whole(context.env.get("LOCAL_WORLD_SIZE")):
        table["nproc_per_node"] = local
    return table


def _file(path: Path) -> Iterator[Finding]:
    subject = safe(path)
    try:
        table = parse_table(read_dump(path))
    except Unreadable as error:
        yield found("devices", "DEVICES-DUMP", subject, measured=safe(error))
        return
    known = _OTHERS.union(*_ALIASES.values())
    if not known & table.keys():
        yield found(
            "devices", "DEVICES-DUMP", subject, measured=f"none of its keys is known ({safe(', '.join(table), 80)})"
        )
    yield from judge(table, subject)


def judge(table: Mapping[str, Any], subject: str) -> Iterator[Finding]:
    """Findings on one dump, whatever part of one it holds."""
    yield from _bad_numbers(table, subject)
    gpus, uuids = _gpus(table)
    seen = visible.read(texts(table.get("env")).get(visible.NAME), gpus, uuids)
    yield from seen.findings
    ranks, nodes = _number(table, "nproc_per_node"), _number(table, "nnodes") or 1
    yield from _ranks(ranks, seen.count, subject, quiet=bool(seen.findings))
    here = ranks if ranks is not None else seen.count
    yield from placement.judge(table, seen.count * nodes if seen.count else None, nodes, subject)
    if here:
        yield from _batches(table, here * nodes, subject)


def _gpus(table: Mapping[str, Any]) -> tuple[int | None, list[str]]:
    gpus = table.get("gpus")
    if not isinstance(gpus, list):
        uuids = table.get("gpu_uuids")
        return whole(gpus), [uuid for uuid in uuids if isinstance(uuid, str)] if isinstance(uuids, list) else []
    rows = [row.get("uuid", "") if isinstance(row, dict) else row for row in gpus]
    return len(gpus), [row for row in rows if isinstance(row, str) and row]


def _number(table: Mapping[str, Any], name: str) -> int | None:
    values = (whole(table.get(alias)) for alias in _ALIASES[name])
    return next((value for value in values if value is not None and value > 0), None)


def _bad_numbers(table: Mapping[str, Any], subject: str) -> Iterator[Finding]:
    critic = table.get("critic")
    sections = [("", table), *([("critic.", critic)] if isinstance(critic, dict) else [])]
    for prefix, section in sections:
        for key in (alias for aliases in _ALIASES.values() for alias in aliases):
            value = section.get(key)
            if value is None or (key in _ALIASES["nproc_per_node"] and value in _WORDS):
                continue
            yield from _bad_number(prefix + key, value, subject)
    for key in ("placement", "pools", "mapping"):
        if not isinstance(table.get(key), (dict, type(None))):
            words = {"measured": safe(repr(table[key]), 60), "right": "an object", "key": key}
            yield found("devices", "DEVICES-VALUE", subject, **words)
    if not isinstance(table.get("gpus"), (list, type(None))):
        trains = any(_number(table, name) for name in ("micro", "micro_total", "mini", "train"))
        yield from _bad_number("gpus", table["gpus"], subject, least=int(trains))


def _bad_number(key: str, value: object, subject: str, least: int = 1) -> Iterator[Finding]:
    read = whole(value)
    if read is None:
        yield found(
            "devices", "DEVICES-VALUE", subject, measured=safe(repr(value), 60), right="a whole number", key=key
        )
    elif read < least:
        yield found("devices", "DEVICES-NUMBER", subject, measured=read, right=least, key=key)


def _ranks(ranks: int | None, count: int | None, subject: str, *, quiet: bool) -> Iterator[Finding]:
    if ranks is None or count is None or ranks == count:
        return
    if ranks > count and (count or not quiet):
        yield found("devices", "DEVICES-NPROC", subject, measured=ranks, right=count)
    elif ranks < count:
        yield found("devices", "DEVICES-IDLE", subject, measured=ranks, right=count)


def _batches(table: Mapping[str, Any], world: int, subject: str) -> Iterator[Finding]:
    n, train = _number(table, "n") or 1, _number(table, "train")
    for key in ("sp", "tp"):
        size = _number(table, key) or 1
        if world % size:
            words = {"key": _ALIASES[key][1], "world": world, "right": batches.divisors(world)}
            yield found("devices", "DEVICES-SP", subject, measured=size, **words)
    sizes = {role: len(ids) for role, ids in placement.groups(table).items() if ids} or {"": world}
    if train:
        yield from batches.train_batch(train, n, sizes, subject)
    yield from batches.judge(_role(table, "actor", n), train, sizes.get("actor", world), subject)
    if isinstance(critic := table.get("critic"), dict):
        mini = {"mini_batch": _number(table, "mini")}
        yield from batches.judge(_role({**mini, **critic}, "critic", 1), train, sizes.get("critic", world), subject)


def _role(table: Mapping[str, Any], name: str, repeat: int) -> batches.Role:
    return batches.Role(
        name=name,
        mini=_number(table, "mini"),
        micro=_number(table, "micro"),
        micro_total=_number(table, "micro_total"),
        sp=_number(table, "sp") or 1,
        repeat=repeat,
        dynamic=table.get("use_dynamic_bsz") is True or table.get("dynamic_bsz") is True,
    )
