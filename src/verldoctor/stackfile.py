"""Reads what a verlstack image says of itself in a file; nobody inside a container can see the image's labels."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verldoctor.installed import normal
from verldoctor.text import safe

if TYPE_CHECKING:
    from collections.abc import Mapping

PLACE = Path("/opt/verlstack/stack.json")
ELSEWHERE = "VERLSTACK_STACK"  # for a site-packages or an image's tree that is looked at from outside
_FORMAT = 1
_BYTES = 1_000_000  # a stack of 256 packages takes 8 kB


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
        problem: why the file cannot be used; "" if it can.
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


def read(env: Mapping[str, str], place: Path = PLACE) -> Image | None:
    """The file that $VERLSTACK_STACK names, else the image's own; None where there is none."""
    named = env.get(ELSEWHERE, "")
    path = Path(named) if named else place
    try:
        with path.open("rb") as stream:
            table = json.loads(stream.read(_BYTES))
    except FileNotFoundError as error:
        return Image(problem=safe(error.strerror)) if named else None
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


def _texts(value: Any) -> dict[str, str]:
    entries = value.items() if isinstance(value, dict) else ()
    return {key: entry for key, entry in entries if isinstance(entry, str)}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
