"""What sets two images or locks apart: the versions in them, their layers, and the bytes to pull."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from verlstack import pullcost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from verlstack.pullcost import Layer, PullCost


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two.

    Attributes:
        name: as the user called it.
        lock: `sha256:…` of the lock that it is or was made from; None where that is not told.
        digest: `sha256:…` of an image's manifest; None for a lock.
        compression: of a lock, in words; layers of other compression have other digests.
        layers: bottom first; a lock knows none of base and interpreter.
        pins: what the image's label says was asked for, name → version; None where there is no such label.
        labels: of an image.
        documents: bytes of config and manifest; None for a lock.
    """

    name: str
    kind: Literal["lock", "layout", "registry"]
    lock: str | None
    digest: str | None = None
    compression: str | None = None
    layers: tuple[Layer, ...]
    pins: Mapping[str, str] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    documents: int | None = None


@dataclass(frozen=True, kw_only=True)
class Change:
    """A package, layer or label that two sides have differently, or of which one lacks it (None)."""

    name: str
    one: str | None
    other: str | None

    @property
    def kind(self) -> Literal["added", "removed", "changed"]:
        """In one word."""
        if self.one is None:
            return "added"
        return "removed" if self.other is None else "changed"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What sets two sides apart.

    Attributes:
        same: nothing does.
        packages: versions that differ, sorted by name; None where they cannot be known.
        layers: diff_ids that differ, in the order of the layers.
        labels: names and values that differ between two images.
        pull: what a host with the first must fetch for the second.
        notes: what could not be known, and why.
    """

    one: str
    other: str
    same: bool
    packages: tuple[Change, ...] | None
    layers: tuple[Change, ...]
    labels: tuple[Change, ...]
    pull: PullCost
    notes: tuple[str, ...]


def compare(one: Side, other: Side) -> Comparison:
    """Compare two sides by what both of them tell."""
    first, second = _common(one, other)
    layers = _layers(first, second)
    packages, notes = _packages(one, other)
    images = one.digest is not None and other.digest is not None
    labels = changes(one.labels, other.labels) if images else ()
    same = one.digest == other.digest if images else one.lock == other.lock and not layers and not packages
    notes += [
        f"base and interpreter: not compared and not counted, for a lock ({x.name}) does not name them"
        for x in (one, other)
        if x.kind == "lock"
    ]
    if not same and not layers and not packages and not labels:
        notes.append("no layer and no version differs: the pins do, or environment, compression or the digest alone")
    return Comparison(
        one=one.name,
        other=other.name,
        same=same,
        packages=packages,
        layers=layers,
        labels=labels,
        pull=pullcost.cost(
            first,
            second,
            documents=0 if images and same else other.documents,
            recompressed=one.compression != other.compression and one.kind == other.kind == "lock",
        ),
        notes=tuple(notes),
    )


def needed(one: Side, other: Side) -> tuple[Layer, ...]:
    """The layers of the first that the second has not: those whose packages make the difference."""
    known = {x.diff_id for x in other.layers}
    return tuple(x for x in one.layers if x.diff_id not in known)


def _common(one: Side, other: Side) -> tuple[tuple[Layer, ...], tuple[Layer, ...]]:
    """The layers of both, without those below where one of the two is a lock."""
    if "lock" in {one.kind, other.kind}:
        first, second = (tuple(x for x in side.layers if not pullcost.is_below(x.name)) for side in (one, other))
        return first, second
    return one.layers, other.layers


def _layers(one: Iterable[Layer], other: Iterable[Layer]) -> tuple[Change, ...]:
    before, after = numbered(one), numbered(other)
    names = [*before, *(name for name in after if name not in before)]
    return tuple(
        Change(name=name, one=before.get(name), other=after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    )


def numbered(layers: Iterable[Layer]) -> dict[str, str]:
    """Name → diff_id; a second layer of one name, as bases have them, gets a number."""
    found: dict[str, str] = {}
    for layer in layers:
        name, number = layer.name, 1
        while name in found:
            number += 1
            name = f"{layer.name} ({number})"
        found[name] = layer.diff_id
    return found


def _packages(one: Side, other: Side) -> tuple[tuple[Change, ...] | None, list[str]]:
    """Versions that differ: of all packages where the layers tell them, else of those that the labels pin."""
    first, second = (_versions(_telling(*pair)) for pair in ((one, other), (other, one)))
    if first is not None and second is not None:
        if "lock" in {one.kind, other.kind}:
            first, second = ({k: v for k, v in x.items() if ":" not in k} for x in (first, second))
        return changes(first, second), []
    why = "; ".join(x.name for x, known in ((one, first), (other, second)) if known is None)
    if one.pins is None or other.pins is None:
        return None, [f"versions: not known, for neither a lock here nor a label tells them ({why})"]
    note = f"versions: of the pins in the labels alone; the lock of {why} is not here, so the rest is not known"
    return changes(one.pins, other.pins), [note]


def _telling(one: Side, other: Side) -> tuple[Layer, ...]:
    """Layers of the first whose packages are compared: those that differ, and where bases differ, all of the base.

    Each layer of a base has the packages of all of them, because no label tells which has which.
    """
    mine, theirs = (tuple(x for x in side.layers if x.name.startswith(pullcost.BASE)) for side in (one, other))
    differ = {x.diff_id for x in mine} != {x.diff_id for x in theirs}
    return (*(mine if differ else ()), *(x for x in needed(one, other) if x not in mine))


def _versions(layers: Iterable[Layer]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for layer in layers:
        if layer.packages is None:
            return None
        found |= layer.packages
    return found


def changes(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[Change, ...]:
    """What differs between two tables of names and values, sorted by name."""
    names = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    return tuple(Change(name=name, one=one.get(name), other=other.get(name)) for name in names)
