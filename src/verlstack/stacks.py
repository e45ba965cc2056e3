"""`verlstack stacks`: every stack with its pins, and what it can do; for people, and as a matrix for machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from verlstack import capabilities, lockfile, pins
from verlstack.errors import LockError

if TYPE_CHECKING:
    from pathlib import Path

    from verlstack.lockfile import Lock

_SHOWN = ("torch", "transformers", "vllm")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One stack.

    Attributes:
        stack: its name.
        tag: of the image that a build gives from what is pinned.
        bases: values of `verlstack build --base` that this stack knows.
        torch: version that the lock has, and so on; None where it is not among the packages.
        flash_attn: version of its source; None where the stack has none.
        compiled: whether a compiled wheel of it is pinned.
        lock: `sha256:…`; None where there is no lock of the present pins.
        bytes: of the wheels, as the index serves them.
        measured: date of the measurement of just these layers; None where there is none.
        can: capability → whether; empty where it was not measured.
        cannot: capability → the reason that the pins give.
    """

    stack: str
    title: str
    tag: str
    bases: tuple[str, ...]
    python: str
    cuda: str
    torch: str | None
    transformers: str | None
    vllm: str | None
    verl: str
    flash_attn: str | None
    compiled: bool
    lock: str | None
    bytes: int | None
    measured: str | None
    can: dict[str, bool]
    cannot: dict[str, str]


def rows(constraints: Path) -> list[Row]:
    """Every stack of the pins, sorted by name.

    Raises:
        PinsError, StorageError: the pins are wrong or cannot be read.
        ProofError: a record is damaged.
    """
    return [_row(constraints, name) for name in pins.names(constraints / "stacks.toml")]


def _row(constraints: Path, name: str) -> Row:
    stack = pins.load(constraints / "stacks.toml", name)
    lock = _lock(constraints, stack)
    found = capabilities.measured(constraints, lock) if lock else None
    versions: dict[str, str] = {x.project: x.version for x in lock.wheels} if lock else {}
    compiled = stack.flash_attn is not None and stack.flash_attn.wheel is not None
    return Row(
        stack=name,
        title=stack.title,
        tag=stack.tag(without=None if compiled else stack.flash_attn),
        bases=("debian", *([f"registry:{stack.registry_base}"] if stack.registry_base else [])),
        python=stack.python,
        cuda=stack.cuda,
        **{project: versions.get(project) for project in _SHOWN},
        verl=stack.verl.version,
        flash_attn=stack.flash_attn.version if stack.flash_attn else None,
        compiled=compiled,
        lock=f"sha256:{lock.digest}" if lock else None,
        bytes=sum(x.size or 0 for x in lock.wheels) if lock else None,
        measured=found.date if found else None,
        can={capability: not said for capability, said in found.found.items()} if found else {},
        cannot=capabilities.declared(constraints / "stacks.toml", name),
    )


def _lock(constraints: Path, stack: pins.Stack) -> Lock | None:
    try:
        return lockfile.load(constraints, stack)
    except LockError:
        return None  # the table says so
