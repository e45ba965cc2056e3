"""One row of training data against what verl's datasets and reward managers read from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from verldoctor.data_names import OPTIONAL, OTHER_ROLES, ROLES, SOURCES, TEXT_SOURCES, TOP, TRUTH, loose, misnamed

if TYPE_CHECKING:
    from collections.abc import Iterator

BYTES_PER_TOKEN = 4  # English about 4 bytes a token, Chinese 3 bytes a character at about 0.7 tokens: near 4 as well
# problems that depend on the value of a text, not on the row's shape: rows with them teach no shape
VALUE_CODES = {"DATA-BLANK", "DATA-LONG", "DATA-SURROGATE"}
_RL = {loose(name) for name in ("data_source", "reward_model", "ability")}


class Problem(NamedTuple):
    """What is wrong with a row: the rule, the field, and the value or the right name where there is one."""

    code: str
    field: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Judge:
    """What rows are judged by.

    Attributes:
        limit: `data.max_prompt_length` in tokens.
        sources: check `data_source` against the default score functions of v0.2.
    """

    limit: int = 512
    sources: bool = True

    def problems(self, row: Any) -> list[Problem]:
        """Everything wrong with `row`, in a stable order."""
        if not isinstance(row, dict):
            return [Problem("DATA-NOT-OBJECT", detail=kind(row))]
        other = list(_other_trainer(row))
        return other or [*_names(row), *self._prompt(row), *self._source(row), *self._reward(row), *_extra(row)]

    def _source(self, row: dict[str, Any]) -> Iterator[Problem]:
        if "data_source" not in row:
            return
        source = row["data_source"]
        if null(source):
            yield Problem("DATA-NULL", "data_source")
        elif not isinstance(source, str):
            yield Problem("DATA-TYPE", "data_source", f"{kind(source)}, not a string")
        elif not source.strip():
            yield Problem("DATA-BLANK", "data_source")
        elif self.sources and source not in SOURCES:
            yield Problem("DATA-SOURCE", "data_source", source)

    def _reward(self, row: dict[str, Any]) -> Iterator[Problem]:
        if "reward_model" not in row:
            return
        reward = row["reward_model"]
        if null(reward):
            yield Problem("DATA-NULL", "reward_model")
        elif not isinstance(reward, dict):
            yield Problem("DATA-TYPE", "reward_model", f"{kind(reward)}, not an object with style and ground_truth")
        else:
            yield from _missing_in(reward, "reward_model", ("ground_truth",))
            yield from self._truth(reward, row.get("data_source"))
            if "style" not in reward:
                yield Problem("DATA-STYLE")

    def _truth(self, reward: dict[str, Any], source: object) -> Iterator[Problem]:
        if "ground_truth" not in reward:
            return
        truth = reward["ground_truth"]
        if null(truth):
            yield Problem("DATA-NULL", TRUTH)
        elif isinstance(truth, str):
            yield from _text(truth, TRUTH)
        elif isinstance(source, str) and source in TEXT_SOURCES:
            yield Problem("DATA-TRUTH-TYPE", TRUTH, f"{kind(truth)} for {source}")

    def _prompt(self, row: dict[str, Any]) -> Iterator[Problem]:
        if "prompt" not in row:
            return
        prompt = row["prompt"]
        if null(prompt):
            yield Problem("DATA-NULL", "prompt")
        elif not isinstance(prompt, list):
            yield Problem("DATA-PROMPT-TYPE", "prompt", kind(prompt))
        elif not prompt:
            yield Problem("DATA-PROMPT-EMPTY", "prompt")
        else:
            yield from dict.fromkeys(problem for message in prompt for problem in _message(message))
            yield from self._whole(prompt)

    def _whole(self, prompt: list[Any]) -> Iterator[Problem]:
        last = prompt[-1]
        if isinstance(last, dict) and last.get("role") == "assistant":
            yield Problem("DATA-LAST-ASSISTANT", "prompt")
        texts = (message.get("content") for message in prompt if isinstance(message, dict))
        size = sum(len(text.encode("utf-8", "replace")) for text in texts if isinstance(text, str))
        if size > self.limit * BYTES_PER_TOKEN:
            yield Problem("DATA-LONG", "prompt", str(self.limit))


def _other_trainer(row: dict[str, Any]) -> Iterator[Problem]:
    """Rows of the SFT and reward-model datasets, which have other fields on purpose."""
    if _RL & {loose(key) for key in row if isinstance(key, str)}:
        return
    extra = row.get("extra_info")
    where = {f"extra_info.{key}": value for key, value in extra.items()} if isinstance(extra, dict) else {}
    for code, fields in (
        ("DATA-RM", ("prompt", "chosen", "rejected")),
        ("DATA-SFT", ("prompt", "response")),
        ("DATA-SFT", ("extra_info.question", "extra_info.answer")),
    ):
        values = {name: {**row, **where}.get(name) for name in fields}
        if all(isinstance(value, str) for value in values.values()):
            yield Problem(code, ", ".join(fields))
            yield from (problem for name, value in values.items() for problem in _text(str(value), name))
            return


def _names(row: dict[str, Any]) -> Iterator[Problem]:
    absent = [name for name in TOP if name not in row]
    wanted = [*absent, *([TRUTH] if "reward_model" in absent else [])]
    if not wanted:
        return
    hits = misnamed((key for key in row if key not in TOP), wanted)
    yield from (Problem(hit.code, hit.key, hit.right) for hit in hits)
    named = {hit.right.partition(".")[0] for hit in hits}
    for name in absent:
        if name not in named:
            yield Problem("DATA-OPTIONAL" if name in OPTIONAL else "DATA-MISSING", name)


def _missing_in(table: dict[str, Any], field: str, names: tuple[str, ...]) -> Iterator[Problem]:
    """Names that an object inside the row lacks, with the key that stands for each where there is one."""
    absent = [name for name in names if name not in table]
    if not absent:
        return
    wanted = [TRUTH] if absent == ["ground_truth"] else absent
    hits = misnamed((key for key in table if key not in names), wanted)
    yield from (Problem(hit.code, f"{field}.{hit.key}", f"{field}.{hit.right.rpartition('.')[2]}") for hit in hits)
    named = {hit.right.rpartition(".")[2] for hit in hits}
    yield from (Problem("DATA-MISSING", f"{field}.{name}") for name in absent if name not in named)


def _message(message: object) -> Iterator[Problem]:
    if not isinstance(message, dict):
        yield Problem("DATA-PROMPT-TYPE", "prompt", f"list of {kind(message)}")
        return
    yield from _missing_in(message, "prompt[]", ("role", "content"))
    yield from _role(message) if "role" in message else ()
    if "content" not in message:
        return
    content = message["content"]
    if null(content):
        yield Problem("DATA-NULL", "prompt[].content")
    elif not isinstance(content, str):
        yield Problem("DATA-TYPE", "prompt[].content", f"{kind(content)}, not a string")
    elif message.get("role") == "user":  # an empty system or tool message is odd, but means what it says
        yield from _text(content, "prompt[].content")


def _role(message: dict[str, Any]) -> Iterator[Problem]:
    role = message["role"]
    if null(role):
        yield Problem("DATA-NULL", "prompt[].role")
    elif not isinstance(role, str):
        yield Problem("DATA-TYPE", "prompt[].role", f"{kind(role)}, not a string")
    elif role not in ROLES:
        yield Problem("DATA-ROLE", role, right_role(role))


def right_role(role: str) -> str:
    """The chat role that `role` was meant to be; "user" when nothing tells."""
    plain = loose(role)
    return plain if plain in ROLES else OTHER_ROLES.get(plain, "user")


def _extra(row: dict[str, Any]) -> Iterator[Problem]:
    if "extra_info" not in row:
        return
    extra = row["extra_info"]
    if null(extra):  # rl_dataset.py: row_dict.get("extra_info", {}).get(...) on None
        yield Problem("DATA-NULL", "extra_info")
    elif not isinstance(extra, dict):
        yield Problem("DATA-TYPE", "extra_info", f"{kind(extra)}, not an object")


def _text(text: str, field: str) -> Iterator[Problem]:
    if not text.strip():
        yield Problem("DATA-BLANK", field)
    elif not encodable(text):
        yield Problem("DATA-SURROGATE", field)


def encodable(text: str) -> bool:
    """Whether `text` is free of lone surrogates, which no UTF-8 file can hold."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def null(value: object) -> bool:
    """Whether `value` is a missing one: null, or the NaN that pandas writes for it."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def kind(value: object) -> str:
    """The JSON name of the type of `value`; int and float are both numbers, as they are for Arrow."""
    names = {str: "string", bool: "boolean", int: "number", float: "number", list: "list", dict: "object"}
    return "null" if null(value) else names.get(type(value), "binary" if isinstance(value, bytes) else "other")
