"""Documents as the smoke tests write them, made up: results, runs with and without a report.

The smoke tests are no installed package: whoever imports this first can import `smoke` afterwards.
"""

import sys
from pathlib import Path

# At the end: conftest.py there must not be found in place of the one here
sys.path.append(str(Path(__file__).parents[2] / "smoke_tests"))

STRATEGIES = ("FULL_SHARD", "NO_SHARD")


def result(name="host/test_host.py::test_it", outcome="passed", *, seconds=0.5, reason="", figures=None, last_lines=()):
    """One test's result."""
    return {
        "name": name,
        "outcome": outcome,
        "seconds": seconds,
        "reason": reason,
        "figures": figures or {},
        "last_lines": list(last_lines),
    }


def memory(strategy, ranks, *, figure="bytes per rank by phase", shards=None, outcome="passed", **more):
    """test_memory's result for a model of 64 KiB, or with other shards than an even cut gives."""
    shards = shards or (65536 if strategy == "NO_SHARD" else 65536 // ranks)
    measured = {"wrap": shards, "forward": shards, "backward": 2 * shards, "step": 4 * shards}
    name = f"sharded/test_memory.py::test_bytes[{strategy}]"
    return result(name, outcome, figures={figure: measured, **more})


def run(ranks=1, results=None, *, device="cpu", ok=True, selected=False):
    """The document of one number of ranks, as `_document` in run.py completes it."""
    results = [memory(strategy, ranks) for strategy in STRATEGIES] if results is None else results
    counts = {kind: sum(r["outcome"] == kind for r in results) for kind in ("passed", "failed", "not run")}
    return {
        "headline": f"{device}, {ranks} ranks",
        "device": device,
        "gpu_used": device == "cuda",
        "backend": "nccl" if device == "cuda" else "gloo",
        "ranks": ranks,
        "ended": "2025-01-02T03:04:05Z",
        "seconds": 12.3,
        "counts": counts,
        "selected": selected,
        "versions": {"torch": "2.3.1", "flash-attn": "not installed", "GPUs": "none seen"},
        "results": results,
        "ok": ok,
    }


def dead(ranks=2, **last_lines):
    """A run that ended before rank 0 wrote anything."""
    headline = f"no report from {ranks} ranks: ended with status 1"
    known = {"headline": headline, "ok": False, "ranks": ranks, "device": None, "counts": {}, "results": []}
    return {**known, "last_lines": last_lines}
