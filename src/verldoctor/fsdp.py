"""Checks how a training run shards its model: plain descriptions of FSDP, and verl's own configuration files."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from verldoctor import overrides
from verldoctor.bounded import Unreadable
from verldoctor.fsdp_load import Config, load, overridden
from verldoctor.saying import say
from verldoctor.text import safe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from verldoctor.context import Context
    from verldoctor.finding import Finding

_SUFFIXES = {".yaml", ".yml", ".sh", ".json", ".sbatch", ".slurm"}
_FILES = 200  # of one folder; a configuration folder has a dozen
_ARGUMENTS = "arguments"


def check(paths: Sequence[Path], context: Context) -> list[Finding]:
    """Findings about the configurations `paths`.

    Args:
        paths: files, folders of files, and Hydra overrides (`+a.b=c`), which change every file that is given, or are
            judged over verl's own configuration where none is.
        context: the pins that say what the stack cannot do, and the environment.
    """
    words = [str(path) for path in paths if overrides.instead_of(path)]
    changes = overridden(_ARGUMENTS, words)
    files = [path for path in paths if not overrides.instead_of(path)]
    if words and not files:
        return _judge(changes, context)
    return [finding for path in files for finding in _judge_path(path, changes, context)]


def _judge_path(path: Path, changes: Config, context: Context) -> Iterator[Finding]:
    """Findings of one file; of a folder, those of the files in it that are configurations."""
    try:
        folder = path.is_dir()
        files = sorted(p for p in path.iterdir() if p.suffix.lower() in _SUFFIXES)[:_FILES] if folder else [path]
    except (OSError, ValueError) as error:
        yield say("fsdp", "FSDP-UNREADABLE", path.name, measured=getattr(error, "strerror", None) or "no such file")
        return
    for file in files:
        try:
            configs = [_changed(config, changes) for config in load(file)]
        except Unreadable as error:
            yield say("fsdp", "FSDP-UNREADABLE", file.name, measured=error)
            continue
        for config in configs:
            yield from _judge(config, context, quiet=folder)


def _changed(config: Config, changes: Config) -> Config:
    """`config` with the overrides of the command line over it."""
    if not changes.settings:
        return config
    kept = {key: value for key, value in config.settings.items() if not _replaced(key, changes)}
    new = {key: replace(setting, op="yaml") for key, setting in changes.settings.items() if setting.op != "~"}
    return replace(config, settings={**kept, **new})


def _replaced(key: str, changes: Config) -> bool:
    """Whether an override sets or deletes `key` or something above it."""
    return any(key == other or key.startswith(f"{other}.") for other in changes.settings)


def _judge(config: Config, context: Context, *, quiet: bool = False) -> list[Finding]:
    from verldoctor import fsdp_names, fsdp_plain, fsdp_training  # noqa: PLC0415 - only what an input needs is loaded

    findings = list(fsdp_names.judge(config))
    findings += [say("fsdp", "FSDP-REPEATED", place) for place in config.repeated[:5]]
    if program := fsdp_training.other_program(config):
        findings.append(say("fsdp", "FSDP-NO-TRAINING", config.name, measured=program))
    elif fsdp_training.recognises(config):
        findings += fsdp_training.judge(config, context)
    elif fsdp_plain.recognises(config):
        findings += fsdp_plain.judge(config, context)
    elif not (quiet or findings or config.entry):
        findings.append(say("fsdp", "FSDP-UNKNOWN", config.name, measured=_keys(config)))
    return findings


def _keys(config: Config) -> str:
    """The first names at the top of `config`."""
    tops = list(dict.fromkeys(key.partition(".")[0] for key in config.settings))
    return safe(", ".join(tops[:5])) or "nothing"
