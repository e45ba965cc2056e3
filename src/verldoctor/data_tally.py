"""Counts what is wrong in many rows, in bounded memory whatever the rows hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from verldoctor.data_rows import Problem, kind

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST = 100  # different problems kept; rows made to differ must not fill memory or the screen
_MOST_PATHS = 1000
_CUT = 200  # a name may be megabytes long
_NESTED = ("reward_model", "extra_info")


class Count(NamedTuple):
    """How many rows have a problem, and the first of them."""

    rows: int
    first: int


@dataclass
class Tally:
    """Problems of a file's rows.

    Attributes:
        rows: lines or rows seen, blank ones too.
        good: rows that are JSON (or Parquet) at all.
        counts: problems with their counts, in the order of their first row.
        left_out: rows whose problem was not kept because too many different ones were found.
    """

    rows: int = 0
    good: int = 0
    counts: dict[Problem, Count] = field(default_factory=dict)
    left_out: int = 0
    _types: dict[str, str] = field(default_factory=dict)

    def add(self, problem: Problem, first: int, rows: int = 1) -> None:
        """Counts `rows` more rows with `problem`, of which `first` comes first."""
        problem = Problem(problem.code, problem.field[:_CUT], problem.detail[:_CUT])
        known = self.counts.get(problem)
        if known:
            self.counts[problem] = Count(known.rows + rows, known.first)
        elif len(self.counts) < _MOST:
            self.counts[problem] = Count(rows, first)
        else:
            self.left_out += rows

    def mixed(self, row: Any) -> list[Problem]:
        """Fields of `row` that have another type than in the rows before it."""
        problems = []
        for path, value in _fields(row):
            name = kind(value)
            if name == "null":
                continue
            if path not in self._types and len(self._types) >= _MOST_PATHS:
                continue
            first = self._types.setdefault(path, name)
            if first != name:
                problems.append(Problem("DATA-MIXED", path, f"{first} and {name}"))
        return problems


def _fields(row: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(row, dict):
        return
    for key, value in row.items():
        yield key[:_CUT], value
        if key in _NESTED and isinstance(value, dict):
            yield from ((f"{key}.{inner[:_CUT]}", item) for inner, item in value.items())
