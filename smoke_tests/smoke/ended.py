"""How the ranks of a run ended: which one went first and why, in which test each was, and what it wrote last."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import launch

_LINES = 12  # of a rank; a stack dump of a small test has about as many
# torchrun's summary on its stderr: each failed rank has these two lines; the first one stands under "Root Cause"
_ROOT = "Root Cause"
_FAILURE = re.compile(r"^ *rank *: (\d+) \(local_rank: (\d+)\)\n *exitcode *: (-?\d+) \(pid: \d+\)", re.MULTILINE)


def summary(said: str) -> dict[int, tuple[int, int]]:
    """Local rank and exit status by rank, from torchrun's stderr; the first that ended comes first."""
    head, _, root = said.rpartition(_ROOT)
    found = [_FAILURE.findall(part) for part in (root, head)]
    return {int(rank): (int(local_rank), int(status)) for part in found for rank, local_rank, status in part}


def where(logs: Path) -> list[dict[str, Any]]:
    """What each rank of this node noted of itself (`note`): rank, local rank, host, and the test it was in."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(logs.glob("rank-*.json"))]


def note(logs: Path, rank: int, local_rank: int, test: str) -> None:
    """Leave word of where this rank is, for whoever finds it dead."""
    logs.mkdir(parents=True, exist_ok=True)
    path, new = logs / f"rank-{rank}.json", logs / f".rank-{rank}.new"
    new.write_text(json.dumps({"rank": rank, "local_rank": local_rank, "test": test}), encoding="utf-8")
    new.replace(path)


def ranks(logs: Path, said: str, patience: float) -> list[dict[str, Any]]:
    """Each rank of this node: the first that ended comes first, with the reason.

    Args:
        logs: where this node's ranks wrote.
        said: torchrun's stderr.
        patience: seconds that a test may take.
    """
    known = {at["rank"]: at for at in where(logs)}
    found = []
    for rank, (local_rank, status) in summary(said).items():
        at = known.pop(rank, {"rank": rank, "local_rank": local_rank, "test": ""})
        found.append({**at, "status": status, "reason": launch.how(status, patience)})
    found += [{**at, "status": None, "reason": ""} for at in known.values()]
    return [{**one, "last_lines": _last_lines(logs, one["local_rank"])} for one in found]


def _last_lines(logs: Path, local_rank: int) -> dict[str, list[str]]:
    said = {}
    for path in sorted(logs.glob(f"*/attempt_*/{local_rank}/std*.log")):
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        said[path.stem] = [line for line in lines if line.strip()][-_LINES:]
    return said


def so_far(folder: Path, ranks: int, line: Mapping[str, Any]) -> None:
    """Keep a line of rank 0's unfinished report: first what it ran on, then each result."""
    with _so_far(folder, ranks).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def forget(folder: Path, ranks: int) -> None:
    """The report is finished."""
    _so_far(folder, ranks).unlink(missing_ok=True)


def _so_far(folder: Path, ranks: int) -> Path:
    return folder / f"ranks-{ranks}-so-far.jsonl"


def document(folder: Path, ranks: int) -> tuple[dict[str, Any] | None, bool]:
    """Rank 0's report if it was on this node, and whether it is finished."""
    path = folder / f"ranks-{ranks}.json"
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8")), True
    try:
        lines = _so_far(folder, ranks).read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return None, False
    head, *results = [json.loads(line) for line in lines[:-1]]  # a last line without end was cut short
    counts = {kind: sum(r["outcome"] == kind for r in results) for kind in ("passed", "failed", "not run")}
    seconds = round(sum(result["seconds"] for result in results), 1)
    return {**head, "counts": counts, "seconds": seconds, "results": results}, False


def joined(ranks: int, results: Sequence[tuple[launch.Member, Mapping[str, Any]]]) -> dict[str, Any]:
    """One run's document from what its nodes found; a run that ended before its report was finished is a failure.

    Args:
        ranks: on all nodes together.
        results: of each node, node 0 first: exit status, rank 0's report where that was there, and the ranks' ends.
    """
    found = next((result["document"] for _, result in results if result.get("document")), None)
    finished = any(result.get("whole") for _, result in results)
    empty = {"headline": f"no report from {ranks} ranks", "ranks": ranks, "device": None, "counts": {}, "results": []}
    found = {**empty, **(found or {}), "nodes": [_node(*one) for one in results]}
    if len(results) > 1:
        found["headline"] += f"; {len(results)} nodes: {', '.join(member.host for member, _ in results)}"
    # 5: no test was collected. A run of nothing proves nothing.
    ok = finished and all(result["status"] == 0 for _, result in results) and found["counts"]["passed"] > 0
    if ok or (finished and found["counts"]["failed"]):
        return {**found, "ok": ok}
    ends = [(member, rank) for member, result in results for rank in result.get("ends", ())]
    found["headline"] += f"; {first(ends) or _status(results)}"
    last = {f"rank {rank['rank']}, {name}": lines for _, rank in ends for name, lines in rank["last_lines"].items()}
    return {**found, "ok": False, "last_lines": last}


def _node(member: launch.Member, result: Mapping[str, Any]) -> dict[str, Any]:
    ranks = [rank["rank"] for rank in result.get("ends", ())]
    return {"node": member.node, "host": member.host, "ranks": sorted(ranks), "status": result["status"]}


def _status(results: Sequence[tuple[launch.Member, Mapping[str, Any]]]) -> str:
    """Why a run ended of which no rank says anything."""
    gone = [f"{member} is gone: {result['gone']}" for member, result in results if "gone" in result]
    bad = [f"{member} ended with status {result['status']}" for member, result in results if result["status"]]
    return "; ".join(gone or bad) or "no test was run"


def told(member: launch.Member, rank: Mapping[str, Any]) -> str:
    """One rank's end in one line."""
    at = f" in {rank['test']}" if rank["test"] else ""
    return f"rank {rank['rank']} on {member} {rank['reason'] or 'was still running'}{at}"


def first(ends: Sequence[tuple[launch.Member, Mapping[str, Any]]]) -> str:
    """The rank to look at first: one that ended by itself, not one that torchrun ended because of another."""
    by_itself = [end for end in ends if end[1]["status"] not in {None, -15}]
    # pytest's status 1 often is a rank that missed the one which died
    by_itself.sort(key=lambda end: end[1]["status"] == 1)
    return told(*by_itself[0]) if by_itself else ""
