"""What an image says of its stack to those inside, who see no labels: one variable, in the form verldoctor reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from verlstack import canonical

if TYPE_CHECKING:
    from verlstack.lockfile import Lock
    from verlstack.pins import Stack

NAME = "VERLSTACK_STACK"
OWN = ("TORCH_COMPILE_DISABLE", "NVIDIA_REQUIRE_CUDA")  # the environment that differs from stack to stack
_FORMAT = 1  # docs/verldoctor.md


def value(stack: Stack, lock: Lock, *, complete: bool) -> str:
    """The variable's value: canonical JSON, about 1 kB.

    Its pins are those that people named, in the lock's versions. The whole closure would be eight times as long, and is
    for an SBOM to tell.

    Args:
        stack: the pins.
        lock: of the stack.
        complete: the compiled extension, if the stack has one, is in the image.
    """
    versions = {w.project: w.version for w in lock.wheels} | {b.source.project: b.source.version for b in lock.built}
    named = {str(canonicalize_name(Requirement(line).name)) for line in stack.requires} | {"verl"}
    left_out = []
    if lock.compiled:
        source = lock.compiled.source
        versions[source.project] = source.version
        named.add(source.project)
        left_out = [] if complete else [source.project]
    said = {
        "format": _FORMAT,
        "stack": stack.name,
        "cuda": stack.cuda,
        "python": stack.python,
        "pins": {name: versions[name] for name in named},
        "left_out": left_out,
        "environment": {name: text for name, text in stack.environment if name in OWN},
    }
    return canonical.dumps(said).decode()
