"""Field names of verl's data: what they are, and which one a near miss was meant to be."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

TOP = ("data_source", "prompt", "ability", "reward_model", "extra_info")
OPTIONAL = ("ability", "extra_info")  # v0.2.0.post2 never reads ability, and takes {} for a missing extra_info
TRUTH = "reward_model.ground_truth"
ROLES = {"system", "user", "assistant", "tool"}  # what chat templates know
OTHER_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "ai": "assistant"}
# data sources that `_default_compute_score` of verl v0.2.0.post2 knows; any other one raises NotImplementedError
TEXT_SOURCES = {"openai/gsm8k", "lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval"}
SOURCES = TEXT_SOURCES | {
    *("numina_aops_forum", "numina_synthetic_math", "numina_amc_aime", "numina_synthetic_amc", "numina_cn_k12"),
    *("numina_olympiads", "codecontests", "apps", "codeforces", "taco"),
}
_ALIASES = {
    "prompt": "question input instruction query problem messages conversations conversation chat prompts text",
    TRUTH: "answer output response solution completion target label groundtruth gold expectedanswer finalanswer "
    "goldanswer gtanswer reference chosen responses answers outputs",
    "data_source": "source dataset datasetname origin",
    "role": "from speaker author",
    "content": "value text message",
}
_MEANT = {alias: right for right, words in _ALIASES.items() for alias in words.split()}
_EDGE = " \t\r\n\f\v\u00a0\u3000\ufeff\u200b\u200c\u200d\u2060"
_LOOSE = re.compile(rf"[{re.escape(_EDGE)}_\-. ]+")


class Misnamed(NamedTuple):
    """A key that is not verl's name but stands for it; `code` says in which way it differs."""

    code: str
    key: str
    right: str


def meant(key: str, wanted: Collection[str]) -> Misnamed | None:
    """Which of the `wanted` names `key` was meant to be; None if it resembles none of them."""
    plain = loose(key)
    right = next((name for name in wanted if loose(name.rpartition(".")[2]) == plain), "") or _alias(plain, wanted)
    if not right:
        return None
    if right in OPTIONAL:
        return Misnamed("DATA-OPTIONAL-NAME", key, right)
    if key.strip(_EDGE) != key:
        return Misnamed("DATA-NAME-BLANK", key, right)
    same = loose(right.rpartition(".")[2]) == plain
    return Misnamed("DATA-NAME-CASE" if same and "." not in right else "DATA-NAME-OTHER", key, right)


def loose(name: str) -> str:
    """`name` without case, blanks, invisible characters, dashes, dots and underscores."""
    return _LOOSE.sub("", name).lower()


def misnamed(keys: Iterable[str], wanted: Collection[str]) -> list[Misnamed]:
    """Keys that stand for one of the `wanted` names, in their order in the row."""
    hits = (meant(key, wanted) for key in keys)
    return [hit for hit in hits if hit]


def _alias(plain: str, wanted: Collection[str]) -> str:
    right = _MEANT.get(plain, "")
    if right in wanted:
        return right
    # `text` and the like stand for a prompt in a row, for content in a message
    return next((name for name in wanted if plain in _ALIASES.get(name, "").split()), "")
