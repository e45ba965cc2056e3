"""Checks whether training may be resumed from a checkpoint: all shards there, whole, of one kind, harmless to load."""

from __future__ import annotations

import os
import re
from itertools import islice
from typing import TYPE_CHECKING, Any

from verldoctor.bounded import Unreadable, read_object
from verldoctor.checkpoint_files import check_file
from verldoctor.checkpoint_shards import SHARD, check_shards
from verldoctor.finding import Finding, found
from verldoctor.text import safe
from verldoctor.versions import at_least

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from verldoctor.context import Context

TRACKER = "latest_checkpointed_iteration.txt"
_STEP = re.compile(r"global_step_(\d{1,18})")
_ROLES = ("actor", "critic", "ref", "reward", "rm")
_WEIGHTS = (".pt", ".pth", ".bin", ".safetensors")
_PARTIAL = re.compile(
    r"\.(?:tmp|temp|part|partial|incomplete|crdownload|lock)(?:[._-]?\w*)?$|^\.?tmp[._-]|^\.nfs|~$", re.IGNORECASE
)
_FOREIGN = re.compile(r"mp_rank_\d+.*\.pt$|.*\.distcp$|zero_pp_rank_.*\.pt$|.*_optim_states\.pt$|distrib_optim\.pt$")
_MOST_NAMES = 100_000
_JSON_BYTES = 33_554_432  # an index of 91 000 tensors has 9 MB


def check(paths: Sequence[Path], context: Context) -> list[Finding]:
    """Findings about checkpoint files and directories: a run's, a step's, a role's or a model's."""
    findings: list[Finding] = []
    for path in paths:
        try:
            findings += list(_path(path, context))
        except OSError as error:
            findings.append(found("checkpoint", "CKPT-UNREADABLE", safe(path), measured=safe(error.strerror or error)))
    return findings


def _path(path: Path, context: Context) -> Iterator[Finding]:
    if not path.is_dir():
        yield from check_file(path, context)
        return
    names = list_names(path)
    steps = {int(hit[1]): path / hit[0] for hit in map(_STEP.fullmatch, names) if hit}
    if steps or TRACKER in names:
        yield from _run(path, names, steps, context)
    else:
        yield from _step(path, names, context)


def list_names(path: Path) -> list[str]:
    """Sorted names in a directory, at most a hundred thousand."""
    with os.scandir(path) as items:
        return sorted(item.name for item in islice(items, _MOST_NAMES))


def _run(path: Path, names: list[str], steps: dict[int, Path], context: Context) -> Iterator[Finding]:
    """A run's directory: the step that the tracker names decides; others are looked at for a way back."""
    yield from _partial(path, names)
    told = _tracked(path) if TRACKER in names else None
    if TRACKER not in names and not all(map(_of_sft, steps.values())):
        yield found("checkpoint", "CKPT-TRACKER-MISSING", safe(path), right=max(steps))
    elif TRACKER in names and told is None:
        yield found("checkpoint", "CKPT-TRACKER-BAD", safe(path / TRACKER), right=max(steps, default=0))
    elif told is not None and told not in steps:
        yield found("checkpoint", "CKPT-STEP-MISSING", safe(path), measured=told, right=_there(steps))
    target = told if told in steps else max(steps, default=None)
    judged = {step: list(_step(folder, list_names(folder), context)) for step, folder in sorted(steps.items())}
    broken = {step for step, findings in judged.items() if any(finding.severity == "fail" for finding in findings)}
    for step, findings in judged.items():
        if step == target:
            yield from findings
        elif step in broken:
            yield found("checkpoint", "CKPT-OTHER-STEP", safe(steps[step]), measured=findings[0].message)
    if target in broken:
        yield _unsafe(path, steps, target, broken)


def _of_sft(step: Path) -> bool:
    """Whether a step is the SFT trainer's: what save_pretrained writes, and no tracker beside it."""
    return not {"config.json", "adapter_config.json"}.isdisjoint(list_names(step))


def _there(steps: dict[int, Path]) -> str:
    return ", ".join(f"global_step_{step}" for step in sorted(steps)[-3:]) or "none"


def _unsafe(path: Path, steps: dict[int, Path], step: int, broken: set[int]) -> Finding:
    """The verdict on the step that would be resumed, with the newest other one that is whole."""
    whole = max(steps.keys() - broken, default=None)
    if whole is None:
        return found("checkpoint", "CKPT-UNSAFE-ALL", safe(path), measured=f"global_step_{step}")
    words = {"measured": f"global_step_{step}", "right": f"global_step_{whole}"}
    return found("checkpoint", "CKPT-UNSAFE", safe(path), folder=safe(steps[whole]), **words)


def _tracked(path: Path) -> int | None:
    try:
        with (path / TRACKER).open("rb") as stream:
            text = stream.read(64).decode("ascii").strip()
        return int(text) if len(text) < 19 and text.isdigit() else None
    except (OSError, ValueError):
        return None


def _step(path: Path, names: list[str], context: Context) -> Iterator[Finding]:
    """A step's directory with its roles, or a role's own, or a directory of weights."""
    roles = [name for name in _ROLES if name in names and (path / name).is_dir()]
    if any(map(SHARD.match, names)):
        yield from _role(path, names, context)
    elif roles:
        yield from _partial(path, names)
        for role in roles:
            yield from _role(path / role, list_names(path / role), context)
        yield from _loader(path, names, context)
        if "actor" not in roles:
            yield found("checkpoint", "CKPT-NO-ACTOR", safe(path))
    elif _STEP.fullmatch(path.name) and not any(name.endswith(_WEIGHTS) for name in names):
        yield from _partial(path, names)
        yield found("checkpoint", "CKPT-NO-ACTOR", safe(path))
    else:
        yield from _weights(path, names, context)


def _loader(path: Path, names: list[str], context: Context) -> Iterator[Finding]:
    if "data.pt" not in names:
        yield found("checkpoint", "CKPT-DATA-MISSING", safe(path))
    else:
        yield from check_file(path / "data.pt", context)


def _role(path: Path, names: list[str], context: Context) -> Iterator[Finding]:
    yield from _partial(path, names)
    if any(map(SHARD.match, names)):
        yield from check_shards(path, names, context)
        yield from _fsdp_config(path, names, context)
        yield from _huggingface(path, names, context)
    else:
        yield from _weights(path, names, context)


def _partial(path: Path, names: list[str]) -> Iterator[Finding]:
    left = [name for name in names if _PARTIAL.search(name)]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        yield found("checkpoint", "CKPT-PARTIAL", safe(path), measured=safe(left[0], 80) + more)


def _fsdp_config(path: Path, names: list[str], context: Context) -> Iterator[Finding]:
    """v0.9.0 writes fsdp_config.json beside the shards; its world size must be theirs."""
    if "fsdp_config.json" not in names:
        if at_least("verl", "0.9", context.stack):
            yield found("checkpoint", "CKPT-FSDP-CONFIG", safe(path), measured="missing", right="fsdp_config.json")
        return
    table = _object(path / "fsdp_config.json")
    sizes = sorted({int(hit[2]) for hit in map(SHARD.match, names) if hit})
    told = table.get("world_size") if table else None
    if told not in sizes:
        right = f"world_size {sizes[-1]}"
        yield found("checkpoint", "CKPT-FSDP-CONFIG", safe(path / "fsdp_config.json"), measured=safe(told), right=right)
    elif not at_least("verl", "0.3", context.stack):
        verl = safe(context.stack.get("verl", ""))
        yield found("checkpoint", "CKPT-NEWER", safe(path / "fsdp_config.json"), measured="fsdp_config.json", verl=verl)


def _huggingface(path: Path, names: list[str], context: Context) -> Iterator[Finding]:
    """Config and tokenizer, which resuming does not read, but merging and serving need."""
    folder = path / "huggingface"
    inside = set(list_names(folder)) if "huggingface" in names and folder.is_dir() else set()
    missing = [] if "config.json" in inside else ["huggingface/config.json"]
    if not inside & {"tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "vocab.txt"}:
        missing.append("huggingface/tokenizer.json (or tokenizer.model, vocab.json)")
    if missing:
        yield found("checkpoint", "CKPT-HF-MISSING", safe(path), measured=", ".join(missing))
    if "config.json" in inside and _object(folder / "config.json") is None:
        yield found("checkpoint", "CKPT-HF-BROKEN", safe(folder / "config.json"))
    for name in sorted(name for name in inside if name.endswith(_WEIGHTS)):
        yield from check_file(folder / name, context)


def _weights(path: Path, names: list[str], context: Context) -> Iterator[Finding]:
    """A directory without verl's shards: whatever weights lie there, and those that an index names."""
    foreign = [name for name in names if _FOREIGN.match(name)]
    if foreign:
        yield found("checkpoint", "CKPT-FOREIGN", safe(path), measured=safe(foreign[0], 80))
    files = [name for name in names if name.endswith(_WEIGHTS)]
    for name in (name for name in names if name.endswith(".index.json")):
        yield from _index(path, name, files)
    for name in files:
        yield from check_file(path / name, context)
    if not files and not foreign:
        yield found("checkpoint", "CKPT-NONE", safe(path))


def _index(path: Path, name: str, files: list[str]) -> Iterator[Finding]:
    table = _object(path / name)
    weights = table.get("weight_map") if table else None
    if not isinstance(weights, dict):
        yield found("checkpoint", "CKPT-HF-BROKEN", safe(path / name))
        return
    missing = sorted({str(file) for file in weights.values()} - set(files))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        yield found("checkpoint", "CKPT-INDEX", safe(path / name), measured=safe(missing[0], 100) + more)


def _object(path: Path) -> dict[str, Any] | None:
    """The JSON object at `path`; None if it is none or cannot be read."""
    try:
        return read_object(path, _JSON_BYTES)
    except Unreadable:
        return None
