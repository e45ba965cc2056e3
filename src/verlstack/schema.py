"""Read TOML tables strictly: every value of the right type and form, every choice with its reason, no unknown keys."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class BadValueError(Exception):
    """A value is missing or wrong; the message names its key."""


class Table:
    """One TOML table; every reader method raises BadValueError naming the key."""

    def __init__(self, values: Any, name: str) -> None:
        """Wrap a parsed value that must be a table; `name` is its dotted key, for messages."""
        if not isinstance(values, dict):
            raise BadValueError(f"{name} = {values!r} is no dict")
        self.values: Mapping[str, Any] = values
        self.name = name

    def only(self, *keys: str) -> None:
        """Refuse keys other than these: a misspelled one would be silently without effect."""
        if unknown := sorted(set(self.values) - set(keys)):
            raise BadValueError(f"{self.name} has no key {unknown[0]}; it has {', '.join(sorted(keys))}")

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """A value of one type; required unless there is a default."""
        value = self.values.get(key, default)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            what = f"must be given as {kind.__name__}" if value is None else f"= {value!r} is no {kind.__name__}"
            raise BadValueError(f"{key} {what}")
        return value

    def text(self, key: str, pattern: str = r"(?s).+", form: str = "not empty") -> str:
        """A string that matches `pattern`, which `form` puts into words."""
        value: str = self.get(key, str)
        if not re.fullmatch(pattern, value):
            raise BadValueError(f"{key} = {value!r} must be {form}")
        return value

    def optional(self, key: str, pattern: str, form: str) -> str | None:
        """Like `text`, but None where the key is missing."""
        return self.text(key, pattern, form) if key in self.values else None

    def integer(self, key: str, low: int, high: int) -> int:
        """A whole number from low to high."""
        value: int = self.get(key, int)
        if not low <= value <= high:
            raise BadValueError(f"{key} = {value} must be from {low} to {high}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; empty if it is not given."""
        values = self.get(key, list, [])
        if not all(isinstance(v, str) for v in values):
            raise BadValueError(f"{key} must be a list of strings")
        return tuple(values)

    def table(self, key: str, *, required: bool = True) -> Table:
        """A table inside this one."""
        return Table(self.get(key, dict, None if required else {}), key)

    def reasons(self, key: str) -> tuple[str, ...]:
        """The names of a table NAME = "reason", sorted; a missing reason is an error."""
        table = self.table(key, required=False)
        for name, why in table.values.items():
            if not isinstance(why, str) or not why.strip():
                raise BadValueError(f'{key}.{name} must be "the reason": every choice carries its reason')
        return tuple(sorted(table.values))

    def reasoned(self, key: str, field: str) -> dict[str, str]:
        """A table NAME = { `field` = "…", why = "…" } as {NAME: field}; a missing reason is an error."""
        found = {}
        for name, value in self.table(key, required=False).values.items():
            if not isinstance(value, dict) or set(value) != {field, "why"} or not _reasoned(value, field):
                raise BadValueError(
                    f'{key}.{name} must be {{ {field} = "…", why = "…" }}: every choice carries its reason'
                )
            found[name] = value[field]
        return found


def _reasoned(value: Mapping[str, Any], field: str) -> bool:
    return isinstance(value[field], str) and isinstance(value["why"], str) and bool(value["why"].strip())
