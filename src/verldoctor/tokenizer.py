"""Checks a model folder's tokenizer: does it load on the stack, does it fit the model, which defaults would it take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verldoctor import tokenizer_ids
from verldoctor.model_folder import VOCABULARIES
from verldoctor.modeltype import from_name
from verldoctor.versions import brought_by, has, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verldoctor.finding import Finding
    from verldoctor.model_folder import Folder

_FILE = "tokenizer_config.json"
_TEMPLATE_FILE = "chat_template.jinja"
_GENERIC = {"PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend"}


def judge(folder: Folder) -> Iterator[Finding]:
    """Findings about the tokenizer."""
    config = folder.json.get(_FILE, {})
    if not any(name in folder.files for name in VOCABULARIES) and folder.config and not folder.bare:
        yield from folder.say("MODEL-NO-TOKENIZER", "", measured="none", right="tokenizer.json")
    if folder.vocabulary.merges == "pairs":
        yield from folder.say(
            "MODEL-MERGES", "tokenizer.json", measured="pairs", right="text, as tokenizers 0.19 writes it"
        )
    if config:
        yield from _class(folder, config)
        yield from _source(folder, config)
        yield from _template(folder, config)
        yield from _extra(folder, config)
    yield from tokenizer_ids.judge(folder, config)


def _class(folder: Folder, config: dict[str, Any]) -> Iterator[Finding]:
    name = config.get("tokenizer_class")
    if _remote(config):
        yield from folder.say("MODEL-REMOTE-CODE", _FILE, measured="auto_map: AutoTokenizer")
    elif isinstance(name, str) and name:
        tries = [has("tokenizer_class", each, folder.stack) for each in (f"{name.removesuffix('Fast')}Fast", name)]
        if tries == [False, False]:
            since = brought_by("tokenizer_class", name)
            note = f"; it came with transformers {since}" if since else ""
            yield from folder.say(
                "MODEL-TOKENIZER-CLASS", _FILE, measured=name, right="PreTrainedTokenizerFast", note=note
            )
        else:
            yield from _foreign(folder, name)


def _remote(config: dict[str, Any]) -> bool:
    value = config.get("auto_map")
    return isinstance(value, list) or (isinstance(value, dict) and "AutoTokenizer" in value)


def _foreign(folder: Folder, name: str) -> Iterator[Finding]:
    """A class made for other models, where no vocabulary shows that it fits all the same."""
    usual = table("modules")["tokenizers"].get(folder.kind, [])
    stem = name.removesuffix("Fast")
    if (
        not usual
        or name in _GENERIC
        or stem in {each.removesuffix("Fast") for each in usual}
        or folder.vocabulary.tokens
    ):
        return
    yield from folder.say("MODEL-TOKENIZER-OTHER", _FILE, measured=name, right=", ".join(usual), family=folder.kind)


def _source(folder: Folder, config: dict[str, Any]) -> Iterator[Finding]:
    """Tokenizer and model of different families, by the names under which each was loaded before it was saved."""
    theirs, mine = config.get("name_or_path"), folder.config.get("_name_or_path")
    if not isinstance(theirs, str) or not isinstance(mine, str):
        return
    kinds = from_name(theirs), from_name(mine)
    if all(kinds) and kinds[0] != kinds[1]:
        yield from folder.say("MODEL-SOURCE", _FILE, measured=theirs, right=mine)


def _template(folder: Folder, config: dict[str, Any]) -> Iterator[Finding]:
    template = config.get("chat_template")
    if isinstance(template, list):
        names = [item.get("name") for item in template if isinstance(item, dict)]
        if "default" not in names:
            yield from folder.say("MODEL-TEMPLATE-DEFAULT", _FILE, measured=names, right="default")
        return
    if isinstance(template, str) and template.strip():
        return
    if _TEMPLATE_FILE in folder.files:
        yield from folder.say(
            "MODEL-TEMPLATE-FILE", _TEMPLATE_FILE, measured=_TEMPLATE_FILE, right=f"chat_template in {_FILE}"
        )
        return
    yield from folder.say("MODEL-CHAT-TEMPLATE", _FILE, measured="none", right="the model's own chat_template")
    yield from folder.say("MODEL-CHAT-TEMPLATE-GONE", _FILE, measured="none", right="the model's own chat_template")


def _extra(folder: Folder, config: dict[str, Any]) -> Iterator[Finding]:
    value = config.get("extra_special_tokens")
    if isinstance(value, list):
        yield from folder.say("MODEL-EXTRA-TOKENS", _FILE, measured="a list", right="additional_special_tokens")
