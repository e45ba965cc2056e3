"""`verlstack lock`, pins → lock: resolve, fetch, build what exists only as source, compose, record every diff_id."""

from __future__ import annotations

import dataclasses
import shutil
from typing import TYPE_CHECKING

from verlstack import bakefile, closure, compose, index, lockfile, plan, reading, resolve, source, store
from verlstack.cache import atomic, sha256_file, storage_errors
from verlstack.download import Artifact
from verlstack.errors import FetchError, PinsError
from verlstack.extension import supply, torch_abi
from verlstack.lockfile import Built, Compiled, Layer, Lock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from packaging.tags import Tag

    from verlstack.base.interpreter import Interpreter
    from verlstack.cache import Cache
    from verlstack.extension.pin import Extension
    from verlstack.index import Index
    from verlstack.pins import Stack
    from verlstack.resolve import Resolution
    from verlstack.workshop import Workshop


def lock(stack: Stack, shop: Workshop) -> Lock:
    """Make and write the lock of a stack.

    Raises:
        PinsError: the pins contradict each other, or name something that does not exist.
        FetchError, BuildError, WheelError, StorageError: from the steps.
    """
    stack.compression.check_library()
    python = shop.find_interpreter(stack.python)
    tags = plan.tags(stack.python, stack.platform)
    configured = index.configured(shop.env)
    wheels = _resolve(stack, stack.requires, tags, configured, shop)
    tools = _resolve(stack, stack.build_tools, tags, configured, shop)
    shop.progress.say(f"resolved: {len(wheels.wheels)} wheels, {len(wheels.sdists)} only as source")
    sources = [*wheels.sdists, _verl_artifact(stack)]
    files = shop.fetch([*tools.wheels, *sources])
    builder = shop.builder(python, frozenset(tags))
    built = tuple(_build(recipe(stack, s, files, tools.wheels), builder, s) for s in sources)
    files |= shop.fetch(wheels.wheels)
    wheels = dataclasses.replace(wheels, wheels=tuple(_sized(w, files) for w in wheels.wheels))
    compiled = _compiled(stack, tags, configured, wheels, files, shop)
    unrecorded = Lock(
        stack=stack.name,
        digest="",
        python=stack.python,
        recorded_with=python.version,
        epoch=stack.epoch,
        compression=stack.compression,
        registry_base=stack.registry_base,
        wheels=wheels.wheels,
        built=built,
        build_tools=tuple(_sized(tool, files) for tool in tools.wheels),
        compiled=compiled,
        layers=_layers(stack, wheels, built, compiled),
    )
    if compiled and compiled.wheel and (reason := supply.absence(stack, unrecorded, shop)):
        raise FetchError(f"the lock pins a compiled wheel, but {reason.what}", todo=reason.todo)
    recorded = dataclasses.replace(unrecorded, layers=_record(unrecorded, stack, python, shop))
    _write(recorded, stack, wheels, shop)
    finished = lockfile.load(shop.constraints, stack)
    _write_bakefile(stack, finished, {w.project: files[w.sha256] for w in wheels.wheels}, shop)
    return finished


def _resolve(
    stack: Stack, requirements: Sequence[str], tags: Sequence[Tag], configured: Index, shop: Workshop
) -> Resolution:
    return resolve.resolve(
        requirements,
        python=stack.python,
        platform=stack.platform,
        tags=tags,
        env=index.uv_environment(configured, shop.env),
        where=f"{shop.constraints / 'stacks.toml'}, [stack.{stack.name}]",
    )


def _verl_artifact(stack: Stack) -> Artifact:
    verl = stack.verl
    return Artifact(project="verl", version=verl.version, filename=verl.sdist, sha256=verl.sdist_sha256, size=None)


def recipe(stack: Stack, artifact: Artifact, files: Mapping[str, Path], tools: Sequence[Artifact]) -> source.Recipe:
    """How the wheel of a source archive is built."""
    return source.Recipe(
        project=artifact.project,
        sdist=files[artifact.sha256],
        sdist_sha256=artifact.sha256,
        strip=stack.verl.strip if artifact.project == "verl" else (),
        tools=tuple(files[tool.sha256] for tool in tools),
        tool_hashes=tuple(tool.sha256 for tool in tools),
        epoch=stack.epoch,
    )


def _build(how: source.Recipe, builder: source.Builder, artifact: Artifact) -> Built:
    wheel = builder.build(how)
    sha256 = sha256_file(wheel)
    keep(wheel, sha256, builder.cache)
    return Built(source=_sized(artifact, {artifact.sha256: how.sdist}), wheel=wheel.name, wheel_sha256=sha256)


def _sized(artifact: Artifact, files: Mapping[str, Path]) -> Artifact:
    """The artifact with its size as fetched: an index need not tell it (PEP 700 is optional)."""
    return dataclasses.replace(artifact, size=files[artifact.sha256].stat().st_size)


def keep(wheel: Path, sha256: str, cache: Cache) -> Path:
    """Put a built wheel beside the fetched ones, under its hash."""
    target = cache.file(sha256, wheel.name)
    with atomic(target) as out, wheel.open("rb") as f:
        shutil.copyfileobj(f, out)
    return target


def _compiled(
    stack: Stack,
    tags: Sequence[Tag],
    configured: Index,
    wheels: Resolution,
    files: Mapping[str, Path],
    shop: Workshop,
) -> Compiled | None:
    """The lock of the extension that is compiled: its source and tools, and the wheel if one is pinned."""
    pins = stack.flash_attn
    if pins is None:
        return None
    torch = next((w for w in wheels.wheels if w.project == "torch"), None)
    if torch is None:
        raise PinsError(f"{pins.project} is compiled against torch, which is not among the wheels of {stack.name}")
    source = Artifact(
        project=pins.project, version=pins.version, filename=pins.sdist, sha256=pins.sdist_sha256, size=None
    )
    tools = _resolve(stack, pins.build_tools, tags, configured, shop).wheels
    _check_versions(tools, wheels.wheels)
    have = shop.fetch([source, *tools])
    return Compiled(
        source=_sized(source, have),
        cuda_archs=pins.cuda_archs,
        cxx11_abi=torch_abi.cxx11(files[torch.sha256]),
        tools=tuple(_sized(tool, have) for tool in tools),
        wheel=_pinned(pins),
    )


def _check_versions(tools: Sequence[Artifact], wheels: Sequence[Artifact]) -> None:
    """A compile happens among the wheels of the image, so a tool that is one of them must be the same release."""
    image = {w.project: w.version for w in wheels}
    for tool in tools:
        if image.get(tool.project, tool.version) != tool.version:
            raise PinsError(
                f"the compile wants {tool.project} {tool.version}, the image has {image[tool.project]}",
                todo=f"bound {tool.project} to the latter under flash_attn.build_tools",
            )


def _pinned(pins: Extension) -> Artifact | None:
    if not (pins.wheel and pins.wheel_sha256):
        return None
    facts = {"filename": pins.wheel, "sha256": pins.wheel_sha256}
    return Artifact(project=pins.project, version=pins.version, size=pins.wheel_size, **facts)


def _layers(stack: Stack, wheels: Resolution, built: Sequence[Built], compiled: Compiled | None) -> tuple[Layer, ...]:
    sizes = {a.project: a.size or 0 for a in wheels.wheels}
    sizes |= {b.source.project: b.source.size or 0 for b in built if b.source.project != "verl"}
    if "verl" in {a.project for a in wheels.wheels}:
        raise PinsError("verl itself is among the requirements", todo="remove it there; it has its own table")
    planned = [Layer(name=name, packages=packages, diff_id="") for name, packages in plan.layers(stack, sizes)]
    if compiled and compiled.wheel:
        planned.append(Layer(name=compiled.source.project, packages=(compiled.source.project,), diff_id=""))
    planned.append(Layer(name=plan.VERL_LAYER, packages=("verl",), diff_id=""))
    planned.append(Layer(name=plan.SMOKE_LAYER, packages=(), diff_id=""))
    return tuple(planned)


def _record(lock: Lock, stack: Stack, python: Interpreter, shop: Workshop) -> tuple[Layer, ...]:
    """Compose every layer, and note its diff_id."""
    settings = shop.settings(stack, python)
    jobs = compose.wheel_jobs(lock, settings, shop.cache, shop.inside())
    found = compose.find_all(jobs, shop.cache, shop.workers)
    missing = [job for job, have in zip(jobs, found, strict=True) if have is None]
    made = {x.name: x for x in compose.build_all(missing, shop.cache, workers=shop.workers, progress=shop.progress)}
    made |= {x.name: x for x in found if x is not None}
    store.check_claims(list(made.values()))
    return tuple(dataclasses.replace(x, diff_id=made[x.name].blob.diff_id) for x in lock.layers)


def _write(lock: Lock, stack: Stack, wheels: Resolution, shop: Workshop) -> None:
    requirements_path, lock_path = lockfile.paths(shop.constraints, stack.name)
    requirements = lockfile.render_requirements(wheels.wheels, wheels.sdists, stack.name)
    for path, text in (
        (requirements_path, requirements),
        (lock_path, lockfile.render(lock, stack.checksum, requirements)),
    ):
        with atomic(path) as f:
            f.write(text.encode())


def _write_bakefile(stack: Stack, lock: Lock, wheels: Mapping[str, Path], shop: Workshop) -> None:
    """Write the variables of the Dockerfile; only a checkout whose tools are pinned has uv to build with."""
    tools = shop.constraints / "tools.txt"
    if not tools.exists():
        shop.progress.say(f"no {tools}, so no uv is pinned: the variables of the Dockerfile are not written")
        return
    with storage_errors(tools):
        uv = bakefile.uv_requirement(reading.text(tools))
    torch = closure.closure("torch", wheels, python=stack.python) if lock.compiled else ()
    with atomic(bakefile.path(shop.constraints, stack.name)) as f:
        f.write(bakefile.render(stack, lock, uv=uv, torch=torch).encode())
