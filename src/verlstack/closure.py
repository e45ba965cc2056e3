"""Which of a lock's packages one of them needs, by the metadata in their wheels."""

from __future__ import annotations

import zipfile
from email.parser import HeaderParser
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from verlstack.errors import WheelError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MAX_METADATA = 4 << 20  # bytes; a README of that length is data


def closure(root: str, wheels: Mapping[str, Path], *, python: str) -> tuple[str, ...]:
    """`root` and everything it needs, without extras, sorted.

    Args:
        root: canonical name of a package.
        wheels: canonical name → wheel, of every package there is; what has no wheel needs nothing more.
        python: X.Y, for environment markers; the platform is Linux on x86_64.

    Raises:
        WheelError: a wheel's metadata cannot be read.
    """
    found: set[str] = set()
    todo = [root]
    while todo:
        if (name := todo.pop()) in found or name not in wheels:
            continue
        found.add(name)
        needs = (Requirement(line) for line in _requires(wheels[name]))
        todo += [canonicalize_name(need.name) for need in needs if applies(need, python)]
    return tuple(sorted(found))


def applies(requirement: Requirement, python: str) -> bool:
    """Whether a requirement's marker holds for CPython `python`, X.Y, on Linux on x86_64, without extras."""
    marks = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "os_name": "posix",
        "extra": "",
    }
    return requirement.marker is None or requirement.marker.evaluate(marks)


def _requires(wheel: Path) -> list[str]:
    """The Requires-Dist lines of a wheel, known to be good requirements."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA") and n.count("/") == 1)
            with archive.open(name) as raw:
                text = raw.read(_MAX_METADATA).decode("utf-8", "replace")
        lines = HeaderParser().parsestr(text).get_all("Requires-Dist") or []
        return [str(Requirement(line)) for line in lines]
    except (zipfile.BadZipFile, StopIteration, InvalidRequirement, OSError, NotImplementedError) as e:
        raise WheelError(f"its metadata cannot be read: {e}", where=wheel.name) from e
