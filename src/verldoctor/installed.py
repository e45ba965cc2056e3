"""Which distributions a Python has, read off directory names: importlib.metadata costs 30 ms, they cost seconds."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_INFO = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._]*)-(?P<version>[^-]+)\.(?:dist-info|egg-info)$")
_VERSION_PY = re.compile(r"""^(__version__|cuda)\b[^=]*=\s*['"]([^'"]{1,40})['"]""", re.MULTILINE)
_VERSION_PY_BYTES = 20_000  # torch's is under 1 kB


@dataclass(frozen=True)
class Distribution:
    """One *.dist-info directory.

    Attributes:
        name: normalised as PEP 503 asks.
        version: as the directory name has it.
        place: the site-packages directory.
        folder: name of the dist-info directory.
    """

    name: str
    version: str
    place: Path
    folder: str


def normal(name: str) -> str:
    """`name` as PEP 503 compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def search_path() -> list[Path]:
    """The directories this interpreter imports from, each once."""
    return [Path(entry) for entry in dict.fromkeys(sys.path) if entry and os.path.isdir(entry)]  # noqa: PTH112 - str, fast


def distributions(places: Iterable[Path]) -> list[Distribution]:
    """Every distribution in `places`, in the order in which an import would meet them; unreadable places are empty."""
    found: list[Distribution] = []
    for place in places:
        try:
            names = sorted(os.listdir(place))  # noqa: PTH208 - thousands of entries, names only
        except OSError:
            continue
        matches = (_INFO.match(name) for name in names)
        found += [Distribution(normal(m["name"]), m["version"], place, m[0]) for m in matches if m]
    return found


def torch_build(place: Path) -> dict[str, str]:
    """`__version__` and `cuda` of the torch package in `place`, from its version.py, where +cu121 stands."""
    try:
        with (place / "torch" / "version.py").open("rb") as stream:
            text = stream.read(_VERSION_PY_BYTES).decode("utf-8", "replace")
    except OSError:
        return {}
    return dict(_VERSION_PY.findall(text))
