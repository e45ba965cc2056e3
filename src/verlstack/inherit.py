"""A stack's table with what it takes over from another stack: `extends`, and `drop` for what it does not want."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verlstack.schema import BadValueError, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

_BY_NAME = ("requires", "build_tools", "environment", "flash_attn")  # one entry replaces one entry
_NEVER = ("title", "cannot")  # what a stack is and what it was measured to lack is its own
# A compiled wheel belongs to one torch: a stack that takes over the source of flash-attn needs a wheel of its own.
_OF_ONE_TORCH = ("wheel", "wheel_sha256", "wheel_size", "wheel_compiler", "prebuilt")


def whole(stacks: Table, name: str) -> Table:
    """The table of stack `name` as if everything that it inherits stood in it; without `extends` and `drop`.

    Its own value replaces its parent's; in `requires`, `build_tools`, `environment` and `flash_attn` entry by entry.

    Raises:
        BadValueError: the parent is no stack, stacks extend each other in a circle, or `drop` names what is not there.
    """
    return Table(_merged(stacks, (name,)), name)


def _merged(stacks: Table, line: tuple[str, ...]) -> dict[str, Any]:
    """The values of the last stack of a line of descent, which starts with the youngest."""
    table = stacks.table(line[-1])
    own = {key: value for key, value in table.values.items() if key not in {"extends", "drop"}}
    parent = table.optional("extends", r".+", "the name of a stack")
    if parent is None:
        if "drop" in table.values:
            raise BadValueError("drop takes away what is inherited, and without `extends` nothing is")
        return own
    if parent in line:
        raise BadValueError(f"extends goes round: {' → '.join((*line, parent))}")
    if parent not in stacks.values:
        raise BadValueError(f"extends = {parent!r} is no stack; known: {', '.join(sorted(stacks.values))}")
    inherited = {key: value for key, value in _merged(stacks, (*line, parent)).items() if key not in _NEVER}
    if isinstance(compiled := inherited.get("flash_attn"), dict):
        inherited["flash_attn"] = {key: value for key, value in compiled.items() if key not in _OF_ONE_TORCH}
    for place in table.reasons("drop"):
        _drop(inherited, place, parent)
    merged = inherited | own
    for key in _BY_NAME:
        if isinstance(theirs := inherited.get(key), dict) and isinstance(ours := own.get(key), dict):
            merged[key] = theirs | ours
    return merged


def _drop(inherited: dict[str, Any], place: str, parent: str) -> None:
    """Remove `flash_attn`, or one entry such as `requires.click`; the tables of the parent stay as they are."""
    key, dot, entry = place.partition(".")
    values: Mapping[str, Any] = inherited.get(key, {}) if dot else inherited
    if not isinstance(values, dict) or (entry or key) not in values:
        raise BadValueError(f"drop.{place!r}: {parent} has nothing of that name")
    if dot:
        inherited[key] = {name: value for name, value in values.items() if name != entry}
    else:
        del inherited[key]
