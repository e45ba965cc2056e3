"""Reads Hydra's arguments: `data.seed=1` changes, `+a.b=c` appends, `++a.b=c` does either, `~a.b` deletes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

_OVERRIDE = re.compile(r"(?P<op>\+{0,2}|~)(?P<key>[A-Za-z_][\w@/-]*(?:\.[\w@/-]+)*)(?:=(?P<value>.*))?", re.DOTALL)


class Override(NamedTuple):
    """One argument: its sign ("" for none), its dotted key, and the text behind the =, "" if there is none."""

    op: str
    key: str
    value: str


def read(word: str) -> Override | None:
    """`word` as an override; None if it is something else, such as a path or a flag."""
    match = _OVERRIDE.fullmatch(word)
    if match is None or (match["value"] is None and match["op"] != "~"):
        return None
    return Override(match["op"], match["key"], match["value"] or "")


def certain(word: str) -> bool:
    """Whether `word` can be nothing but an override: `X=1` may also set a shell's variable."""
    override = read(word)
    return override is not None and ("." in override.key or override.op != "")


def instead_of(path: Path) -> bool:
    """Whether a word of our own command line is an override, not the path of something that is there."""
    try:
        return read(str(path)) is not None and not path.exists()
    except (OSError, ValueError):  # a name that no file can have: too long, or with a NUL
        return read(str(path)) is not None
