"""Checks model folders before a run: configuration, tokenizer and weight files against the stack and each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verldoctor import model_config, model_weights, tokenizer
from verldoctor.model_folder import Folder, open_folder
from verldoctor.saying import listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from verldoctor.context import Context
    from verldoctor.finding import Finding

_REWARD = ("ForSequenceClassification", "ForTokenClassification", "RewardModel", "ForRewardModel")


def check(paths: Sequence[Path], context: Context) -> list[Finding]:
    """Findings about the model folders `paths`; two or more are also compared: the first is the actor, unless told.

    Args:
        paths: folders, or the config.json or tokenizer_config.json in one.
        context: the pins that say what loads.
    """
    folders = [open_folder(path, context.stack) for path in _each(paths)]
    findings = [finding for folder in folders for finding in _one(folder)]
    if len(folders) > 1:
        findings += _compare(folders)
    return findings


def _each(paths: Sequence[Path]) -> list[Path]:
    """The folders that `paths` mean, each once."""
    files = ("config.json", "tokenizer_config.json", "tokenizer.json", "generation_config.json")
    return list(dict.fromkeys(path.parent if path.name in files else path for path in paths))


def _one(folder: Folder) -> Iterator[Finding]:
    yield from folder.problems
    if folder.bare:
        yield from folder.say("MODEL-CONFIG-ONLY", "", measured=f"{len(folder.files)} files")
    if folder.present:
        yield from model_config.judge(folder)
        yield from tokenizer.judge(folder)
        yield from model_weights.judge(folder)


def _compare(folders: list[Folder]) -> Iterator[Finding]:
    """Findings about a reward model or critic beside its actor."""
    actor = next((folder for folder in folders if not _scores(folder)), folders[0])
    for other in folders:
        if other is not actor and other.present and actor.present:
            yield from _dtypes(actor, other)
            yield from _tokenizers(actor, other)


def _scores(folder: Folder) -> bool:
    """Whether the folder holds a reward model."""
    return any(name.endswith(_REWARD) for name in folder.architectures)


def _dtypes(actor: Folder, other: Folder) -> Iterator[Finding]:
    mine, theirs = actor.dtype, other.dtype
    if mine and theirs and mine != theirs:
        yield from other.say("MODEL-DTYPE", "config.json", measured=theirs, right=mine, actor=actor.name)


def _tokenizers(actor: Folder, other: Folder) -> Iterator[Finding]:
    """Different vocabularies: ids of one mean other words in the other."""
    mine, theirs = actor.vocabulary, other.vocabulary
    if mine.tokens and theirs.tokens and mine.tokens != theirs.tokens:
        differing = [token for token, number in mine.tokens.items() if theirs.tokens.get(token) != number]
        words = listed(differing, 3) or f"{len(theirs.tokens) - len(mine.tokens)} tokens more"
        yield from other.say(
            "MODEL-TOKENIZERS",
            "tokenizer.json",
            measured=words,
            right=f"input_tokenizer: {actor.name}",
            actor=actor.name,
        )
