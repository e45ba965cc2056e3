"""What a run found, as JSON for machines and text for people; its first line says whether a GPU was used."""

from __future__ import annotations

import json
import math
import platform
import subprocess
import time
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from smoke import doctor
from smoke.documents import NO_VERL, NOT_KNOWN, broken, failed, patches_of, ran_on, ranks_of, said_last, stopped_by
from smoke.junit import junit
from smoke.markup import first_line, fit
from smoke.page import page

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pytest

    from launch import Member
    from smoke.world import World

PACKAGES = ("torch", "transformers", "verl", "tensordict", "ray", "flash-attn", "triton", "numpy", "pytest")
_LAST_LINES = 30  # of a failed test's traceback
_LAST_OUTPUT = 15  # of each kind of output that it wrote
_NONE = "none seen"
_SLOW_DRIVER = 30.0  # seconds; nvidia-smi wakes each GPU where no daemon keeps them awake


@dataclass(frozen=True, kw_only=True)
class Result:
    """One test.

    Attributes:
        name: pytest's node id.
        outcome: `passed`, `failed` or `not run`.
        seconds: how long it took.
        reason: why it failed or was not run; empty when it passed.
        figures: what it measured.
        last_lines: the end of the traceback and of what a failed test wrote.
    """

    name: str
    outcome: str
    seconds: float
    reason: str
    figures: dict[str, Any]
    last_lines: tuple[str, ...] = ()


def result_of(said: pytest.TestReport) -> Result:
    """What pytest says of one phase of one test as a result."""
    outcome = {"passed": "passed", "failed": "failed", "skipped": "not run"}[said.outcome]
    reason, last_lines = "", []
    if said.skipped and isinstance(said.longrepr, tuple):
        reason = said.longrepr[2].removeprefix("Skipped: ")
    elif said.failed:
        crash = getattr(said.longrepr, "reprcrash", None)
        reason = crash.message if crash else str(said.longrepr)
        last_lines = said.longreprtext.splitlines()[-_LAST_LINES:]
        for title, written in said.sections:
            last_lines += [f"-- {title}", *written.splitlines()[-_LAST_OUTPUT:]]
    return Result(
        name=said.nodeid,
        outcome=outcome,
        seconds=round(said.duration, 3),
        reason=reason,
        figures={str(name): _plain(value) for name, value in said.user_properties},
        last_lines=tuple(last_lines),
    )


def _plain(value: Any) -> Any:
    """A figure as JSON can hold it; JSON has no NaN and no infinity, and a report must not fail over one."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def headline(world: World) -> str:
    """The first line: CPU or GPU, and what that means."""
    ranks = "1 rank" if world.size == 1 else f"{world.size} ranks"
    if not world.on_gpu:
        return f"CPU ({world.backend}), {ranks}: nothing here was run on a GPU"
    import torch

    return f"GPU ({world.backend}), {ranks} on {torch.cuda.get_device_name(world.device)}"


def versions() -> dict[str, str]:
    """What is installed of the packages that matter, and the GPUs here; what is missing is said to be missing."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    names, driver = _gpus()
    return {**found, "NVIDIA driver": driver, "GPUs": names}


def _gpus() -> tuple[str, str]:
    """Names of this machine's GPUs and the version of their driver; without nvidia-smi torch knows the names."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, check=True, timeout=_SLOW_DRIVER).stdout
    except (OSError, subprocess.SubprocessError) as e:
        import torch

        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        return _counted(names), "no nvidia-smi here" if isinstance(e, FileNotFoundError) else first_line(e)
    return gpus_of(said)


def gpus_of(said: str) -> tuple[str, str]:
    """`2 x NVIDIA H100 80GB HBM3` and `550.54.15` from nvidia-smi's lines of name and driver."""
    pairs = [line.rpartition(", ") for line in said.splitlines() if ", " in line]
    return _counted([name for name, _, _ in pairs]), ", ".join(sorted({driver for _, _, driver in pairs})) or _NONE


def _counted(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or _NONE


# -- one number of ranks


def write(folder: Path, world: World, results: Sequence[Result], *, seconds: float, selected: bool) -> None:
    """Write `ranks-N.json` and `ranks-N.txt` into `folder`; `selected`: only some of the tests were asked for."""
    counts = {kind: sum(r.outcome == kind for r in results) for kind in ("passed", "failed", "not run")}
    document = {
        "headline": headline(world),
        "device": world.device.type,
        "gpu_used": world.on_gpu,
        "backend": world.backend,
        "ranks": world.size,
        "ended": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(seconds, 1),
        "counts": counts,
        "selected": selected,
        "versions": versions(),
        "results": [asdict(r) for r in results],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"ranks-{world.size}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (folder / f"ranks-{world.size}.txt").write_text(text(document), encoding="utf-8")


def text(document: dict[str, Any]) -> str:
    """One run's document for people: the headline, the counts, then every test that measured, failed or did not run."""
    counts = ", ".join(f"{n} {kind}" for kind, n in document["counts"].items())
    lines = [fit(document["headline"]), f"{counts} in {document['seconds']} s", ""]
    for result in document["results"]:
        lines.append(f"{result['outcome']:8} {fit(result['name'])}  ({result['seconds']:.1f} s)")
        lines += [f"         {fit(name)}: {fit(value)}" for name, value in result["figures"].items()]
        lines += [f"         {line}" for line in fit(result["reason"], limit=2000).splitlines()[:8]]
    return "\n".join(lines) + "\n"


# -- all of them


def whole(members: Sequence[Member], documents: Sequence[dict[str, Any]], *, image: str) -> dict[str, Any]:
    """One document over the documents of all runs; its headline says what they ran on and whether they passed.

    A pass that proves less than all of it could is told as one, and is no `gpu_pass`.

    Args:
        members: the nodes, with what verldoctor found on each.
        documents: one for each number of ranks: what `write` wrote and `ok`, or what is known of a run that wrote none;
            none where verldoctor found what makes them pointless.
        image: name and digest of the image, such as `cu121-sdpa@sha256:…`; empty where nobody said.
    """
    # all() of nothing is true, but no run is no pass
    verdict = "passed" if documents and all(document["ok"] for document in documents) else "FAILED"
    devices = frozenset(document["device"] for document in documents)
    kind = {frozenset({"cuda"}): "GPU", frozenset({"cpu"}): "CPU"}.get(devices, "incomplete or mixed")
    part = ", a selection of the tests" if any(document.get("selected") for document in documents) else ""
    cautions = [*_cautions(documents), *([] if kind == "GPU" else ["this says nothing about GPUs"])]
    ranks = ", ".join(str(document["ranks"]) for document in documents) or "none"
    said = f"{kind}, ranks {ranks}: {'; '.join([f'{verdict}{part}', *cautions])}"
    stopped = [f"{member}: {f.message}" for member in members for f in member.findings if f.stops]
    return {
        "headline": f"FAILED before any test: {stopped[0]}" if stopped else said,
        "ok": verdict == "passed",
        "gpu_pass": kind == "GPU" and verdict == "passed" and not part and not cautions,
        "image": image,
        "doctor": [
            {"node": member.node, "host": member.host, "findings": doctor.document(member.findings)}
            for member in members
        ],
        "runs": list(documents),
    }


def _cautions(documents: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What these runs cannot have proved, even on GPUs."""
    if documents and max(document["ranks"] for document in documents) == 1:
        yield "one rank shards nothing"
    if any(document["device"] == "cuda" and patches_of(document) for document in documents):
        yield "verl was patched"
    if any(result["reason"] == NO_VERL for document in documents for result in document["results"]):
        yield "without verl"


def write_whole(folder: Path, members: Sequence[Member], documents: Sequence[dict[str, Any]], *, image: str) -> None:
    """Write smoke.json, smoke.txt, smoke.html and smoke-junit.xml into `folder`."""
    everything = whole(members, documents, image=image)
    (folder / "smoke.json").write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    (folder / "smoke.txt").write_text(summary(everything), encoding="utf-8")
    (folder / "smoke.html").write_text(page(everything), encoding="utf-8")
    (folder / "smoke-junit.xml").write_bytes(junit(everything))


def summary(everything: dict[str, Any]) -> str:
    """For a terminal: the headline, a line for each number of ranks, then what failed."""
    rows = [("ranks", "on", "passed", "failed", "not run", "seconds"), *map(_row, everything["runs"])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines = [fit(everything["headline"]), f"image: {fit(everything['image'] or NOT_KNOWN)}"]
    lines += [f"verldoctor: {', '.join(codes)}" for codes in [_codes(everything)] if codes]
    lines += ["", *table] if everything["runs"] else []
    failures = [line for finding in stopped_by(everything) for line in _stopped(finding)]
    failures += [line for run in everything["runs"] for line in _failures(run)]
    return "\n".join([*lines, *(["", *failures] if failures else [])]) + "\n"


def _codes(everything: dict[str, Any]) -> list[str]:
    """`2 warn (ENV-FLASH-LEFT-OUT, HOST-NO-GPU)` for each severity, over all nodes."""
    found: dict[str, list[str]] = {}
    for node in everything["doctor"]:
        for finding in node["findings"]:
            found.setdefault(finding["severity"], []).append(finding["code"])
    return [fit(f"{len(codes)} {severity} ({', '.join(dict.fromkeys(codes))})") for severity, codes in found.items()]


def _stopped(finding: dict[str, Any]) -> Iterator[str]:
    yield f"FAILED on {finding['where']}, verldoctor's {fit(finding['code'])}: {first_line(finding['message'])}"
    yield f"  fix: {first_line(finding['fix'])}"


def _row(run: dict[str, Any]) -> tuple[str, ...]:
    counts, on = run["counts"], fit(ran_on(run))
    if not counts:
        return (str(run["ranks"]), on, "-", "-", "-", "-")
    numbers = (counts["passed"], counts["failed"], counts["not run"], f"{run['seconds']:.1f}")
    return (str(run["ranks"]), on, *map(str, numbers))


def _failures(run: dict[str, Any]) -> Iterator[str]:
    """Why a run failed as a whole and what its ranks wrote last; each failed test with its reason's first line."""
    if broken(run):
        yield f"FAILED on {ranks_of(run)}: {first_line(run['headline'])}"
        yield from (f"  {fit(line)}" for line in said_last(run))
    for result in failed(run):
        yield f"FAILED on {ranks_of(run)}: {fit(result['name'])}"
        yield f"  {first_line(result['reason'])}"
