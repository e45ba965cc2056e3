"""Reads what a verlstack image says of itself in its environment; nobody inside a container can see its labels."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verldoctor.installed import normal
from verldoctor.text import safe

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "VERLSTACK_STACK"  # the JSON itself; or the name of a file that holds it, for a tree looked at from outside
_FORMAT = 1
_BYTES = 1_000_000  # of a file; a stack of 256 packages takes 8 kB


@dataclass(frozen=True)
class Image:
    """What the image says of itself, format 1 of docs/verldoctor.md.

    Attributes:
        name: of the stack.
        cuda: version of CUDA that torch is built for.
        python: version of the interpreter, major and minor.
        pins: package, normalised, to the version in the lock.
        left_out: packages, normalised, of the pins that are not in this image.
        environment: variables that the stack sets.
        problem: why it cannot be used; "" if it can.
    """

    name: str = ""
    cuda: str = ""
    python: str = ""
    pins: Mapping[str, str] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()
    environment: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    @property
    def here(self) -> dict[str, str]:
        """The pins of what is in the image."""
        return {name: version for name, version in self.pins.items() if name not in self.left_out}


def read(env: Mapping[str, str]) -> Image | None:
    """What $VERLSTACK_STACK says, or the file that it names; None where it is not set."""
    said = env.get(VARIABLE, "")
    if not said:
        return None
    try:
        table = json.loads(said if said.startswith("{") else _file(Path(said)))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no JSON, not UTF-8, or a NUL in the name
        return Image(problem=safe(getattr(error, "strerror", None) or f"not JSON: {error}", 120))
    if not isinstance(table, dict) or table.get("format") != _FORMAT:
        return Image(problem=f"it is not of format {_FORMAT}")
    words = {key: str(table[key]) for key in ("cuda", "python") if isinstance(table.get(key), str)}
    return Image(
        name=str(table.get("stack", "")),
        pins={normal(name): version for name, version in _texts(table.get("pins")).items()},
        left_out=frozenset(normal(str(name)) for name in _list(table.get("left_out"))),
        environment=_texts(table.get("environment")),
        **words,
    )


def _file(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(_BYTES)


def subject(env: Mapping[str, str]) -> str:
    """What a finding about it is about: the file that the variable names, else the variable."""
    said = env.get(VARIABLE, "")
    return VARIABLE if said.startswith("{") else safe(said)


def _texts(value: Any) -> dict[str, str]:
    entries = value.items() if isinstance(value, dict) else ()
    return {key: entry for key, entry in entries if isinstance(entry, str)}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
