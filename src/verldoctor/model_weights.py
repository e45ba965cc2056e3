"""Checks that a model folder's weights are all there and fit its configuration, without reading a tensor."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from verldoctor import safetensors_header, zip_directory
from verldoctor.bounded import Unreadable, read_object
from verldoctor.model_folder import Folder, is_pointer
from verldoctor.saying import listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verldoctor.finding import Finding

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SINGLES = ("model.safetensors", "pytorch_model.bin")
_INDEX_BYTES = 33_554_432  # DeepSeek-V3's index, 91 000 tensors, has 9 MB
_NUMBERED = re.compile(r"(?:model|pytorch_model)-(\d{5})-of-(\d{5})\.(?:safetensors|bin)")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d{1,5})\.")
_HEAD = "lm_head.weight"
_SEPARATE_HEADS = {
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
}  # untied unless config.json says so


def judge(folder: Folder) -> Iterator[Finding]:
    """Findings about the weight files."""
    index, problems = _index(folder)
    yield from problems
    shards = sorted({str(name) for name in index["weight_map"].values()}) if index else _loose(folder)
    if not shards:
        yield from _none(folder, broken=bool(problems))
        return
    yield from _complete(folder, shards, index)
    tensors: dict[str, list[int]] = {}
    whole, mapped = True, _by_file(index)
    for name in shards:
        shapes, findings = _shapes(folder, name)
        yield from findings
        if shapes is not None:
            yield from _mapped(folder, name, mapped.get(name, []), shapes)
        tensors.update(shapes or {})
        whole = whole and shapes is not None
    yield from _fits(folder, set(index.get("weight_map", {})) or (set(tensors) if whole else set()), tensors)


def _index(folder: Folder) -> tuple[dict[str, Any], list[Finding]]:
    for name in _INDEXES:
        if name not in folder.files:
            continue
        try:
            tree = read_object(folder.path / name, _INDEX_BYTES)
        except Unreadable as error:
            code = "MODEL-LFS" if is_pointer(folder, name) else "MODEL-BROKEN"
            return {}, list(folder.say(code, name, measured=error))
        if isinstance(tree.get("weight_map"), dict) and tree["weight_map"]:
            return tree, []
        return {}, list(folder.say("MODEL-BROKEN", name, measured="no weight_map"))
    return {}, []


def _loose(folder: Folder) -> list[str]:
    """Weights without an index: one file, or numbered shards."""
    single = [name for name in _SINGLES if name in folder.files][:1]
    return single or sorted(name for name in folder.files if _NUMBERED.fullmatch(name))


def _none(folder: Folder, *, broken: bool) -> Iterator[Finding]:
    if not broken and folder.config and not folder.bare:
        yield from folder.say("MODEL-NO-WEIGHTS", "", measured=f"{len(folder.files)} files", right="model.safetensors")


def _complete(folder: Folder, shards: list[str], index: dict[str, Any]) -> Iterator[Finding]:
    missing = [name for name in shards if folder.files.get(name, -1) < 0]
    numbered = [match for match in map(_NUMBERED.fullmatch, shards) if match]
    if not index and numbered:
        count = int(numbered[0][2])
        yield from folder.say("MODEL-NO-INDEX", "", measured=f"{len(numbered)} of {count} shards and no index")
    if missing:
        yield from folder.say("MODEL-SHARDS", "", measured=listed(missing, 4), count=len(missing), total=len(shards))
    if not missing:
        yield from _total(folder, shards, index)
    if all(name.endswith(".bin") for name in shards):
        yield from folder.say("MODEL-BIN", "", measured=shards[0])


def _total(folder: Folder, shards: list[str], index: dict[str, Any]) -> Iterator[Finding]:
    """The files together hold at least the bytes of the tensors that the index counts."""
    metadata = index.get("metadata")
    said = metadata.get("total_size") if isinstance(metadata, dict) else None
    held = sum(folder.files[name] for name in shards)
    if isinstance(said, (int, float)) and not isinstance(said, bool) and held < said:
        yield from folder.say("MODEL-SIZE", "", measured=f"{held} bytes", right=f"at least {int(said)} bytes")


def _shapes(folder: Folder, name: str) -> tuple[dict[str, list[int]] | None, list[Finding]]:
    """The shapes in one weight file, None where they are not known, and findings on whether it is whole."""
    if folder.files.get(name, -1) < 0:
        return None, []  # told as missing
    if is_pointer(folder, name):
        return None, list(folder.say("MODEL-LFS", name, measured=f"{folder.files[name]} bytes"))
    if not name.endswith(".safetensors"):
        return None, _pickled(folder, name)
    try:
        with (folder.path / name).open("rb") as stream:
            return safetensors_header.shapes(stream), []
    except safetensors_header.TooLargeError as error:
        return None, list(folder.say("MODEL-NOT-EXAMINED", name, measured=error))
    except (OSError, ValueError) as error:
        return None, list(folder.say("MODEL-SHARD-BROKEN", name, measured=getattr(error, "strerror", None) or error))


def _by_file(index: dict[str, Any]) -> dict[str, list[str]]:
    """File to the tensors that the index has in it."""
    files: dict[str, list[str]] = {}
    for tensor, file in index.get("weight_map", {}).items():
        files.setdefault(str(file), []).append(tensor)
    return files


def _mapped(folder: Folder, name: str, due: list[str], shapes: dict[str, list[int]]) -> Iterator[Finding]:
    """Whether a shard has the tensors for which the index names it; those of two saves do not go together."""
    absent = [tensor for tensor in due if tensor not in shapes]
    if absent:
        yield from folder.say("MODEL-TENSORS", name, measured=listed(absent, 3), count=len(absent))


def _pickled(folder: Folder, name: str) -> list[Finding]:
    """Whether a .bin file is whole: torch's zip with its table of contents, or the format before torch 1.6."""
    try:
        with (folder.path / name).open("rb") as stream:
            head = stream.read(2)
            if head == b"PK":
                zip_directory.entries(stream)
            elif head[:1] != b"\x80":
                problem = f"it begins with {head!r}" if head else "0 bytes"
                return list(folder.say("MODEL-SHARD-BROKEN", name, measured=problem))
    except (OSError, zip_directory.ZipError) as error:
        return list(folder.say("MODEL-SHARD-BROKEN", name, measured=getattr(error, "strerror", None) or error))
    return []


def _fits(folder: Folder, names: set[str], tensors: dict[str, list[int]]) -> Iterator[Finding]:
    """Whether the tensors, of which some shapes are known, are those of the model that config.json describes."""
    yield from _embedding(folder, tensors)
    if names:
        yield from _layers(folder, names)
        yield from _head(folder, names)


def _embedding(folder: Folder, tensors: dict[str, list[int]]) -> Iterator[Finding]:
    rows = folder.vocab_size
    for name, shape in tensors.items():
        if name.endswith(("embed_tokens.weight", "wte.weight")) and len(shape) == 2:
            if rows is not None and shape[0] != rows:
                words = {"measured": f"vocab_size {rows}", "right": shape[0], "tensor": name}
                yield from folder.say("MODEL-EMBEDDING", "config.json", **words)
            return


def _layers(folder: Folder, names: set[str]) -> Iterator[Finding]:
    due = folder.number("num_hidden_layers")
    found = {int(match[1]) for match in map(_LAYER.search, names) if match}
    if due and found and max(found) + 1 < due:
        yield from folder.say("MODEL-LAYERS", "", measured=max(found) + 1, right=due)


def _head(folder: Folder, names: set[str]) -> Iterator[Finding]:
    """A language model whose head is in no file gets a random one, with a warning among many."""
    causal = any(name.endswith("ForCausalLM") for name in folder.architectures)
    tied = folder.config.get("tie_word_embeddings", False)
    known = folder.kind in _SEPARATE_HEADS and any(name.endswith("embed_tokens.weight") for name in names)
    if causal and known and tied is False and _HEAD not in names:
        yield from folder.say("MODEL-NO-HEAD", "", measured="tie_word_embeddings: false", right=_HEAD)
