"""Checks that a model folder's weights are all there and fit its configuration, without reading a tensor."""

from __future__ import annotations

import json
import re
import struct
from typing import TYPE_CHECKING, Any

from verldoctor.bounded import Unreadable, read_object
from verldoctor.model_folder import Folder, is_pointer
from verldoctor.saying import listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verldoctor.finding import Finding

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SINGLES = ("model.safetensors", "pytorch_model.bin")
_INDEX_BYTES = 33_554_432  # DeepSeek-V3's index, 91 000 tensors, has 9 MB
_HEADER_BYTES = 33_554_432
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
    headers = {name: header for name in shards for header in [_header(folder, name)] if isinstance(header, dict)}
    yield from _shapes(folder, index, headers, whole=len(headers) == len(shards))


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
    for name in shards:
        if name not in missing:
            yield from _whole(folder, name)
    if not missing:
        yield from _total(folder, shards, index)
    if all(name.endswith(".bin") for name in shards):
        yield from folder.say("MODEL-BIN", "", measured=shards[0])


def _whole(folder: Folder, name: str) -> Iterator[Finding]:
    """Whether one shard is a complete file of its kind."""
    if is_pointer(folder, name):
        yield from folder.say("MODEL-LFS", name, measured=f"{folder.files[name]} bytes")
    elif name.endswith(".safetensors"):
        header = _header(folder, name)
        if isinstance(header, str):
            yield from folder.say("MODEL-SHARD-BROKEN", name, measured=header)
    elif folder.files[name] == 0:
        yield from folder.say("MODEL-SHARD-BROKEN", name, measured="0 bytes")


def _total(folder: Folder, shards: list[str], index: dict[str, Any]) -> Iterator[Finding]:
    """The files together hold at least the bytes of the tensors that the index counts."""
    metadata = index.get("metadata")
    said = metadata.get("total_size") if isinstance(metadata, dict) else None
    held = sum(folder.files[name] for name in shards)
    if isinstance(said, (int, float)) and not isinstance(said, bool) and held < said:
        yield from folder.say("MODEL-SIZE", "", measured=f"{held} bytes", right=f"at least {int(said)} bytes")


def _header(folder: Folder, name: str) -> dict[str, Any] | str:
    """The header of a safetensors file, or what is wrong with the file; a .bin has none and is taken as it is."""
    if not name.endswith(".safetensors"):
        return ""
    try:
        with (folder.path / name).open("rb") as stream:
            return _parsed(stream.read(8), stream.read, folder.files.get(name, -1))
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or "no such file")


def _parsed(start: bytes, read: Any, size: int) -> dict[str, Any] | str:
    """The header after its eight bytes of length `start`; its tensors must end where the file ends."""
    if len(start) < 8:
        return f"{size} bytes, too short for a header"
    (length,) = struct.unpack("<Q", start)
    if length > size - 8 or length > _HEADER_BYTES:
        return f"a header of {length} bytes in a file of {size}"
    try:
        header = json.loads(read(length))
    except (ValueError, RecursionError):
        return "a header that is not JSON"
    if not isinstance(header, dict):
        return "a header that is no object"
    ends = [_end(value) for key, value in header.items() if key != "__metadata__"]
    if None in ends:
        return "a tensor without data_offsets"
    due = 8 + length + max((end for end in ends if end is not None), default=0)
    return header if due == size else f"{size} bytes where the header says {due}"


def _end(tensor: Any) -> int | None:
    offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
    good = isinstance(offsets, list) and len(offsets) == 2 and all(isinstance(n, int) and n >= 0 for n in offsets)
    return int(offsets[1]) if good and offsets else None


def _shapes(
    folder: Folder, index: dict[str, Any], headers: dict[str, dict[str, Any]], *, whole: bool
) -> Iterator[Finding]:
    """Whether the tensors are those of the model that config.json describes."""
    tensors = {key: value for header in headers.values() for key, value in header.items() if key != "__metadata__"}
    names = set(index.get("weight_map", {})) or (set(tensors) if whole else set())
    yield from _embedding(folder, tensors)
    if names:
        yield from _layers(folder, names)
        yield from _head(folder, names)


def _embedding(folder: Folder, tensors: dict[str, Any]) -> Iterator[Finding]:
    rows = folder.vocab_size
    for name, tensor in tensors.items():
        shape = tensor.get("shape") if isinstance(tensor, dict) else None
        if name.endswith(("embed_tokens.weight", "wte.weight")) and isinstance(shape, list) and len(shape) == 2:
            if rows is not None and isinstance(shape[0], int) and shape[0] != rows:
                yield from folder.say(
                    "MODEL-EMBEDDING", "config.json", measured=f"vocab_size {rows}", right=shape[0], tensor=name
                )
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
