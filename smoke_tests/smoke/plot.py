"""The plot of memory: bytes per rank by phase against the number of ranks, one drawing for each sharding strategy."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smoke.markup import Html, el, join

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PHASES = ("wrap", "forward", "backward", "step")
# The figures of sharded/test_memory.py, what each of them is, and what the test demands of it. A run has one of them.
FIGURES = {
    "bytes per rank by phase": (
        "tensors on the CPU; no memory of a GPU was measured",
        "The test demands exactly the bytes that follow from the parameter counts.",
    ),
    "allocated bytes per rank by phase": (
        "allocated by torch on the GPU",
        "The test demands the bytes that follow from the parameter counts, and little more (cuBLAS's workspace, gaps).",
    ),
}
BOUNDS = "bounds by phase"  # {phase: [least, most]}, where a test reports what it demands

# The drawing, in units of its own: the page scales it to the width that it has
WIDTH, HEIGHT = 320, 250
LEFT, RIGHT, TOP, BOTTOM = 78, 312, 12, 200
_INSET = 22  # from the axes to the first and the last number of ranks


@dataclass(frozen=True, kw_only=True)
class Point:
    """What one test measured in one phase.

    Attributes:
        ranks: of the run.
        phase: one of PHASES.
        bytes: measured on rank 0.
        bounds: least and most that the test allows; None where it does not say.
        passed: whether the test passed.
    """

    ranks: int
    phase: str
    bytes: float
    bounds: tuple[float, float] | None
    passed: bool


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One drawing.

    Attributes:
        strategy: of sharding, such as FULL_SHARD.
        figure: the name of the figure, one of FIGURES.
        points: in the order of the runs.
    """

    strategy: str
    figure: str
    points: tuple[Point, ...]

    def of(self, phase: str) -> list[Point]:
        """The points of one phase, fewest ranks first."""
        return sorted((p for p in self.points if p.phase == phase), key=lambda p: p.ranks)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Both axes are logarithmic: 1/N is a straight line, and a phase that holds a sixteenth is as plain to see.

    Attributes:
        ranks: the numbers of ranks, in order.
        low: the lowest power of two on the axis of bytes.
        high: the highest.
    """

    ranks: tuple[int, ...]
    low: int
    high: int

    def x(self, ranks: float) -> float:
        """Where a number of ranks lies; a single one lies in the middle."""
        first, last = math.log2(self.ranks[0]), math.log2(self.ranks[-1])
        if first == last:
            return (LEFT + RIGHT) / 2
        share = (math.log2(ranks) - first) / (last - first)
        return round(LEFT + _INSET + share * (RIGHT - LEFT - 2 * _INSET), 1)

    def y(self, size: float) -> float:
        """Where a number of bytes lies; what is below the axis lies on it."""
        share = (math.log2(max(size, 1)) - self.low) / (self.high - self.low)
        return round(BOTTOM - max(0.0, share) * (BOTTOM - TOP), 1)


def panels(runs: Iterable[dict[str, Any]]) -> list[Panel]:
    """Every drawing that the results have figures for, in the order in which the tests ran."""
    found: dict[tuple[str, str], list[Point]] = {}
    for run in runs:
        for result in run["results"]:
            strategy = re.search(r"\[(.+)\]$", result["name"])
            for figure in FIGURES.keys() & result["figures"].keys():
                key = (strategy.group(1) if strategy else result["name"], figure)
                found.setdefault(key, []).extend(_points(run["ranks"], result, figure))
    return [Panel(strategy=s, figure=f, points=tuple(points)) for (s, f), points in found.items() if points]


def _points(ranks: int, result: dict[str, Any], figure: str) -> Iterable[Point]:
    measured, bounds = result["figures"][figure], result["figures"].get(BOUNDS, {})
    for phase in PHASES:
        if _is_size(measured.get(phase)):
            allowed = bounds.get(phase)
            yield Point(
                ranks=ranks,
                phase=phase,
                bytes=measured[phase],
                bounds=(allowed[0], allowed[1]) if allowed else None,
                passed=result["outcome"] == "passed",
            )


def _is_size(value: Any) -> bool:
    """A logarithm is taken of it: a phase without a figure, or with a nonsensical one, is left out of the drawing."""
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


def ideal(points: Sequence[Point]) -> list[tuple[int, float]]:
    """Ranks and bytes if what the run with the fewest ranks holds were cut evenly: its bytes times its ranks over N."""
    return [(p.ranks, points[0].bytes * points[0].ranks / p.ranks) for p in points]


def scale_of(drawn: Iterable[Panel]) -> Scale:
    """Axes on which everything in these drawings has its place, so that they can be compared."""
    drawn = list(drawn)
    sizes = [size for panel in drawn for phase in PHASES for _, size in ideal(panel.of(phase))]
    sizes += [size for panel in drawn for p in panel.points for size in (p.bytes, *(p.bounds or ())) if size > 0]
    low, high = math.floor(math.log2(min(sizes))), math.ceil(math.log2(max(sizes)))
    ranks = sorted({p.ranks for panel in drawn for p in panel.points})
    return Scale(ranks=tuple(ranks), low=low, high=max(high, low + 1))


def human(size: float) -> str:
    """Bytes in the largest binary unit that leaves a number of 1 or more."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(int(math.log2(max(size, 1)) // 10), len(units) - 1)
    return f"{size / 1024**power:.4g} {units[power]}"


def draw(panel: Panel, scale: Scale) -> Html:
    """The drawing as inline SVG; its classes get their colours from the page's style."""
    told = f"{panel.strategy}: bytes per rank by phase against the number of ranks; the table below has the values"
    return el(
        "svg",
        _axes(scale),
        *(_ideal(panel.of(phase), scale) for phase in PHASES),
        *(_measured(panel.of(phase), scale) for phase in PHASES),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=told,
    )


def _axes(scale: Scale) -> Html:
    step = max(1, math.ceil((scale.high - scale.low) / 7))
    rows = [(scale.y(2.0**power), human(2.0**power)) for power in range(scale.low, scale.high + 1, step)]
    across = [
        join(
            (
                el("line", x1=LEFT, x2=RIGHT, y1=y, y2=y, class_="grid"),
                el("text", label, x=LEFT - 6, y=y + 4, text_anchor="end"),
            )
        )
        for y, label in rows
    ]
    below = [el("text", n, x=scale.x(n), y=BOTTOM + 22, text_anchor="middle") for n in scale.ranks]
    middle = (TOP + BOTTOM) / 2
    titles = (
        el("text", "number of ranks", x=(LEFT + RIGHT) / 2, y=BOTTOM + 42, text_anchor="middle"),
        el("text", "bytes per rank", x=12, y=middle, text_anchor="middle", transform=f"rotate(-90 12 {middle})"),
    )
    return join((*across, *below, *titles))


def _ideal(points: Sequence[Point], scale: Scale) -> Html:
    where = " ".join(f"{scale.x(ranks)},{scale.y(size)}" for ranks, size in ideal(points))
    return el("polyline", points=where, class_="ideal") if len(points) > 1 else Html()


def _measured(points: Sequence[Point], scale: Scale) -> Html:
    if not points:
        return Html()
    where = " ".join(f"{scale.x(p.ranks)},{scale.y(p.bytes)}" for p in points)
    line = el("polyline", points=where, class_="line")
    bounds = [_bar(p, scale) for p in points if p.bounds]
    marks = [mark(p.phase, scale.x(p.ranks), scale.y(p.bytes), p) for p in points]
    return el("g", *bounds, line, *marks, class_=f"phase {points[0].phase}")


def _bar(point: Point, scale: Scale) -> Html:
    least, most = point.bounds or (point.bytes, point.bytes)
    x, low, high = scale.x(point.ranks), scale.y(least), scale.y(most)
    path = f"M{x - 9} {low}H{x + 9}M{x - 9} {high}H{x + 9}M{x} {low}V{high}"
    return el("path", d=path, class_="bounds")


def mark(phase: str, x: float, y: float, point: Point | None = None) -> Html:
    """The mark of a phase, each of another shape, with its value for who points at it; without a point, for the key.

    The ring of `wrap` is wide enough to be seen around the square of `forward`, which often lies in the same place.
    """
    shape = {
        "wrap": f"M{x - 7} {y}a7 7 0 1 0 14 0a7 7 0 1 0 -14 0z",
        "forward": f"M{x - 3.5} {y - 3.5}h7v7h-7z",
        "backward": f"M{x} {y - 5.5}l5 9h-10z",
        "step": f"M{x} {y - 6}l6 6l-6 6l-6 -6z",
    }[phase]
    if point is None:
        return el("path", d=shape, class_="mark")
    told = f"{point.phase}, {point.ranks} ranks: {point.bytes:,} bytes" + ("" if point.passed else "; the test FAILED")
    return el("path", el("title", told), d=shape, class_="mark" if point.passed else "mark wrong")
