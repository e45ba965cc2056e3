"""What a run found, as JSON for machines and text for people; its first line says whether a GPU was used."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from smoke.world import World

PACKAGES = ("torch", "transformers", "verl", "tensordict", "ray", "flash-attn", "triton", "numpy", "pytest")


@dataclass(frozen=True, kw_only=True)
class Result:
    """One test.

    Attributes:
        name: pytest's node id.
        outcome: `passed`, `failed` or `not run`.
        seconds: how long it took.
        reason: why it failed or was not run; empty when it passed.
        figures: what it measured.
    """

    name: str
    outcome: str
    seconds: float
    reason: str
    figures: dict[str, Any]


def result_of(said: pytest.TestReport) -> Result:
    """What pytest says of one phase of one test as a result."""
    outcome = {"passed": "passed", "failed": "failed", "skipped": "not run"}[said.outcome]
    reason = ""
    if said.skipped and isinstance(said.longrepr, tuple):
        reason = said.longrepr[2].removeprefix("Skipped: ")
    elif said.failed:
        crash = getattr(said.longrepr, "reprcrash", None)
        reason = crash.message if crash else str(said.longrepr)
    return Result(
        name=said.nodeid,
        outcome=outcome,
        seconds=round(said.duration, 3),
        reason=reason,
        figures=dict(said.user_properties),
    )


def headline(world: World) -> str:
    """The first line: CPU or GPU, and what that means."""
    ranks = "1 rank" if world.size == 1 else f"{world.size} ranks"
    if not world.on_gpu:
        return f"CPU ({world.backend}), {ranks}: nothing here was run on a GPU"
    import torch

    return f"GPU ({world.backend}), {ranks} on {torch.cuda.get_device_name(world.device)}"


def versions() -> dict[str, str]:
    """What is installed of the packages that matter; a missing one is said to be missing."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def write(folder: Path, world: World, results: Sequence[Result], *, seconds: float) -> None:
    """Write `ranks-N.json` and `ranks-N.txt` into `folder`."""
    counts = {kind: sum(r.outcome == kind for r in results) for kind in ("passed", "failed", "not run")}
    document = {
        "headline": headline(world),
        "device": world.device.type,
        "gpu_used": world.on_gpu,
        "backend": world.backend,
        "ranks": world.size,
        "seconds": round(seconds, 1),
        "counts": counts,
        "versions": versions(),
        "results": [asdict(r) for r in results],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"ranks-{world.size}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (folder / f"ranks-{world.size}.txt").write_text(text(document), encoding="utf-8")


def text(document: dict[str, Any]) -> str:
    """One run's document for people: the headline, the counts, then every test that measured, failed or did not run."""
    counts = ", ".join(f"{n} {kind}" for kind, n in document["counts"].items())
    lines = [document["headline"], f"{counts} in {document['seconds']} s", ""]
    for result in document["results"]:
        lines.append(f"{result['outcome']:8} {result['name']}  ({result['seconds']:.1f} s)")
        lines += [f"         {name}: {value}" for name, value in result["figures"].items()]
        lines += [f"         {line}" for line in result["reason"].splitlines()[:8]]
    return "\n".join(lines) + "\n"
