"""smoke.json as one HTML page that needs nothing besides itself: for a browser, a telephone, a printer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smoke import plot
from smoke.documents import (
    NOT_KNOWN,
    broken,
    cut_lines,
    failed,
    patches_of,
    ran_on,
    ranks_of,
    said_last,
    stopped_by,
)
from smoke.markup import Html, el, first_line, fit, join

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SLOWEST = 10
# Even if a test's text got through unescaped, a browser would neither run it nor fetch anything for it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
# An image that carries this mark passed on GPUs. Nothing else gets its colour or its words.
_BADGES = {
    "gpu-pass": "passed on GPUs",
    "cpu-pass": "passed on the CPU only; says nothing about GPUs",
    "part": "passed on GPUs, but not all there is to prove",
    "mixed": "passed, but not on GPUs throughout",
    "failed": "FAILED",
}


def page(whole: dict[str, Any]) -> str:
    """The page for the document that `report.whole` makes."""
    style = Html(Path(__file__).with_suffix(".css").read_text(encoding="utf-8"))
    runs = whole["runs"]
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("title", whole["headline"]),
        el("style", style),
    )
    state = _state(whole)
    body = el(
        "body",
        el("h1", whole["headline"]),
        el("p", el("span", _BADGES[state], class_=f"badge {state}")),
        *_failures(whole),
        *_runs(runs),
        *_memory(runs),
        *_ran_on(whole),
        *_doctor(whole["doctor"]),
        *_patches(runs),
        *_not_run(runs),
        *_slowest(runs),
        *_figures(runs),
    )
    return f"<!doctype html>\n{el('html', head, body, lang='en')}\n"


def _state(whole: dict[str, Any]) -> str:
    if not whole["ok"]:
        return "failed"
    if whole["gpu_pass"]:
        return "gpu-pass"
    devices = {run["device"] for run in whole["runs"]}
    return "cpu-pass" if devices == {"cpu"} else "part" if devices == {"cuda"} else "mixed"


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]], numbers: Iterable[int] = ()) -> Html:
    """A table; the columns `numbers` are aligned to the right."""
    side = dict.fromkeys(numbers, "number")
    head = el("tr", *(el("th", name, scope="col", class_=side.get(i)) for i, name in enumerate(heads)))
    lines = (el("tr", *(el("td", cell, class_=side.get(i)) for i, cell in enumerate(row))) for row in rows)
    return el("div", el("table", el("thead", head), el("tbody", *lines)), class_="scroll")


def _test(name: str) -> Html:
    """A test's name, which may be broken after `/`, `_`, `:` and `[`."""
    parts = [part for piece in re.split(r"(?<=[/_:\[])(?![/_:\[])", fit(name)) for part in (piece, Html("<wbr>"))]
    return el("span", *parts[:-1], class_="test")


def _failures(whole: dict[str, Any]) -> list[Html]:
    """What failed, first of all: the environment, runs that failed as a whole, and tests."""
    found = [_failure(x["where"], x["code"], f"{x['message']}\nfix: {x['fix']}", ()) for x in stopped_by(whole)]
    for run in whole["runs"]:
        if broken(run):
            found.append(_failure(ranks_of(run), "the run as a whole", run["headline"], said_last(run)))
        found += [_failure(ranks_of(run), _test(r["name"]), r["reason"], r["last_lines"]) for r in failed(run)]
    return [el("h2", f"Failures ({len(found)})"), *found] if found else []


def _failure(where: str, what: object, reason: str, lines: Sequence[str]) -> Html:
    title = el("h3", where, ": ", what)
    parts = [title, el("pre", fit(reason, limit=2000))]
    if lines:
        parts.append(el("details", el("summary", "last lines"), el("pre", cut_lines(lines)), open=True))
    return el("div", *parts, class_="failure")


def _runs(runs: Sequence[dict[str, Any]]) -> list[Html]:
    heads = ("ranks", "on", "passed", "failed", "not run", "seconds")
    return [el("h2", "Runs"), _table(heads, map(_run, runs), numbers=(0, 2, 3, 4, 5))]


def _run(run: dict[str, Any]) -> tuple[object, ...]:
    counts = run["counts"]
    if not counts:
        return (run["ranks"], el("span", ran_on(run), class_="wrong"), "", "", "", "")
    failures = el("span", counts["failed"], class_="wrong") if counts["failed"] else 0
    return (run["ranks"], ran_on(run), counts["passed"], failures, counts["not run"], run["seconds"])


def _memory(runs: Sequence[dict[str, Any]]) -> list[Html]:
    drawn = plot.panels(runs)
    if not drawn:
        return [el("h2", "Memory per rank"), el("p", "No test of memory left figures in this run.", class_="soft")]
    sections = []
    for figure, (what, demand) in plot.FIGURES.items():
        some = [panel for panel in drawn if panel.figure == figure]
        if some:
            sections += _plots(some, what, demand)
    return sections


def _plots(drawn: Sequence[plot.Panel], what: str, demand: str) -> list[Html]:
    scale = plot.scale_of(drawn)
    fewest = f"{scale.ranks[0]} rank{'' if scale.ranks[0] == 1 else 's'}"
    return [
        el("h2", f"Memory per rank: {what}"),
        el(
            "p",
            "Bytes on rank 0 of parameters, gradients and Adam's state after each phase. Both axes are logarithmic. "
            f"The dotted lines are 1/N, drawn from the run on {fewest}; they lie under the measured ones where the two "
            "agree. NO_SHARD cuts nothing and must stay flat. The forward phase also holds what is still whole then. "
            f"{demand}",
        ),
        _key(bounds=any(p.bounds for panel in drawn for p in panel.points)),
        el("div", *(_panel(panel, scale) for panel in drawn), class_="plots"),
        el("details", el("summary", "the values in bytes"), *map(_values, drawn)),
    ]


def _key(*, bounds: bool) -> Html:
    def sample(*shapes: Html, kind: str) -> Html:
        return el("svg", el("g", *shapes, class_=f"phase {kind}"), viewBox="0 0 30 18", aria_hidden="true")

    def line(kind: str) -> Html:
        return el("line", x1=1, x2=29, y1=9, y2=9, class_=kind)

    items = [el("li", sample(line("line"), plot.mark(x, 15, 9), kind=x), x) for x in plot.PHASES]
    items.append(el("li", sample(line("ideal"), kind="none"), "1/N"))
    if bounds:
        bar = el("path", d="M6 3H24M6 15H24M15 3V15", class_="bounds")
        items.append(el("li", sample(bar, kind="step"), "least and most that the test allows"))
    return el("ul", *items, class_="key")


def _panel(panel: plot.Panel, scale: plot.Scale) -> Html:
    wrong = sorted({p.ranks for p in panel.points if not p.passed})
    said = f"not what the test demands on {', '.join(map(str, wrong))} ranks" if wrong else "as the test demands"
    verdict = el("p", said, class_="wrong" if wrong else "soft")
    return el("figure", el("h3", panel.strategy), verdict, plot.draw(panel, scale))


def _values(panel: plot.Panel) -> Html:
    heads = ("ranks", *plot.PHASES)
    cells: dict[int, dict[str, str]] = {}
    for p in panel.points:
        cells.setdefault(p.ranks, {})[p.phase] = f"{p.bytes:,}"
    rows = [(ranks, *(of.get(phase, "") for phase in plot.PHASES)) for ranks, of in sorted(cells.items())]
    return join((el("p", el("strong", panel.strategy)), _table(heads, rows, numbers=range(5))))


def _ran_on(whole: dict[str, Any]) -> list[Html]:
    """The image and every version; where runs differ, each value that there is."""
    found: dict[str, list[str]] = {}
    for run in whole["runs"]:
        for name, version in run.get("versions", {}).items():
            if version not in found.setdefault(name, []):
                found[name].append(version)
    ended = max((run.get("ended", "") for run in whole["runs"]), default="")
    rows = [(name, el("code", known or NOT_KNOWN)) for name, known in (("image", whole["image"]), ("ended", ended))]
    rows += [(name, el("code", "; ".join(versions))) for name, versions in found.items()]
    return [el("h2", "Image and versions"), _table(("what", "version"), rows)]


def _doctor(nodes: Sequence[dict[str, Any]]) -> list[Html]:
    """What verldoctor found; where several nodes found the same, it stands once, with their names."""
    found: dict[tuple[str, ...], list[str]] = {}
    for node in nodes:
        for finding in node["findings"]:
            row = tuple(finding[name] for name in ("severity", "code", "message", "fix"))
            found.setdefault(row, []).append(node["host"])
    rows = [
        (el("span", severity, class_="wrong" if severity == "fail" else None), code, message, fix, ", ".join(hosts))
        for (severity, code, message, fix), hosts in found.items()
    ]
    said = _table(("", "rule", "what is so", "fix", "where"), rows) if rows else el("p", "verldoctor found nothing.")
    return [el("h2", "Environment and host, before the tests"), said] if nodes else []


def _patches(runs: Sequence[dict[str, Any]]) -> list[Html]:
    names = sorted({name for run in runs for name in patches_of(run)})
    if not names:
        tried = any("patches" in result["figures"] for run in runs for result in run["results"])
        said = "None: verl ran as it is." if tried else "No test of verl's own training ran."
        return [el("h2", "Patches of verl"), el("p", said)]
    return [
        el("h2", "Patches of verl"),
        el("p", "In verl's own training tests, what asks for CUDA, NCCL or flash-attn was replaced:"),
        el("ul", *(el("li", name) for name in names)),
    ]


def _not_run(runs: Sequence[dict[str, Any]]) -> list[Html]:
    """What was left out and why; first what ran on no number of ranks at all."""
    ran = {r["name"] for run in runs for r in run["results"] if r["outcome"] != "not run"}
    groups: dict[tuple[bool, str], dict[str, list[int]]] = {}
    for run in runs:
        for result in run["results"]:
            if result["outcome"] == "not run":
                reason = first_line(result["reason"]) or "no reason given"
                tests = groups.setdefault((result["name"] in ran, reason), {})
                tests.setdefault(result["name"], []).append(run["ranks"])
    never = [_left_out(reason, tests) for (elsewhere, reason), tests in groups.items() if not elsewhere]
    sometimes = [_left_out(reason, tests) for (elsewhere, reason), tests in groups.items() if elsewhere]
    sections = [el("h2", "Not run")]
    sections += [el("p", "Run on no number of ranks:"), *never] if never else []
    sections += [el("p", "Left out on some numbers of ranks, run on others:"), *sometimes] if sometimes else []
    return sections if groups else [*sections, el("p", "Nothing that was asked for was left out.")]


def _left_out(reason: str, tests: dict[str, list[int]]) -> Html:
    title = f"{reason} ({len(tests)} test{'' if len(tests) == 1 else 's'})"
    rows = [(_test(name), ", ".join(map(str, ranks))) for name, ranks in tests.items()]
    return el("details", el("summary", title), _table(("test", "ranks"), rows))


def _slowest(runs: Sequence[dict[str, Any]]) -> list[Html]:
    ran = [(run["ranks"], r) for run in runs for r in run["results"] if r["outcome"] != "not run"]
    tests = [(r["seconds"], ranks, r["name"]) for ranks, r in ran]
    rows = [(f"{seconds:.1f}", ranks, _test(name)) for seconds, ranks, name in sorted(tests, reverse=True)[:SLOWEST]]
    return [el("h2", "Slowest tests"), _table(("seconds", "ranks", "test"), rows, numbers=(0, 1))] if rows else []


def _figures(runs: Sequence[dict[str, Any]]) -> list[Html]:
    """Every figure that a test reported, one fold for each number of ranks; patches have their own section."""
    folds = []
    for run in runs:
        measured = [(r["name"], r["figures"]) for r in run["results"] if r["figures"].keys() - {"patches"}]
        rows = [
            (_test(name), el("ul", *(el("li", f"{what}: {value}") for what, value in f.items() if what != "patches")))
            for name, f in measured
        ]
        if rows:
            folds.append(el("details", el("summary", ranks_of(run)), _table(("test", "figures"), rows)))
    return [el("h2", "Figures"), *folds] if folds else []
