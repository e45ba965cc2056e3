"""Provenance of an image: an SLSA v1 predicate that names all that it was made from, by hash."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from verlstack.cache import sha256_file
from verlstack.errors import UsageError
from verlstack.lockfile import paths
from verlstack.pins import FORMAT
from verlstack.sbom.inventory import pypi

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from verlstack.download import Artifact
    from verlstack.lockfile import Lock
    from verlstack.sbom.inventory import Component

PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "https://verlstack.dev/compose/v1"  # a name; docs/attest.md says what it stands for
_LABEL = "dev.verlstack"
_DEFAULT = "https://verlstack.dev/builder/unnamed"  # somebody's machine: all that such a builder can say of itself


@dataclass(frozen=True, kw_only=True)
class Run:
    """What only the one who ran the build knows; nothing of it is made up.

    Attributes:
        builder: an address that names the builder.
        invocation: names the run, as of a CI server; None leaves it out.
        started: time of its start as ISO 8601 text, or None.
    """

    builder: str = _DEFAULT
    invocation: str | None = None
    started: str | None = None


def told(builder: str | None, invocation: str | None, started: str | None) -> Run:
    """What a user says of the run.

    Raises:
        UsageError: a builder that is no address, a time that is none.
    """
    if builder is not None and not re.fullmatch(r"[a-z][a-z0-9+.-]*:\S+", builder):
        raise UsageError(f"{builder!r} is no address", where="--builder", todo="write one that is yours: https://…")
    try:
        moment = dt.datetime.fromisoformat(started).astimezone(dt.UTC) if started else None
    except (ValueError, OverflowError):
        raise UsageError(f"{started!r} is no time", where="--started", todo="write 2026-11-30T12:00:00Z") from None
    text = f"{moment:%Y-%m-%dT%H:%M:%SZ}" if moment else None
    return Run(builder=builder or _DEFAULT, invocation=invocation, started=text)


def predicate(
    lock: Lock, constraints: Path, labels: Mapping[str, str], components: tuple[Component, ...], run: Run
) -> dict[str, Any]:
    """The predicate; but for `run` a function of image and lock alone.

    Args:
        lock: what the image was made from.
        constraints: the folder of its files.
        labels: of the image.
        components: all that is in it, known to agree with the lock.
        run: what the builder says of itself.
    """
    noted = {"invocationId": run.invocation, "startedOn": run.started}
    metadata = {key: value for key, value in noted.items() if value}
    left_out = labels.get(f"{_LABEL}.left-out")
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "base": labels.get(f"{_LABEL}.base", ""),
                "lock": f"sha256:{lock.digest}",
                "stack": lock.stack,
            },
            "internalParameters": {
                "compression": vars(lock.compression),
                "epoch": lock.epoch,
                "format": FORMAT,
                **({"leftOut": left_out} if left_out else {}),
            },
            "resolvedDependencies": [
                *_files(lock, constraints),
                *_artifacts(lock, left_out),
                *_ground(labels, components),
            ],
        },
        "runDetails": {"builder": {"id": run.builder}, **({"metadata": metadata} if metadata else {})},
    }


def _files(lock: Lock, constraints: Path) -> Iterator[dict[str, Any]]:
    """The lock's two files, as they are."""
    for path in paths(constraints, lock.stack):
        yield {"digest": {"sha256": sha256_file(path)}, "name": f"constraints/{path.name}"}


def _artifacts(lock: Lock, left_out: str | None) -> Iterator[dict[str, Any]]:
    """Every file that the lock names by hash, with the part it plays."""
    yield from (_row(x, "wheel") for x in lock.wheels)
    yield from (_row(x.source, "source") for x in lock.built)
    yield from (_row(x, "build tool") for x in lock.build_tools)
    if lock.compiled and lock.compiled.source.project != left_out:
        yield _row(lock.compiled.source, "source")
        yield from (_row(x, "compile tool") for x in lock.compiled.tools)
        if lock.compiled.wheel:
            yield _row(lock.compiled.wheel, "compiled wheel")


def _row(artifact: Artifact, part: str) -> dict[str, Any]:
    file = quote(artifact.filename, safe="")
    return {
        "annotations": {"part": part},
        "digest": {"sha256": artifact.sha256},
        "name": artifact.filename,
        "uri": f"{pypi(artifact.project, artifact.version)}?file_name={file}",
    }


def _ground(labels: Mapping[str, str], components: tuple[Component, ...]) -> Iterator[dict[str, Any]]:
    """Base and interpreter: the base by its digest where a registry has it, its packages by hash where known."""
    base = labels.get(f"{_LABEL}.base", "")
    name, _, digest = base.rpartition("@sha256:")
    if name:
        yield {"annotations": {"part": "base"}, "digest": {"sha256": digest}, "name": base}
    for one in components:
        if one.kind == "deb":
            known = {"digest": {"sha256": one.sha256}} if one.sha256 else {}
            yield {"annotations": {"part": "Debian package"}, **known, "name": one.name, "uri": one.purl}
        elif one.kind in {"interpreter", "own"} and one.diff_id:
            digest = one.diff_id.removeprefix("sha256:")
            yield {"annotations": {"part": "layer"}, "digest": {"sha256": digest}, "name": one.layer, "uri": one.purl}
