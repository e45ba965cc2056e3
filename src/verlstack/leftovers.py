"""What must not be in an image: build tools, caches, package lists and secrets, found by their paths."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from verlstack import told

if TYPE_CHECKING:
    from collections.abc import Mapping

    from verlstack.trees import Node


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """A file or link that should not be there, and why."""

    path: str
    why: str


def find(nodes: Mapping[str, Node], base: Mapping[str, Node]) -> tuple[Leftover, ...]:
    """Every file and link of a root tree that a rule of data/leftovers.toml forbids, sorted; folders do no harm.

    What the base has just so no build has left there.
    """
    found = []
    for path in sorted(path for path, node in nodes.items() if node.kind != "dir" and base.get(path) != node):
        why = next((why for hit, but, why in _rules() if hit.search(path) and not (but and but.search(path))), None)
        if why is not None:
            found.append(Leftover(path=f"/{told.escaped(path)}", why=why))
    return tuple(found)


@cache
def _rules() -> tuple[tuple[re.Pattern[str], re.Pattern[str] | None, str], ...]:
    text = resources.files("verlstack").joinpath("data/leftovers.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)["rule"]
    return tuple((re.compile(r["pattern"]), re.compile(r["but"]) if "but" in r else None, r["why"]) for r in rows)
