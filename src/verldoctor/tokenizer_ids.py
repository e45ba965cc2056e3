"""Checks token ids: special tokens that are missing, out of range, or other ones in the tokenizer than in the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verldoctor.saying import listed
from verldoctor.versions import table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verldoctor.finding import Finding
    from verldoctor.model_folder import Folder

_SPECIAL = ("bos_token", "eos_token", "pad_token")
_OWN_PAD = {
    "gemma",
    "gemma2",
    "phi3",
    "opt",
    "olmo",
    "cohere",
    "jamba",
}  # their configuration classes have a pad_token_id
_SPARE = 1024  # rows of an embedding beyond the vocabulary that padding to multiples explains (Qwen2: 271 to 400)
_SHARE = 0.05  # and what part of it: phi-2 has 1.8 %, DeepSeek 2.3 %, nothing public that fits has more


def judge(folder: Folder, config: dict[str, Any]) -> Iterator[Finding]:
    """Findings about ids; `config` is tokenizer_config.json, or empty."""
    tokens = {name: _token(folder, config, name) for name in _SPECIAL}
    yield from _vocabulary(folder)
    yield from _range(folder)
    if not config:
        return
    yield from _pad(folder, tokens)
    yield from _known(folder, tokens)
    yield from _stops(folder, tokens["eos_token"])


def _token(folder: Folder, config: dict[str, Any], name: str) -> str:
    """The text of a special token: tokenizer_config.json, special_tokens_map.json, or the class's own default."""
    for place in (config, folder.json.get("special_tokens_map.json", {})):
        value = place.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str) and value:
            return value
    if name in config:  # null says: none, the class's default does not count
        return ""
    kind = str(config.get("tokenizer_class", ""))
    defaults = table("transformers")["tokenizer_defaults"]
    return str(defaults.get(f"{kind.removesuffix('Fast')}Fast", defaults.get(kind, {})).get(name, ""))


def _vocabulary(folder: Folder) -> Iterator[Finding]:
    """The highest id of the tokenizer against the rows of the embedding."""
    rows, tokens = folder.vocab_size, folder.vocabulary.tokens
    if rows is None:
        return
    over = {token: number for each in (tokens, folder.added) for token, number in each.items() if number >= rows}
    file = "tokenizer.json" if over.keys() & tokens.keys() else "tokenizer_config.json"
    if over:
        yield from folder.say("MODEL-VOCABULARY", file, measured=max(over.values()), right=rows, words=listed(over, 3))
    elif tokens and rows - (highest := max(tokens.values())) - 1 > max(_SPARE, rows * _SHARE):
        yield from folder.say("MODEL-VOCABULARY-SMALL", "tokenizer.json", measured=highest + 1, right=rows)


def _range(folder: Folder) -> Iterator[Finding]:
    """Special ids of config.json and generation_config.json within the embedding."""
    rows = folder.vocab_size
    for file in ("config.json", "generation_config.json"):
        for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
            for number in _ids(folder.json.get(file, {}).get(key)):
                torch_allows = key == "pad_token_id" and number == -1  # padding_idx counts from the end
                if rows is not None and not torch_allows and not 0 <= number < rows:
                    yield from folder.say("MODEL-SPECIAL-ID", file, measured=number, right=f"0 to {rows - 1}", key=key)


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [number for number in values if isinstance(number, int) and not isinstance(number, bool)]


def _pad(folder: Folder, tokens: dict[str, str]) -> Iterator[Finding]:
    """What verl's hf_tokenizer and its rollout make of the pad token."""
    file, pad, eos = "tokenizer_config.json", tokens["pad_token"], tokens["eos_token"]
    if not pad and eos:
        yield from folder.say("MODEL-PAD", file, measured="none", right="a pad token of its own", eos=eos)
    elif not pad:
        yield from folder.say("MODEL-NO-EOS", file, measured="neither pad nor eos token", right="the model's eos_token")
    elif pad == eos:
        yield from folder.say("MODEL-PAD-EOS", file, measured=pad, right="a pad token of its own")
    place = "generation_config.json" if "generation_config.json" in folder.json else "config.json"
    own = place == "config.json" and folder.kind in _OWN_PAD
    absent = folder.bare and place == "config.json"  # there may well be a generation_config.json where the rest is
    if place in folder.json and not own and not absent and not _ids(folder.json[place].get("pad_token_id")):
        yield from folder.say("MODEL-PAD-GENERATION", place, measured="none", right="pad_token_id")


def _known(folder: Folder, tokens: dict[str, str]) -> Iterator[Finding]:
    """Special tokens that the vocabulary has not: transformers would add them behind its end."""
    vocabulary = folder.vocabulary.tokens
    for name, token in tokens.items():
        if vocabulary and token and token not in vocabulary and token not in folder.added:
            yield from folder.say(
                "MODEL-TOKEN-UNKNOWN",
                "tokenizer_config.json",
                measured=token,
                right="a token of tokenizer.json",
                key=name,
            )


def _stops(folder: Folder, eos: str) -> Iterator[Finding]:
    """Whether generation stops at the tokenizer's eos token; verl takes the ids of generation_config.json first."""
    place = "generation_config.json" if "generation_config.json" in folder.json else "config.json"
    stops = _ids(folder.json.get(place, {}).get("eos_token_id"))
    if place == "generation_config.json" and not stops:
        yield from folder.say("MODEL-EOS-GENERATION", place, measured="none", right="eos_token_id")
    number = folder.vocabulary.tokens.get(eos, folder.added.get(eos))
    if stops and number is not None and number not in stops:
        yield from folder.say("MODEL-EOS", place, measured=listed(stops), right=number, eos=eos)
