"""What is known of the compiled wheels in the cache: which key each was made for, by which compiler, at what cost."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from verlstack import canonical
from verlstack.cache import atomic, storage_errors
from verlstack.extension.key import Facts

if TYPE_CHECKING:
    from pathlib import Path

    from verlstack.cache import Cache

_MOST = 1 << 16  # bytes of a note; it has a dozen values


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a compile took, as docker/flash-attn.sh wrote it down; None where nobody did.

    Attributes:
        seconds: of the whole compile.
        peak_mib: memory of the largest single compiler process, in MiB.
        jobs: compiler processes at once.
    """

    seconds: float | None = None
    peak_mib: float | None = None
    jobs: int | None = None


@dataclass(frozen=True, kw_only=True)
class Shelved:
    """A compiled wheel in the cache.

    Attributes:
        wheel: its file name.
        sha256: its hash.
        size: bytes.
        facts: what decided it.
        cost: what it took.
    """

    wheel: str
    sha256: str
    size: int
    facts: Facts
    cost: Cost


def put(note: Shelved, cache: Cache) -> None:
    """Note a wheel that already lies in the cache under its hash.

    Raises:
        StorageError: the cache cannot be written.
    """
    with atomic(_folder(cache) / note.facts.key / f"{note.sha256}.json") as out:
        out.write(canonical.dumps(note))


def all_of(cache: Cache) -> list[Shelved]:
    """Every noted wheel that is there, sorted by key and hash; a damaged note is removed, its wheel stays.

    Raises:
        StorageError: the cache cannot be read.
    """
    found = []
    with storage_errors(_folder(cache)):
        for path in sorted(_folder(cache).glob("*/*.json")):
            note = _read(path)
            if note is None:
                path.unlink()
            elif cache.file(note.sha256, note.wheel).is_file():
                found.append(note)
    return found


def fitting(facts: Facts, cache: Cache) -> list[Shelved]:
    """The wheels made for these facts, whatever the compiler and the flags."""
    return [note for note in all_of(cache) if _but_for_how(note.facts) == _but_for_how(facts)]


def _but_for_how(facts: Facts) -> Facts:
    return dataclasses.replace(facts, compiler="", flags=())


def _folder(cache: Cache) -> Path:
    return cache.root / "compiled"


def _read(path: Path) -> Shelved | None:
    """A note, or None if it is not what we wrote."""
    try:
        with path.open("rb") as f:
            table: dict[str, Any] = json.loads(f.read(_MOST))
        facts = table["facts"]
        lists = {name: tuple(map(str, facts[name])) for name in ("cuda_archs", "flags")}
        note = Shelved(**table | {"facts": Facts(**facts | lists), "cost": Cost(**table["cost"])})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    named = (note.facts.key, f"{note.sha256}.json") == (path.parent.name, path.name)
    safe = isinstance(note.wheel, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+!-]*", note.wheel)
    return note if named and safe and re.fullmatch(r"[0-9a-f]{64}", str(note.sha256)) else None
