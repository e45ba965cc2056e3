"""What `verlstack flash-attn show` shows: pins, what decides the key, where the wheel was found, what the cache has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from verlstack.extension import find, key, shelf

if TYPE_CHECKING:
    from verlstack.download import Artifact
    from verlstack.extension.key import Facts
    from verlstack.extension.shelf import Shelved
    from verlstack.lockfile import Lock
    from verlstack.pins import Stack
    from verlstack.workshop import Workshop


@dataclass(frozen=True, kw_only=True)
class Status:
    """What is known of a lock's compiled wheel.

    Attributes:
        stack: its name.
        source: the sdist.
        pinned: the wheel that the image gets, or None.
        facts: what decides the key, but for the compiler.
        tried: where the pinned wheel was looked for, and what came of it.
        cached: wheels in the cache that were compiled for these facts.
    """

    stack: str
    source: Artifact
    pinned: Artifact | None
    facts: Facts
    tried: tuple[str, ...]
    cached: tuple[Shelved, ...]

    @property
    def lines(self) -> list[str]:
        """For people; sizes in MB (10**6 bytes)."""
        facts = self.facts
        abi = "new" if facts.cxx11_abi else "old"
        built_for = f"torch {facts.torch}, CUDA {facts.cuda}, Python {facts.python}, {abi} C++ ABI"
        return [
            f"source   {_file(self.source)}",
            f"for      {built_for}, GPUs {' '.join(facts.cuda_archs)}",
            f"pinned   {_file(self.pinned) if self.pinned else 'none'}",
            *(f"looked   {line}" for line in self.tried),
            *(_cached(note) for note in self.cached),
        ]


def status(stack: Stack, lock: Lock, shop: Workshop) -> Status:
    """Look for the pinned wheel everywhere, and at what the cache has besides.

    Raises:
        UsageError: the stack has no compiled extension.
        StorageError: the cache cannot be used.
    """
    facts = key.facts(stack, lock, "")
    pinned, places = lock.extension.wheel, stack.flash_attn
    tried: tuple[str, ...] = ()
    if pinned and places:
        tried = find.find(pinned, places, cache=shop.cache, env=shop.env, offline=shop.offline).tried
    return Status(
        stack=stack.name,
        source=lock.extension.source,
        pinned=pinned,
        facts=facts,
        tried=tried,
        cached=tuple(shelf.fitting(facts, shop.cache)),
    )


def _file(file: Artifact) -> str:
    return f"{file.filename}, {_mb(file.size)}, sha256:{file.sha256}"


def _mb(size: int | None) -> str:
    return f"{(size or 0) / 1e6:.1f} MB"


def _cached(note: Shelved) -> str:
    cost = note.cost
    took = ""
    if cost.seconds is not None and cost.peak_mib is not None:
        took = f", took {cost.seconds / 60:.0f} min with {cost.jobs} jobs, {cost.peak_mib:.0f} MiB each at most"
    return f"cached   {note.sha256}  {_mb(note.size)}, by {note.facts.compiler}{took}; key {note.facts.key[:40]}"
