"""The lock as variables of docker/docker-bake.hcl: `STACK.bake.json`, which needs nothing but docker to be used."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from verlstack import reading, stackvariable
from verlstack.errors import LockError
from verlstack.extension import key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from verlstack.download import Artifact
    from verlstack.extension.pin import Extension
    from verlstack.lockfile import Layer, Lock
    from verlstack.pins import Stack

LEFT_OUT = "dev.verlstack.left-out"  # the label of what an image lacks; `verlstack build` sets the same
VARIABLE = "VERLSTACK_LOCK"
TOOLS = "tools.txt"  # beside the locks; pins the uv that the Dockerfile builds with
_UV = re.compile(r"^uv==(\S+) \\\n((?: {4}--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)


def path(folder: Path, stack: str) -> Path:
    """The file beside a stack's lock."""
    return folder / f"{stack}.bake.json"


def of_lock(folder: Path, lock: Lock) -> Path:
    """The file beside a lock, once it is seen to be that lock's own.

    Raises:
        LockError: it is missing, damaged, or of another lock.
    """
    file = path(folder, lock.stack)
    try:
        found = json.loads(reading.data(file))["variable"][VARIABLE]["default"]["lock"]
    except OSError as e:
        what = f"the lock's third file cannot be read: {e.strerror}"
    except (ValueError, KeyError, TypeError, RecursionError):
        what = "the lock's third file is damaged"
    else:
        if found == f"sha256:{lock.digest}":
            return file
        what = "this file is of another lock than the present one"
    todo = f"run `verlstack lock {lock.stack}`"
    if not (folder / TOOLS).exists():  # then the lock would be renewed without this file
        where = f"{folder / TOOLS}, which pins uv (it is in the repository; `make lock-tools` makes it)"
        todo = f"first have {where}; then {todo}"
    raise LockError(what, where=str(file), todo=todo)


def uv_requirement(tools: str) -> str:
    """The line of uv in the text of `tools.txt`, with all its hashes.

    Raises:
        LockError: it is not there.
    """
    if not (match := _UV.search(tools)):
        raise LockError("tools.txt pins no uv", todo="add it to tools.in, then run `make lock-tools`")
    return f"uv=={match[1]} " + " ".join(re.findall(r"--hash=sha256:[0-9a-f]{64}", match[2]))


def render(stack: Stack, lock: Lock, *, uv: str, torch: Sequence[str]) -> str:
    """The text of `STACK.bake.json`.

    Args:
        stack: the pins.
        lock: of the stack.
        uv: its requirement line.
        torch: the packages among which an extension is compiled: torch and all it needs.
    """
    lacks = _lacks(stack, lock)
    labels = {"dev.verlstack.stack": stack.name, "dev.verlstack.lock": f"sha256:{lock.digest}"}
    value = {
        "lock": f"sha256:{lock.digest}",
        "tag": stack.tag(without=lacks),
        "args": _arguments(stack, lock, uv, torch),
        "contexts": _contexts(stack),
        # apart: BuildKit asks the registry for every context it is given, needed or not
        "toolchain": {name: f"docker-image://{image}" for name, image in stack.dockerfile if name == "cuda"},
        "labels": labels | ({LEFT_OUT: lacks.project} if lacks else {}),
    }
    return json.dumps({"variable": {VARIABLE: {"default": value}}}, indent=1, sort_keys=True) + "\n"


def _lacks(stack: Stack, lock: Lock) -> Extension | None:
    """What the image goes without.

    As in `verlstack build`, tag, label and variable tell it. Here it is known from the lock: without a pinned wheel
    there is none, and a pinned one that cannot be had stops the bake (its argument names its hash).
    """
    return None if lock.compiled and lock.compiled.wheel else stack.flash_attn


def _contexts(stack: Stack) -> dict[str, str]:
    # a tag can move, but the hash of the wheel made from it is an argument, too
    found = {"verl-source": f"{stack.verl.repository}.git#{stack.verl.commit or stack.verl.tag}"}
    found |= {name: f"docker-image://{image}" for name, image in stack.dockerfile if name == "os"}
    return found


def _arguments(stack: Stack, lock: Lock, uv: str, torch: Sequence[str]) -> dict[str, str]:
    """Arguments of the Dockerfile's stages; a layer's is named after it."""
    lines = _lines(lock)
    verl = next(built for built in lock.built if built.source.project == "verl")
    arguments = {
        "PYTHON": stack.python,
        "CUDA": stack.cuda,
        "SOURCE_DATE_EPOCH": str(lock.epoch),
        "UV": uv,
        "BUILD_TOOLS": _requirements(lock.build_tools),
        "SDISTS": _requirements(built.source for built in lock.built if built is not verl),
        "VERL_WHEEL_SHA256": verl.wheel_sha256,
        "VERL_STRIP": " ".join(stack.verl.strip),
        **{name: value for name, value in stack.environment if name in stackvariable.OWN},
        stackvariable.NAME: stackvariable.value(stack, lock, complete=_lacks(stack, lock) is None),
        **{argument(x.name): _layer(x, lines, stack) for x in lock.layers if x.packages},
    }
    if compiled := lock.compiled:
        tools = {tool.project: tool for tool in (*lock.build_tools, *compiled.tools)}
        needed = [lines[name] for name in torch if name not in tools]
        arguments |= {
            "CUDA_ARCHS": " ".join(compiled.cuda_archs),
            "COMPILE_KEY": key.facts(stack, lock, compiler="").key[:32],  # other facts, other objects
            "EXTENSION": _requirements([compiled.source]),
            "COMPILE_REQUIREMENTS": "\n".join([*needed, _requirements(tools.values())]),
        }
    return arguments


FROM_LOCK = (*stackvariable.OWN, stackvariable.NAME)  # variables of the image that are arguments of the Dockerfile


def argument(layer: str) -> str:
    """Name of the Dockerfile's argument for a layer: `nvidia-nccl-cu12` → `NVIDIA_NCCL_CU12`."""
    return re.sub(r"[^A-Z0-9]", "_", layer.upper())


def _layer(layer: Layer, lines: Mapping[str, str], stack: Stack) -> str:
    """A layer's requirements, and what docker/finish.py removes of them: a comment to uv."""
    gone = [f"# leave out: {package}/{glob}" for package, glob in stack.leave_out if package in layer.packages]
    return "\n".join([*(lines[package] for package in layer.packages), *gone])


def _lines(lock: Lock) -> dict[str, str]:
    """Package → its requirement line, with the hash of its wheel."""
    made: dict[str, str] = {w.project: _requirement(w) for w in lock.wheels}
    for b in lock.built:
        made[b.source.project] = f"{b.source.project}=={b.source.version} --hash=sha256:{b.wheel_sha256}"
    if lock.compiled and lock.compiled.wheel:
        made[lock.compiled.wheel.project] = _requirement(lock.compiled.wheel)
    return made


def _requirements(artifacts: Iterable[Artifact]) -> str:
    return "\n".join(map(_requirement, artifacts))


def _requirement(artifact: Artifact) -> str:
    return f"{artifact.project}=={artifact.version} --hash=sha256:{artifact.sha256}"
