"""Opens a model folder: its small JSON files, its vocabulary, its file names; what cannot be read becomes findings."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from verldoctor.bounded import Unreadable, read_bytes, read_object
from verldoctor.saying import say
from verldoctor.text import safe
from verldoctor.versions import applies

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from verldoctor.finding import Finding

_SMALL = 4_000_000  # a config.json has 1 to 100 kB; a tokenizer_config.json with 50 000 added tokens 3 MB
_VOCABULARY = 67_108_864  # the largest public tokenizer.json has 34 MB
_ENTRIES = 20_000
_POINTER = b"version https://git-lfs.github.com/spec"
_POINTER_BYTES = 1024  # the specification's own limit
VOCABULARIES = (
    "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model",
    "tekken.json", "qwen.tiktoken", "tiktoken.model", "tokenizer.tok.json",
)  # fmt: skip
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json", ".h5", ".msgpack")
_FILES = (
    "config.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "added_tokens.json",
)  # fmt: skip


@dataclass(frozen=True)
class Vocabulary:
    """What a tokenizer.json knows.

    Attributes:
        tokens: token to id, added tokens too; empty if there is no such file.
        merges: whether merges are pairs (`pairs`), text (`text`), or absent ("").
    """

    tokens: Mapping[str, int] = field(default_factory=dict)
    merges: str = ""


@dataclass(frozen=True)
class Folder:
    """A model folder.

    Attributes:
        path: where it is.
        name: fit to print.
        stack: the pins.
        files: names in it, with their sizes in bytes; -1 for what is no file (a dangling link).
        json: file name to object, of those that are there and can be read.
        problems: findings about those that cannot.
        vocabulary: of tokenizer.json.
    """

    path: Path
    name: str
    stack: Mapping[str, str]
    files: Mapping[str, int] = field(default_factory=dict)
    json: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[Finding] = field(default_factory=list)
    vocabulary: Vocabulary = field(default_factory=Vocabulary)

    @property
    def present(self) -> bool:
        """Whether there is anything to judge."""
        return bool(self.files)

    @property
    def bare(self) -> bool:
        """Whether nothing but configuration is here, as beside verl's checkpoints: a description, not a download."""
        large = any(name.endswith(_WEIGHTS) or name in VOCABULARIES for name in self.files)
        return bool(self.config) and not large

    @property
    def config(self) -> dict[str, Any]:
        """config.json, or empty."""
        return self.json.get("config.json", {})

    @property
    def kind(self) -> str:
        """The model_type."""
        value = self.config.get("model_type")
        return value if isinstance(value, str) else ""

    @property
    def architectures(self) -> list[str]:
        """The class names in config.json."""
        value = self.config.get("architectures")
        return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []

    @property
    def dtype(self) -> str:
        """The dtype that config.json names; transformers 4.56 and later write `dtype`."""
        for key in ("torch_dtype", "dtype"):
            value = self.config.get(key)
            if isinstance(value, str):
                return value.removeprefix("torch.")
        return ""

    @property
    def vocab_size(self) -> int | None:
        """Rows of the embedding, by config.json; of the text part in a model with several."""
        inner = self.config.get("text_config")
        for part in (self.config, inner if isinstance(inner, dict) else {}):
            value = part.get("vocab_size")
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        return None

    @cached_property
    def added(self) -> dict[str, int]:
        """Tokens beyond the vocabulary by added_tokens.json and tokenizer_config.json, with their ids."""
        decoder = self.json.get("tokenizer_config.json", {}).get("added_tokens_decoder")
        rows = decoder.items() if isinstance(decoder, dict) else ()
        told = {str(row.get("content")): int(key) for key, row in rows if isinstance(row, dict) and _is_id(key)}
        return {**_tokens(self.json.get("added_tokens.json")), **told}

    @cached_property
    def remote(self) -> dict[str, Any]:
        """config.json's auto_map: classes that the folder's own code defines."""
        value = self.config.get("auto_map")
        return value if isinstance(value, dict) else {}

    def number(self, key: str) -> int | None:
        """A whole number of config.json."""
        value = self.config.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def say(self, code: str, file: str, **words: object) -> Iterator[Finding]:
        """The finding `code` about `file` of this folder, if that rule holds for the stack."""
        if applies(code, self.stack):
            yield say("model", code, f"{self.name}/{file}" if file else self.name, **{**_pins(self.stack), **words})


def _pins(stack: Mapping[str, str]) -> dict[str, str]:
    return {name: stack.get(name, "?") for name in ("transformers", "verl")}


def open_folder(path: Path, stack: Mapping[str, str]) -> Folder:
    """The folder `path`, read as far as it can be."""
    name = safe(path.name or str(path))
    try:
        files = dict(islice(_entries(path), _ENTRIES))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no such folder"
        return Folder(path, name, stack, problems=[say("model", "MODEL-UNREADABLE", name, measured=reason)])
    folder = Folder(path, name, stack, files=files)
    read, problems = _read_all(folder)
    vocabulary, more = _vocabulary(folder)
    return Folder(path, name, stack, files, read, [*problems, *more, *_missing(folder)], vocabulary)


def _entries(path: Path) -> Iterator[tuple[str, int]]:
    with os.scandir(path) as entries:
        for entry in entries:
            try:
                yield entry.name, entry.stat().st_size if entry.is_file() else -1
            except OSError:  # a dangling link: a Hugging Face cache whose blobs are gone
                yield entry.name, -1


def _read_all(folder: Folder) -> tuple[dict[str, dict[str, Any]], list[Finding]]:
    read: dict[str, dict[str, Any]] = {}
    problems: list[Finding] = []
    for name in _FILES:
        if name not in folder.files:
            continue
        try:
            read[name] = read_object(folder.path / name, _SMALL)
        except Unreadable as error:
            problems += _broken(folder, name, error)
    return read, problems


def _broken(folder: Folder, name: str, error: Unreadable) -> list[Finding]:
    if is_pointer(folder, name):
        return list(folder.say("MODEL-LFS", name, measured=f"{folder.files[name]} bytes"))
    return list(folder.say("MODEL-BROKEN", name, measured=error))


def is_pointer(folder: Folder, name: str) -> bool:
    """Whether file `name` is a Git LFS pointer in place of the file."""
    if not 0 < folder.files.get(name, 0) <= _POINTER_BYTES:
        return False
    try:
        return read_bytes(folder.path / name, _POINTER_BYTES).startswith(_POINTER)
    except Unreadable:
        return False


def _missing(folder: Folder) -> list[Finding]:
    if "config.json" in folder.files:
        return []
    adapter = "adapter_config.json" in folder.files
    return list(
        folder.say("MODEL-ADAPTER" if adapter else "MODEL-NO-CONFIG", "", measured=f"{len(folder.files)} files")
    )


def _vocabulary(folder: Folder) -> tuple[Vocabulary, list[Finding]]:
    name = "tokenizer.json"
    if name not in folder.files:
        return Vocabulary(), []
    try:
        tree = read_object(folder.path / name, _VOCABULARY)
    except Unreadable as error:
        return Vocabulary(), _broken(folder, name, error)
    model = tree.get("model")
    model = model if isinstance(model, dict) else {}
    tokens = {**_tokens(model.get("vocab")), **_added(tree.get("added_tokens"))}
    return Vocabulary(tokens, _merges(model.get("merges"))), []


def _tokens(vocab: Any) -> dict[str, int]:
    """Token to id: an object in BPE, WordPiece and WordLevel, a list of [token, score] in Unigram."""
    if isinstance(vocab, dict):
        return {token: number for token, number in vocab.items() if isinstance(number, int)}
    if isinstance(vocab, list):
        return {str(item[0]): place for place, item in enumerate(vocab) if isinstance(item, list) and item}
    return {}


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _added(added: Any) -> dict[str, int]:
    items = [item for item in added if isinstance(item, dict)] if isinstance(added, list) else []
    return {str(i["content"]): i["id"] for i in items if isinstance(i.get("id"), int) and "content" in i}


def _merges(merges: Any) -> str:
    if not isinstance(merges, list) or not merges:
        return ""
    return "pairs" if isinstance(merges[0], list) else "text"
