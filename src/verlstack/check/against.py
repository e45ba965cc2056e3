"""The stack that something is held against: its releases, interpreter, platform and C++ ABI, off pins and lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from verlstack.check.asked import pinned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from verlstack.lockfile import Lock
    from verlstack.pins import Stack


@dataclass(frozen=True, kw_only=True)
class Against:
    """What counts of a stack.

    Attributes:
        name: of the stack.
        python: X.Y.
        platform: uv's name of it.
        cuda: "12.1".
        cxx11_abi: how torch passes strings; None where no lock says so.
        versions: canonical name → release: of the lock, or of the exact pins where there is no lock.
    """

    name: str
    python: str
    platform: str
    cuda: str
    cxx11_abi: bool | None
    versions: Mapping[str, Version]

    def near(self, versions: Mapping[str, Version]) -> dict[str, Version]:
        """`versions`, and this stack's where they name none; alone, if they have another torch."""
        mine, theirs = self.versions.get("torch"), versions.get("torch")
        if mine and theirs and mine.release[:2] != theirs.release[:2]:
            return dict(versions)
        return {**self.versions, **versions}


def of(stack: Stack, lock: Lock | None) -> Against:
    """The facts of a stack; without a lock that fits, its exact pins stand for it."""
    versions: dict[str, Version] = {}
    for line in stack.requires:
        requirement = Requirement(line)
        if version := pinned(requirement):
            versions[canonicalize_name(requirement.name)] = version
    if lock:
        versions |= {wheel.project: Version(wheel.version) for wheel in lock.wheels}
        versions |= {built.source.project: Version(built.source.version) for built in lock.built}
    versions["verl"] = Version(stack.verl.version)
    if stack.flash_attn:
        versions[stack.flash_attn.project] = Version(stack.flash_attn.version)
    return Against(
        name=stack.name,
        python=stack.python,
        platform=stack.platform,
        cuda=stack.cuda,
        cxx11_abi=lock.compiled.cxx11_abi if lock and lock.compiled else None,
        versions=versions,
    )
