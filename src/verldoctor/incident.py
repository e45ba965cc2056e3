"""Finds in the events of a log the first real error, and tells it from what followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from verldoctor.scan import Event, Scan

_REAL = ("cause", "unknown")
_VAGUE = 2  # the priority of messages that only say that something is wrong


def ordered(scan: Scan) -> list[Event]:
    """The events worth telling: the first real error in front, then one of each other known message.

    The last incident counts: what came long before did not end the run. In it, each traceback stands for its best
    known exception; the first traceback wins, vague messages and mere consequences only where nothing else is.
    """
    primary = _primary(scan)
    if primary is None:
        return []
    seen = {primary.signature.id if primary.signature else ""}
    rest: list[Event] = []
    for event in scan.events:
        if event.signature and event.signature.id not in seen and event is not primary:
            seen.add(event.signature.id)
            rest.append(event)
    return [primary, *sorted(rest, key=lambda event: (event.level == "note", event.line.number))]


def _primary(scan: Scan) -> Event | None:
    real = [event for event in scan.events if event.level in _REAL]
    real = [event for event in real if not scan.survived(event)] or real
    if not real:
        return _first_of(scan.events, ("effect", "note", "weak"))
    last = max(event.cluster for event in real)
    near = [event for event in real if event.cluster == last]
    named = [event for event in near if scan.first_rank and event.line.rank == scan.first_rank]
    timed = all(event.line.when is not None for event in near)
    return min(_best_of_chains(named or near), key=lambda event: _precedence(event, timed=timed))


def _first_of(events: Sequence[Event], levels: Iterable[str]) -> Event | None:
    for level in levels:
        if found := [event for event in events if event.level == level]:
            return min(found, key=lambda event: (event.signature.priority if event.signature else 0, event.line.number))
    return None


def _best_of_chains(events: Iterable[Event]) -> list[Event]:
    best: dict[tuple[str, int], Event] = {}
    for event in events:
        key = (event.line.rank, event.chain)
        if key not in best or _weight(event) < _weight(best[key]):
            best[key] = event
    return list(best.values())


def _weight(event: Event) -> tuple[bool, int]:
    return event.signature is None, event.signature.priority if event.signature else 0


def _precedence(event: Event, *, timed: bool) -> tuple[bool, float, int]:
    """Puts exact messages before vague ones, then orders by time if every event has one, else by line."""
    vague = event.signature is not None and event.signature.priority >= _VAGUE
    return vague, (event.line.when or 0.0) if timed else 0.0, event.line.number
