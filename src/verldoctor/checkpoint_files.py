"""Checks one file of a checkpoint: is it whole and harmless to load? Reads no tensors, executes no pickle."""

from __future__ import annotations

import re
import stat
from typing import TYPE_CHECKING, BinaryIO

from verldoctor import pickles, safetensors_header, zip_directory
from verldoctor.checkpoint_names import dangerous, expected, newer_torch
from verldoctor.finding import Finding, found
from verldoctor.text import safe
from verldoctor.versions import at_least

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from verldoctor.context import Context

LFS = b"version https://git-lfs.github.com/spec/"
_LARGEST_PICKLE = 64 << 20
_MOST_NAMED = 5
_LEGACY_PARTS = 5  # magic number, protocol, system, object, storage keys: torch.save before 1.6
_BYTES = {
    "FloatStorage": 4, "DoubleStorage": 8, "HalfStorage": 2, "BFloat16Storage": 2, "LongStorage": 8, "IntStorage": 4,
    "ShortStorage": 2, "CharStorage": 1, "ByteStorage": 1, "BoolStorage": 1, "UntypedStorage": 1,
    "ComplexFloatStorage": 8, "ComplexDoubleStorage": 16,
}  # fmt: skip


def check_file(path: Path, context: Context) -> list[Finding]:
    """Findings about one .pt, .bin or .safetensors file."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return [found("checkpoint", "CKPT-UNREADABLE", safe(path), measured="not a regular file")]
        with path.open("rb") as stream:
            return list(_file(path, stream, context))
    except OSError as error:
        return [found("checkpoint", "CKPT-UNREADABLE", safe(path), measured=safe(error.strerror or error))]


def _file(path: Path, stream: BinaryIO, context: Context) -> Iterator[Finding]:
    head = stream.read(64)
    if not head:
        yield found("checkpoint", "CKPT-EMPTY", safe(path))
    elif head.startswith(LFS):
        yield found("checkpoint", "CKPT-LFS", safe(path), name=safe(path.name))
    elif path.suffix == ".safetensors":
        yield from _safetensors(path, stream)
    elif head.startswith(b"PK"):
        yield from _zip(path, stream, context)
    elif head[0] == 0x80:  # PROTO: torch's format before 1.6, and plain pickles
        yield from _legacy(path, stream, context)
    else:
        yield found("checkpoint", "CKPT-FORMAT", safe(path), measured=safe(repr(head[:16])))


def _safetensors(path: Path, stream: BinaryIO) -> Iterator[Finding]:
    try:
        safetensors_header.shapes(stream)
    except safetensors_header.SafetensorsError as error:
        yield found("checkpoint", "CKPT-SAFETENSORS", safe(path), measured=safe(error))
    except safetensors_header.TooLargeError as error:
        yield found("checkpoint", "CKPT-TOO-LARGE", safe(path), measured=safe(error))


def _zip(path: Path, stream: BinaryIO, context: Context) -> Iterator[Finding]:
    try:
        entries = zip_directory.entries(stream)
        mains = [entry for name, entry in entries.items() if re.fullmatch(r"(?:[^/]*/)?data\.pkl", name)]
        raws = [zip_directory.content(stream, entry, _LARGEST_PICKLE) for entry in mains[:_MOST_NAMED]]
    except zip_directory.ZipError as error:
        yield found("checkpoint", "CKPT-CUT", safe(path), measured=safe(error))
        return
    if not mains:
        yield found("checkpoint", "CKPT-FORMAT", safe(path), measured="a zip without data.pkl")
    for main, raw in zip(mains, raws, strict=False):
        summary, problems = _walked(path, raw)
        yield from problems
        yield from _judged(path, summary, context)
        yield from _storages(path, entries, main.name[: -len("data.pkl")], summary)


def _walked(path: Path, raw: bytes, start: int = 0) -> tuple[pickles.Summary, list[Finding]]:
    """What the pickle at `start` of `raw` would import, as far as it goes, and what is wrong with it."""
    try:
        return pickles.summary(raw, start), []
    except pickles.PickleError as error:
        code = "CKPT-TOO-LARGE" if isinstance(error, pickles.TooLongError) else "CKPT-CUT"
        return error.found, [found("checkpoint", code, safe(path), measured=safe(error))]


def _storages(
    path: Path, entries: Mapping[str, zip_directory.Entry], folder: str, summary: pickles.Summary
) -> Iterator[Finding]:
    """The first storage that the pickle names and the zip lacks, or holds in another size."""
    for storage in summary.storages:
        entry = entries.get(f"{folder}data/{storage.key}")
        size = storage.elements * _BYTES.get(storage.kind, 0)
        if entry is None:
            yield found("checkpoint", "CKPT-CUT", safe(path), measured=f"tensor data {safe(storage.key)} is missing")
            return
        if size and entry.size != size:
            text = f"tensor data {safe(storage.key)} is {entry.size} bytes, not {size}"
            yield found("checkpoint", "CKPT-CUT", safe(path), measured=text)
            return


def _legacy(path: Path, stream: BinaryIO, context: Context) -> Iterator[Finding]:
    """Torch's old format, several pickles and then raw storages; or any other pickle."""
    stream.seek(0)
    data = stream.read(_LARGEST_PICKLE)
    place, whole, problems = 0, pickles.Summary(), list[Finding]()
    for _ in range(_LEGACY_PARTS):
        part, problems = _walked(path, data, place)
        whole.names.update(part.names)
        whole.hidden += part.hidden
        place = part.end
        if problems or place >= len(data) or data[place] != 0x80:
            break
    yield from problems
    yield from _judged(path, whole, context)


def _judged(path: Path, summary: pickles.Summary, context: Context) -> Iterator[Finding]:
    """What the pickle would import: attacks, things that nobody expects there, things that this torch lacks."""
    loader = path.name == "data.pt"
    bad = [f"{name.module}.{name.name}" for name in summary.names if dangerous(name, loader=loader)] + summary.hidden
    odd = [name for name in summary.names if not dangerous(name, loader=loader) and not expected(name, loader=loader)]
    if bad:
        yield found("checkpoint", "CKPT-DANGEROUS", safe(path), measured=_few(bad))
    if odd:
        yield found("checkpoint", "CKPT-GLOBALS", safe(path), measured=_few([".".join(name) for name in odd]))
    new = [".".join(name) for name in summary.names if newer_torch(name)]
    if new and not at_least("torch", "2.5", context.stack):
        torch = safe(context.stack.get("torch", ""))
        yield found("checkpoint", "CKPT-TORCH", safe(path), measured=_few(new), torch=torch)


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return safe(", ".join(safe(name, 80) for name in names[:_MOST_NAMED]) + more, 400)
