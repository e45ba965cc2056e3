"""A compiled wheel on its way into the cache: gated against the lock, kept under its hash, noted under its key."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from verlstack import reading
from verlstack.cache import atomic, sha256_file, storage_errors
from verlstack.errors import UsageError, WheelError
from verlstack.extension import key, pin, shelf, supply
from verlstack.extension.shelf import Cost, Shelved

if TYPE_CHECKING:
    from verlstack.lockfile import Lock
    from verlstack.pins import Stack
    from verlstack.workshop import Workshop

UNKNOWN = "unknown"  # the compiler of a wheel that somebody else made
COST_FILE = "compile.json"  # what docker/flash-attn.sh writes beside its wheel
_MOST = 1 << 16  # bytes of that file; it has five values
_PREFIX = 8  # hexadecimal digits of a hash that are enough to name a wheel


def add(path: Path, stack: Stack, lock: Lock, shop: Workshop) -> Shelved:
    """Put a compiled wheel into the cache.

    Args:
        path: the wheel; beside it may lie `compile.json`, which says by which compiler and at what cost it was made.
        stack: the pins.
        lock: their lock.
        shop: the surroundings.

    Raises:
        UsageError: there is no such file, it is a wheel of something else, or the stack has no compiled extension.
        WheelError: it does not fit the stack; rule and symbol are named.
        StorageError: the cache cannot be written.
    """
    _check_name(path, lock)
    with storage_errors(shop.cache.tmp):
        folder = tempfile.TemporaryDirectory(prefix="wheel-", dir=shop.cache.tmp)
    with folder as name:
        # What is gated and hashed is a copy of ours: nobody can put other bytes into its place meanwhile.
        own = _copied(path, Path(name) / path.name)
        _gate(own, path, stack, lock, shop)
        sha256 = sha256_file(own)
        target = shop.cache.file(sha256, path.name)
        with atomic(target) as out, own.open("rb") as f:
            shutil.copyfileobj(f, out)
    compiler, cost = _told(path.with_name(COST_FILE), sha256)
    note = Shelved(
        wheel=path.name,
        sha256=sha256,
        size=target.stat().st_size,
        facts=key.facts(stack, lock, compiler),
        cost=cost,
    )
    shelf.put(note, shop.cache)
    return note


def _copied(path: Path, own: Path) -> Path:
    try:
        source = reading.opened(path)
    except OSError as e:
        raise UsageError(f"the wheel cannot be read: {e.strerror}", where=str(path), todo="check the path") from e
    with source, storage_errors(own), own.open("wb") as out:
        shutil.copyfileobj(source, out)
    return own


def _gate(own: Path, path: Path, stack: Stack, lock: Lock, shop: Workshop) -> None:
    """Gate our copy, and speak of the user's file."""
    try:
        supply.require(own, stack, lock, shop)
    except WheelError as e:
        raise WheelError(e.what, where=str(path), todo=e.todo) from e


def named(text: str, stack: Stack, lock: Lock, shop: Workshop) -> Shelved:
    """The wheel in the cache that a hash (or its beginning) names; a file is added first.

    Raises:
        UsageError: nothing in the cache has that name, or several have; otherwise as `add`.
    """
    if text.endswith(".whl"):
        return add(Path(text), stack, lock, shop)
    # of two notes on one wheel, the one that knows its compiler comes last, and counts
    fitting = sorted(shelf.fitting(key.facts(stack, lock, ""), shop.cache), key=lambda n: n.facts.compiler != UNKNOWN)
    found = {note.sha256: note for note in fitting if len(text) >= _PREFIX and note.sha256.startswith(text.lower())}
    if len(found) == 1:
        return found.popitem()[1]
    known = ", ".join(sorted({note.sha256[:12] for note in fitting})) or "none"
    project = lock.extension.source.project
    what = f"{len(found)} wheels of {project} in the cache are called {text!r}"
    raise UsageError(
        f"{what}; those that fit stack {stack.name}: {known}",
        todo=f"name one of these, or give the wheel to `verlstack {project} add` first",
    )


def _check_name(path: Path, lock: Lock) -> None:
    source = lock.extension.source
    if not path.is_file():
        raise UsageError("there is no such wheel", where=str(path))
    try:
        name, version, _, _ = parse_wheel_filename(path.name)
    except InvalidWheelFilename as e:
        raise UsageError(f"this is no wheel's name: {e}", where=str(path)) from None
    if (name, version.public) != (canonicalize_name(source.project), source.version):
        raise UsageError(f"this is no wheel of {source.project} {source.version}", where=str(path))


def _told(path: Path, sha256: str) -> tuple[str, Cost]:
    """(compiler, cost) as the compile stage wrote them down for this very wheel; what is not so counts as absent.

    A folder of downloads may hold the file of one wheel beside another wheel, whose compiler nobody knows.
    """
    try:
        table: dict[str, Any] = json.loads(reading.data(path, _MOST))
        cost = Cost(seconds=float(table["seconds"]), peak_mib=float(table["peak_mib"]), jobs=int(table["jobs"]))
        compiler = str(table["compiler"])
        if table["sha256"] == sha256 and re.fullmatch(pin.COMPILER, compiler):
            return compiler, cost
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pass
    return UNKNOWN, Cost()
