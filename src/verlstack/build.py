"""`verlstack build`, lock → image: base, interpreter, wheels, verl, smoke tests and verldoctor as one OCI layout."""

from __future__ import annotations

import time
from concurrent import futures
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from verlstack import compose, layer, oci, stackvariable, store
from verlstack import lock as locking
from verlstack.base import bases, python_tree
from verlstack.cache import atomic, sha256_file
from verlstack.extension import supply
from verlstack.oci import Image, NamedBlob

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from verlstack.base.bases import Base
    from verlstack.base.interpreter import Interpreter
    from verlstack.compose import Settings
    from verlstack.download import Artifact
    from verlstack.extension.pin import Extension
    from verlstack.extension.supply import Absence
    from verlstack.lockfile import Compiled, Lock
    from verlstack.pins import Stack
    from verlstack.store import Finished, Job
    from verlstack.workshop import Workshop

PYTHON_HOME = "/usr/local/bin"  # where the interpreter layer puts its tree
Output = Literal["oci-archive", "docker-archive"]
_LABEL = "dev.verlstack"
ELSEWHERE = "see that the folder can be written and has space, or choose another with --dist"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table: a layer, what is in it, and whether it had to be built."""

    layer: str
    pins: str
    diff_id: str
    raw_bytes: int
    compressed_bytes: int
    cached: bool


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a build gave.

    Attributes:
        layout: folder of the OCI layout.
        archive: the archive asked for, if any.
        size: bytes a registry stores.
        wheel_bytes: bytes of the wheels in the image, as the index serves them.
        without: what the image lacks, why, and what to do about it, in one line.
    """

    stack: str
    tag: str
    digest: str
    lock: str
    base: str
    layout: Path
    archive: Path | None
    size: int
    wheel_bytes: int
    seconds: float
    rows: tuple[Row, ...]
    without: str | None = None


def build(
    stack: Stack, lock: Lock, shop: Workshop, *, base: str, fast: bool, dist: Path, output: Output | None
) -> Report:
    """Compose the image of a lock into `dist/STACK`, or with `fast` into `dist/STACK-fast`.

    Args:
        stack: the pins, known to agree with the lock.
        lock: what to build.
        shop: the surroundings.
        base: `auto`, `debian` or `registry:REF@sha256:…`.
        fast: compress less; same diff_ids, other digest, and a tag and label that say so.
        dist: folder for layouts and archives.
        output: an archive to write beside the layout.

    Raises:
        VerlstackError: any of its kinds; the layout in `dist` is then the one that was there before.
    """
    start = time.monotonic()
    bases.check(base)
    compression = compose.faster(lock.compression, stack.fast_level) if fast else lock.compression
    compression.check_library()
    python = shop.find_interpreter(stack.python)
    settings = shop.settings(stack, python, compression)
    jobs = compose.wheel_jobs(lock, settings, shop.cache, shop.inside())
    missing = _missing(stack, lock, shop, jobs)
    if missing:
        jobs = [job for job in jobs if job.name != missing.project]
    ground, layers = _layers(stack, lock, shop, settings, base, jobs)
    store.check_claims(layers)
    compose.check_diff_ids(lock, layers[1:], python.version)
    image = _image(stack, lock, ground, layers, fast=fast, complete=missing is None)
    tag = stack.tag(without=stack.flash_attn if missing else None) + ("-fast" if fast else "")
    layout = dist / (f"{stack.name}-fast" if fast else stack.name)
    oci.write_layout(image, layout, tag=tag, todo=ELSEWHERE)
    return Report(
        stack=stack.name,
        tag=tag,
        digest=image.digest,
        lock=lock.digest,
        base=ground.reference,
        layout=layout,
        archive=_archive(layout, tag, output) if output else None,
        size=image.size,
        wheel_bytes=sum(w.size or 0 for w in lock.wheels),
        seconds=time.monotonic() - start,
        rows=tuple(_rows(lock, ground, layers)),
        without=missing.line if missing else None,
    )


def _missing(stack: Stack, lock: Lock, shop: Workshop, jobs: Sequence[Job]) -> Absence | None:
    """Why the compiled extension is left out, or None: the stack has none, its layer is there, or its wheel is."""
    if lock.compiled is None:
        return None
    layer_of = (job for job in jobs if lock.compiled and job.name == lock.compiled.source.project)
    if any(store.find(job, shop.cache) for job in layer_of):
        return None
    return supply.absence(stack, lock, shop)


def _layers(
    stack: Stack, lock: Lock, shop: Workshop, settings: Settings, spec: str, jobs: Sequence[Job]
) -> tuple[Base, list[Finished]]:
    """The base, and above it the interpreter's layer and those of the jobs, in order.

    Three things wait for different resources and go on at once: the bootstrap for the mirror, the check of cached
    layers for the disk, and what is missing for the index and for pip.
    """
    with futures.ThreadPoolExecutor(1 + shop.workers) as aside:
        ground_and_bottom = aside.submit(_ground, stack, shop, settings, spec)
        checks = [aside.submit(store.find, job, shop.cache) for job in jobs]
        _provide([job for job in jobs if not store.is_there(job, shop.cache)], stack, lock, shop, settings.interpreter)
        found = [check.result() for check in checks]
        base, bottom = ground_and_bottom.result()
    missing = [job for job, have in zip(jobs, found, strict=True) if have is None]
    _provide(missing, stack, lock, shop, settings.interpreter)  # a damaged layer was removed: now its wheels are needed
    if (below := store.find(bottom, shop.cache)) is None:
        missing.insert(0, bottom)
    made = compose.build_all(missing, shop.cache, workers=shop.workers, progress=shop.progress)
    by_name = {x.name: x for x in (*made, below, *found) if x is not None}
    return base, [by_name[job.name] for job in (bottom, *jobs)]


def _ground(stack: Stack, shop: Workshop, settings: Settings, spec: str) -> tuple[Base, Job]:
    base = base_of(stack, shop, spec, settings.interpreter)
    return base, interpreter_job(base, settings)


def _archive(layout: Path, tag: str, output: Output) -> Path:
    target = layout.parent / f"{tag}.{output}.tar"
    with atomic(target, todo=ELSEWHERE) as out:
        for piece in oci.archive(layout, tag=tag, docker=output == "docker-archive"):
            out.write(piece)
    return target


def base_of(stack: Stack, shop: Workshop, spec: str, python: Interpreter) -> Base:
    """The base that `spec` names, for a stack and this machine's interpreter.

    Raises:
        VerlstackError: as `bases.obtain`.
    """
    return bases.obtain(spec, base_request(stack, shop, python))


def base_request(stack: Stack, shop: Workshop, python: Interpreter) -> bases.Request:
    """What a base must be for a stack; the lock's values are the same, or it would be stale."""
    return bases.Request(
        wanted_python=stack.python,
        debian_packages=stack.debian_packages,
        registry_default=stack.registry_base,
        compression=stack.compression,  # with --fast too: one base serves both
        epoch=stack.epoch,
        cache=shop.cache,
        interpreter=python,
        env=shop.env,
        progress=shop.progress,
        offline=shop.offline,
    )


def interpreter_job(base: Base, settings: Settings) -> Job:
    """The layer of the venv, and below it the interpreter's tree where the base has none."""
    python, wanted = settings.interpreter, settings.python
    if base.python_home is not None:
        entries = python_tree.venv_entries(base.python_home, base.python_version or wanted)
    else:
        entries = [*python_tree.layer_entries(python, wanted), *python_tree.venv_entries(PYTHON_HOME, python.version)]
    return settings.job("interpreter", entries=entries)


def _provide(missing: Sequence[Job], stack: Stack, lock: Lock, shop: Workshop, python: Interpreter) -> None:
    """Have every wheel that the missing layers need: fetched by hash, or built from fetched sources."""
    needed = {sha256 for job in missing for _, sha256 in job.wheels}
    builds = [b for b in lock.built if b.wheel_sha256 in needed]
    to_build = [b for b in builds if not _is_sound(shop.cache.file(b.wheel_sha256, b.wheel), b.wheel_sha256)]
    wanted: list[Artifact] = [w for w in lock.wheels if w.sha256 in needed]
    if to_build:
        wanted += [*lock.build_tools, *(b.source for b in to_build)]
    if not wanted:
        return
    files = shop.fetch(wanted)
    if not to_build:
        return
    builder = shop.builder(python, missing[0].tags)
    for b in to_build:
        made = builder.build(
            locking.recipe(stack, b.source, files, lock.build_tools),
            verl=stack.verl if b.source.project == "verl" else None,
            expected=b.wheel_sha256,
        )
        locking.keep(made, b.wheel_sha256, shop.cache)


def _is_sound(path: Path, sha256: str) -> bool:
    return path.is_file() and sha256_file(path) == sha256


def _image(stack: Stack, lock: Lock, base: Base, layers: Sequence[Finished], *, fast: bool, complete: bool) -> Image:
    env = dict(base.env) | dict(stack.environment)
    env[stackvariable.NAME] = stackvariable.value(stack, lock, complete=complete)
    named = [NamedBlob(name=f"base {base.reference}", blob=blob) for blob in base.layers]
    named += [NamedBlob(name=x.name, blob=x.blob) for x in layers]
    return Image(
        layers=tuple(named),
        env=tuple(sorted(env.items())),
        labels=tuple(sorted(_labels(stack, lock, base, fast=fast, complete=complete).items())),
        epoch=lock.epoch,
        architecture=base.architecture,
        working_dir="/",
        command=("bash",),
    )


def _labels(stack: Stack, lock: Lock, base: Base, *, fast: bool, complete: bool) -> dict[str, str]:
    labels = {
        "org.opencontainers.image.title": f"verlstack {stack.tag(without=None if complete else stack.flash_attn)}",
        "org.opencontainers.image.description": stack.title,
        "org.opencontainers.image.version": stack.verl.version,
        "org.opencontainers.image.source": stack.verl.repository,
        f"{_LABEL}.stack": stack.name,
        f"{_LABEL}.pins": " ".join((*stack.requires, *_source_pins(stack))),
        f"{_LABEL}.lock": f"sha256:{lock.digest}",
        f"{_LABEL}.base": base.reference,
        f"{_LABEL}.base.scope": "local" if base.local else "pinned",
    }
    if stack.verl.commit:
        labels["org.opencontainers.image.revision"] = stack.verl.commit
    if stack.flash_attn and lock.compiled:
        labels |= _compiled_labels(stack.flash_attn, lock.compiled, complete=complete)
    if fast:
        labels[f"{_LABEL}.compression"] = "fast"
    if base.packages:
        labels[f"{_LABEL}.base.packages"] = " ".join(f"{name}={version}" for name, version in base.packages)
    return labels


def _source_pins(stack: Stack) -> list[str]:
    """What is made from source, as requirements."""
    compiled = stack.flash_attn
    return [*([f"{compiled.project}=={compiled.version}"] if compiled else []), f"verl=={stack.verl.version}"]


def _compiled_labels(pins: Extension, compiled: Compiled, *, complete: bool) -> dict[str, str]:
    project = pins.project
    if not complete or compiled.wheel is None:
        return {f"{_LABEL}.left-out": project}
    facts = f"sha256:{compiled.wheel.sha256} {' '.join(compiled.cuda_archs)}"
    name = f"{_LABEL}.{project.replace('-', '_')}"
    # its nvcc may be of another minor release than the stack's CUDA
    return {name: facts, f"{name}.compiler": pins.wheel_compiler or "unknown"}


def _rows(lock: Lock, base: Base, layers: Sequence[Finished]) -> list[Row]:
    versions = {a.project: a.version for a in lock.wheels} | {b.source.project: b.source.version for b in lock.built}
    if lock.compiled:
        versions[lock.compiled.source.project] = lock.compiled.source.version
    packages = {x.name: x.packages for x in lock.layers}
    rows = [_row("base", base.reference, blob, cached=False) for blob in base.layers]
    for finished in layers:
        members = packages.get(finished.name, ())
        pins = (
            f"{members[0]} {versions[members[0]]}"
            if len(members) == 1
            else f"{len(members)} packages"
            if members
            else ""
        )
        rows.append(_row(finished.name, pins, finished.blob, cached=finished.cached))
    return rows


def _row(name: str, pins: str, blob: layer.Blob, *, cached: bool) -> Row:
    return Row(
        layer=name,
        pins=pins,
        diff_id=blob.diff_id,
        raw_bytes=blob.raw_size,
        compressed_bytes=blob.size,
        cached=cached,
    )
