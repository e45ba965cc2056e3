"""What the page, the XML and the text read off a run's document, so that they agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smoke.markup import fit

if TYPE_CHECKING:
    from collections.abc import Iterable

NOT_KNOWN = "not known"
NO_VERL = "verl is not installed"  # why a test was not run
_SHOWN = 40  # lines of a run that failed as a whole; many ranks write many


def ranks_of(run: dict[str, Any]) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{run['ranks']} rank{'' if run['ranks'] == 1 else 's'}"


def ran_on(run: dict[str, Any]) -> str:
    """`GPU, nccl, 2 nodes: n1, n2`; a broken run may not have said its backend, and may have no failed test."""
    device = {"cuda": "GPU", "cpu": "CPU"}.get(run["device"], "no report")
    nodes = run.get("nodes", ())
    hosts = f"{len(nodes)} nodes: {', '.join(node['host'] for node in nodes)}" if len(nodes) > 1 else ""
    early = "FAILED as a whole" if run["counts"] and broken(run) else ""
    return ", ".join(part for part in (device, run.get("backend"), hosts, early) if part)


def stopped_by(whole: dict[str, Any]) -> list[dict[str, Any]]:
    """The findings of verldoctor for which no test was run, each with the node as `where`."""
    return [
        {**finding, "where": f"node {node['node']} ({fit(node['host'])})"}
        for node in whole["doctor"]
        for finding in node["findings"]
        if finding["stops"]
    ]


def failed(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The results of the tests that failed."""
    return [result for result in run["results"] if result["outcome"] == "failed"]


def broken(run: dict[str, Any]) -> bool:
    """Whether a run failed as a whole: a rank died, or pytest failed although no test did; its headline says why."""
    return not run["ok"] and ("last_lines" in run or not failed(run))


def said_last(run: dict[str, Any]) -> list[str]:
    """What the ranks of a broken run wrote last, each line with its author; the rank that ended first comes first."""
    lines = [f"{who}: {line}" for who, last in run.get("last_lines", {}).items() for line in last]
    more = [f"… and {len(lines) - _SHOWN} lines of other ranks, see smoke.json"] if len(lines) > _SHOWN else []
    return [*lines[:_SHOWN], *more]


def cut_lines(lines: Iterable[str]) -> str:
    """Lines as one text; each is cut, for some are megabytes long."""
    return "\n".join(fit(line) for line in lines)


def patches_of(run: dict[str, Any]) -> list[str]:
    """The patches in force in at least one test of a run, as the tests in training/ report them."""
    return sorted({name for result in run["results"] for name in result["figures"].get("patches", ())})
