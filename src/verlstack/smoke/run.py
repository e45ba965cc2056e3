"""`verlstack smoke`: find the image, choose where it runs, run the smoke tests in it, and keep their report."""

from __future__ import annotations

import contextlib
import os
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from verlstack import canonical, oci, prove, reading, told
from verlstack.errors import EngineError, ProofError, UsageError
from verlstack.smoke import collect, contained, rooted, slurm
from verlstack.unpacked import unpacked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from verlstack.cache import Cache
    from verlstack.engine import Engine
    from verlstack.progress import Progress
    from verlstack.smoke.request import Request
    from verlstack.unpacked import Root

_LOCK_LABEL = "dev.verlstack.lock"  # every image of ours bears it, and holds the smoke tests
_GO = {"x86_64": "amd64", "aarch64": "arm64"}  # what `uname -m` says → how images call it
SUMMARY = "smoke.json"  # written by run.py inside, over all numbers of ranks
_LONGEST = 500  # characters of a headline


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a smoke run ended.

    Attributes:
        headline: what it ran on and whether it passed; the first line of the report.
        passed: whether every run passed.
        on_gpu: whether it is a pass for GPUs; never without GPUs that were asked for.
        status: exit status of the tests.
        image: what ran.
        folder: where the report is.
    """

    headline: str
    passed: bool
    on_gpu: bool
    status: int
    image: str
    folder: Path


def layout(
    folder: Path,
    request: Request,
    report: Path,
    *,
    engine: Engine | None,
    cache: Cache,
    progress: Progress,
    say: Callable[[str], object],
    tell: Callable[[Verdict], object],
) -> Verdict:
    """Run the tests in the image of an OCI layout: in the engine where there is one, else unpacked.

    Args:
        folder: of the layout.
        request: the run.
        report: folder for the report; what an earlier run left there goes.
        engine: None where there is none.
        cache: where to unpack.
        progress: where progress is shown.
        say: called with each line of the tests' output.
        tell: called with the verdict, before an unpacked image is removed, which takes as long as some tests.

    Raises:
        UsageError: the request cannot be met, there is no image in the layout, or it is for another machine.
        EngineError: GPUs or nodes without an engine, or the engine refuses.
        LockError, ProofError, StorageError: the image is damaged, or leaves no report.
    """
    request.check()
    name = _known(folder, engine.architecture if engine else platform.machine())
    if engine is None and (request.gpus or request.nodes > 1):
        wants = "GPUs" if request.gpus else "several nodes"
        raise EngineError(
            f"no container engine answers, and {wants} need one",
            todo="start one (`make engine` on Debian) or set DOCKER_HOST; where the machine itself has torch and verl, "
            "`python smoke_tests/run.py` needs none",
        )
    with collect.own(report):
        if engine:
            loaded = prove.load(folder, engine, progress)
            return _told(
                _verdict(name, request, report, contained.run(engine, loaded, name, request, report, say)), tell
            )
        with _rooted(folder, cache, progress) as root:
            return _told(_verdict(name, request, report, rooted.run(root, name, request, report, say)), tell)


def reference(
    image: str,
    request: Request,
    report: Path,
    *,
    engine: Engine | None,
    say: Callable[[str], object],
    tell: Callable[[Verdict], object],
) -> Verdict:
    """Run the tests in an image that the engine holds.

    Raises:
        UsageError: the request cannot be met, the engine has no such image, or it is not ours or for another machine.
        EngineError: no engine answers, or it refuses.
        ProofError, StorageError: the image leaves no report.
    """
    request.check()
    if engine is None:
        raise UsageError(
            f"{image!r} is no stack that was built, no layout, and no engine answers that might hold such an image",
            todo="see `verlstack build`, or set DOCKER_HOST",
        )
    facts = engine.image(image)
    name = image if facts.id in image else f"{image}@{facts.id}"
    _check_image(name, facts.architecture, facts.labels, engine.architecture)
    with collect.own(report):
        return _told(_verdict(name, request, report, contained.run(engine, facts.id, name, request, report, say)), tell)


def scheduled(
    image: str,
    folder: Path | None,
    request: Request,
    report: Path,
    *,
    cache: Cache,
    progress: Progress,
    say: Callable[[str], object],
    tell: Callable[[Verdict], object],
) -> Verdict:
    """Run the tests under Slurm, on as many of its nodes as the request says.

    Args:
        image: an unpacked image's absolute folder, a `.sif`, or what pyxis understands; `folder` counts where given.
        folder: of an OCI layout, unpacked into the cache, which all nodes must see; else None.
        request: the run.
        report: folder for the report, which all nodes must see.
        cache: where to unpack.
        progress: where progress is shown.
        say: called with each line of the tests' output.
        tell: called with the verdict, before an unpacked image is removed, which takes as long as some tests.

    Raises:
        EngineError: no Slurm answers here.
        LockError, ProofError, StorageError, UsageError: as for `layout`.
    """
    request.check(scheduled=True)
    if folder is None:
        image = slurm.found(image)
        slurm.check_reach(os.environ)
        environment = request.environment(image)
        with collect.own(report):
            return _told(_verdict(image, request, report, _srun(image, request, report, environment, say)), tell)
    name = _known(folder, platform.machine())
    slurm.check_reach(os.environ)
    with collect.own(report), _rooted(folder, cache, progress) as root:
        environment = {**root.environment, **request.environment(name)}
        status = _srun(str(root.folder), request, report, environment, say)
        return _told(_verdict(name, request, report, status), tell)


@contextlib.contextmanager
def _rooted(folder: Path, cache: Cache, progress: Progress) -> Iterator[Root]:
    """The image unpacked; whoever waits for its removal is told what for."""
    with unpacked(folder, cache, progress) as root:
        yield root
        progress.say("removing the unpacked image")


def _told(verdict: Verdict, tell: Callable[[Verdict], object]) -> Verdict:
    tell(verdict)
    return verdict


def _srun(
    image: str, request: Request, report: Path, environment: Mapping[str, str], say: Callable[[str], object]
) -> int:
    gpus = max(0, request.gpus) // request.nodes  # all of them: those of the job
    words = slurm.command(image, request.nodes, request.ranks, report, request.more, gpus=gpus, environment=environment)
    return slurm.run(words, report, os.environ, say)


def _known(folder: Path, machine: str) -> str:
    """Tag and digest of a layout's image, which is ours and for this machine; its tag may be that digest."""
    digest, _, config = oci.read_layout(folder)
    tag = oci.tag_of(folder)
    name = tag if digest in tag else f"{tag}@{digest}"
    _check_image(name, config.get("architecture", ""), config["config"].get("Labels") or {}, machine)
    return name


def _check_image(name: str, architecture: str, labels: Any, machine: str) -> None:
    """Refuse what cannot start here, and what has no smoke tests."""
    machine = _GO.get(machine, machine)
    if architecture and machine and architecture != machine:
        raise UsageError(f"{name} is for {architecture}, this machine is {machine}", todo="run it on such a machine")
    if _LOCK_LABEL not in labels:
        raise UsageError(
            f"{name} was not made by verlstack: it has no label {_LOCK_LABEL}, so no smoke tests either",
            todo="in any environment with torch and verl, `python smoke_tests/run.py` runs the same tests",
        )


def _verdict(name: str, request: Request, report: Path, status: int) -> Verdict:
    """What the report says; the exit status has the last word, for a report may be half a one.

    On what it ran the host knows better than the image, which may say anything.
    """
    path = report / SUMMARY
    try:
        said: Any = canonical.mended(reading.data(path))
        headline, passed, on_gpu = str(said["headline"]), said["ok"] is True, said["gpu_pass"] is True
        devices = {run["device"] for run in said["runs"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
        raise ProofError(
            f"the smoke tests left no report (exit status {status})",
            where=name,
            todo="what they said last is above; under Slurm, all nodes must see the folder of the report",
        ) from e
    headline = " ".join(told.plain(headline).split())[:_LONGEST]
    if not request.gpus and (on_gpu or "cuda" in devices or headline.startswith("GPU")):
        raise ProofError(
            f"the image says that it ran on GPUs, and was given none: {headline}",
            where=name,
            todo="do not trust this image",
        )
    if request.gpus and "cpu" in devices:
        passed, headline = False, f"{headline}; GPUs were asked for, and the tests saw none"
    return Verdict(
        headline=headline,
        passed=passed and status == 0,
        on_gpu=on_gpu and passed and status == 0,
        status=status,
        image=name,
        folder=report,
    )
