"""Have a lock's compiled wheel in the cache, gated, or say in one line why the image goes without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from verlstack import plan
from verlstack.cache import storage_errors
from verlstack.extension import find, gate, key, shelf, system

if TYPE_CHECKING:
    from pathlib import Path

    from verlstack.lockfile import Lock
    from verlstack.pins import Stack
    from verlstack.workshop import Workshop

HOW = "docs/compiled-wheels.md"


@dataclass(frozen=True, kw_only=True)
class Absence:
    """Why there is no compiled wheel of a project, and what gets one."""

    project: str
    what: str
    todo: str

    @property
    def line(self) -> str:
        """All of it, loud enough to be seen in a log."""
        return f"WITHOUT {self.project.upper()}: {self.what}; {self.todo}"


def absence(stack: Stack, lock: Lock, shop: Workshop) -> Absence | None:
    """None once the pinned wheel lies in the cache and has passed the gate; else why it does not.

    Raises:
        WheelError: the pinned wheel does not fit the stack; rule and symbol are named.
        UsageError: the stack has no compiled extension.
        StorageError: the cache cannot be written.
    """
    pinned, places = lock.extension.wheel, stack.flash_attn
    if pinned is None or places is None:
        return _unpinned(stack, lock, shop)
    found = find.find(pinned, places, cache=shop.cache, env=shop.env, offline=shop.offline)
    if found.path is None:
        what = f"its pinned wheel cannot be had ({'; '.join(found.tried)})"
        todo = f"give it to `verlstack {pinned.project} add`, or set wheelhouse or prebuilt in stacks.toml"
        return Absence(project=pinned.project, what=what, todo=todo)
    require(found.path, stack, lock, shop)
    return None


def require(path: Path, stack: Stack, lock: Lock, shop: Workshop) -> None:
    """Refuse a compiled wheel that does not fit torch and CUDA of the lock, or what the stack's platform promises.

    Raises:
        WheelError: naming the rule, and the symbol, version or architecture.
        FetchError: torch's or NVIDIA's wheels, which it is compared with, cannot be had.
        StorageError: the disk is full, read-only or forbidden.
    """
    tags = frozenset(plan.tags(lock.python, stack.platform))
    gate.contents(path, lock.python, tags)  # what is no wheel is refused before 2.6 GB are fetched
    linked = shop.fetch([w for w in lock.wheels if w.project == "torch" or w.project.startswith("nvidia-")])
    notes = shop.cache.root / "symbols"
    with storage_errors(notes):
        notes.mkdir(exist_ok=True)
    against = gate.Against(
        python=lock.python,
        tags=tags,
        wheels=linked,
        base=system.of_platform(stack.platform),  # not the base at hand: the wheel's layer goes onto any
        archs=lock.extension.cuda_archs,
        notes=notes,
    )
    gate.require(path, against)


def _unpinned(stack: Stack, lock: Lock, shop: Workshop) -> Absence:
    project = lock.extension.source.project
    if ready := shelf.fitting(key.facts(stack, lock, ""), shop.cache):
        todo = f"run `verlstack {project} pin {ready[0].sha256[:12]} {stack.name}`"
        return Absence(project=project, what="a compiled wheel lies in the cache, but no wheel is pinned", todo=todo)
    todo = f"`verlstack {project} compile {stack.name}` makes one in hours; {HOW} tells of other ways"
    return Absence(project=project, what="no compiled wheel is pinned", todo=todo)
