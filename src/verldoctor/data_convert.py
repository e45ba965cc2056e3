"""Turns one row, whatever its fields are called, into a row of verl's format, or says why that cannot be done."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from verldoctor.data_names import ROLES, TOP, TRUTH, loose, meant
from verldoctor.data_rows import encodable, null, right_role

if TYPE_CHECKING:
    from collections import Counter

_GSM8K = re.compile(r"####\s*(-?[0-9.,]+)\s*$")  # the end of a GSM8K solution; the answer is what verl compares


@dataclass(frozen=True)
class Dropped:
    """A row that cannot be used, and why."""

    why: str


def converted(row: Any, index: int, source: str, guesses: Counter[tuple[str, str]]) -> dict[str, Any] | Dropped:
    """The row in verl's format.

    Args:
        row: what the input holds.
        index: its number in the output, for `extra_info.index`.
        source: `data_source` where the row names none; such guesses are counted.
        guesses: (field, value) of what had to be guessed.
    """
    if not isinstance(row, dict):
        return Dropped("not an object")
    named, rest = _named({str(key): value for key, value in row.items()})
    if isinstance(inner := named.get("extra_info"), dict) and "prompt" not in named:
        named = {**_named(inner)[0], **named}  # verl's SFT rows: extra_info.question and extra_info.answer
    prompt = _prompt(named.get("prompt"), rest)
    truth = _truth(named)
    if prompt is None:
        return Dropped("no prompt text")
    if truth is None:
        return Dropped("no ground truth")
    result = {
        "data_source": _word(named.get("data_source")) or _guess(guesses, "data_source", source),
        "prompt": prompt,
        "ability": _word(named.get("ability")) or _guess(guesses, "ability", "general"),
        "reward_model": {"style": _style(named.get("reward_model")), "ground_truth": truth},
        "extra_info": _extra(named.get("extra_info"), rest, index),
    }
    whole = encodable(json.dumps(result, ensure_ascii=False))
    return result if whole else Dropped("half a surrogate pair in a text")


def _guess(guesses: Counter[tuple[str, str]], field: str, value: str) -> str:
    guesses[field, value] += 1
    return value


def _named(row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values under verl's names, exact ones first, and the fields that have none."""
    named = {key: value for key, value in row.items() if key in TOP and not null(value)}
    rest = {}
    for key, value in row.items():
        if key in TOP:
            continue
        wanted = [name for name in (*TOP, TRUTH) if name not in named]
        hit = meant(key, wanted)
        if hit and not null(value):
            named[hit.right] = value
        else:
            rest[key] = value
    return named, rest


def _word(value: Any) -> str:
    return value if isinstance(value, str) and value.strip() else ""


def _style(reward: Any) -> str:
    return (_word(reward.get("style")) if isinstance(reward, dict) else "") or "rule"


def _truth(named: dict[str, Any]) -> str | None:
    """The ground truth as text, which is what the default score functions compare."""
    reward = named.get("reward_model")
    if isinstance(reward, dict):
        keys = [key for key in reward if key == "ground_truth" or meant(str(key), [TRUTH])]
        value = next((reward[key] for key in sorted(keys, key=lambda key: key != "ground_truth")), None)
    else:
        value = reward
    value = named.get(TRUTH) if null(value) else value
    if null(value):
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    solved = _GSM8K.search(text[-200:])
    text = solved[1].replace(",", "") if solved else text
    return text if text.strip() else None


def _prompt(value: Any, rest: dict[str, Any]) -> list[dict[str, str]] | None:
    """Chat messages of a text, one message or a list of them; None without a user's text."""
    if isinstance(value, str):
        more = next((rest[key] for key in rest if loose(key) in ("input", "context")), None)
        text = f"{value}\n\n{more}" if isinstance(more, str) and more.strip() else value
        return [{"role": "user", "content": text}] if text.strip() else None
    items = [value] if isinstance(value, dict) else value
    if not isinstance(items, list):
        return None
    messages = [message for message in map(_message, items) if message]
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()  # the answer, which the model would be shown
    user = any(message["role"] == "user" and message["content"].strip() for message in messages)
    return messages if user else None


def _message(item: Any) -> dict[str, str] | None:
    if isinstance(item, str):
        return {"role": "user", "content": item}
    if not isinstance(item, dict):
        return None
    found: dict[str, Any] = {}
    for key, value in item.items():
        hit = meant(str(key), [name for name in ("role", "content") if name not in found])
        if hit:
            found[hit.right] = value
    role, content = found.get("role"), found.get("content")
    if not isinstance(content, str):
        return None
    return {"role": role if role in ROLES else right_role(role if isinstance(role, str) else ""), "content": content}


def _extra(extra: Any, rest: dict[str, Any], index: int) -> dict[str, Any]:
    """`split` and `index`, other texts under their own names, and all else that the row had as JSON in `rest`."""
    old = extra if isinstance(extra, dict) else {} if null(extra) else {"extra_info": extra}
    number = old.get("index")
    whole = isinstance(number, int) and not isinstance(number, bool) and abs(number) < 1 << 63
    left = {key: value for key, value in old.items() if key not in ("split", "index")} | rest
    left = {key: value for key, value in left.items() if not null(value)}
    texts = {key: value for key, value in left.items() if isinstance(value, str) and key != "rest"}
    base = {"split": _word(old.get("split")) or "train", "index": number if whole else index}
    return with_rest({**base, **texts}, {key: value for key, value in left.items() if key not in texts})


def with_rest(extra: dict[str, Any], left: dict[str, Any]) -> dict[str, Any]:
    """`extra` with `left` added to the JSON text in its field `rest`, if there is anything."""
    if not left:
        return extra
    known = json.loads(extra["rest"]) if "rest" in extra else {}
    return {**extra, "rest": json.dumps({**known, **left}, ensure_ascii=False, default=str)}
