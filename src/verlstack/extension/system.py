"""What a platform promises to compiled code: C and C++ libraries, and the newest symbol versions that they define."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from verlstack import plan
from verlstack.errors import PinsError

if TYPE_CHECKING:
    from collections.abc import Mapping

Version = tuple[int, ...]

# Newest versions that a platform tag promises on x86_64: PEP 600 and auditwheel's policy, which measured the
# distributions. (glibc 2.n, GLIBCXX, CXXABI, GCC)
_PROMISED = (
    (5, (3, 4, 8), (1, 3, 1), (4, 2, 0)),
    (12, (3, 4, 13), (1, 3, 3), (4, 3, 0)),
    (17, (3, 4, 19), (1, 3, 7), (4, 8, 0)),
    (24, (3, 4, 22), (1, 3, 10), (4, 8, 0)),
    (27, (3, 4, 24), (1, 3, 11), (7, 0, 0)),
    (31, (3, 4, 28), (1, 3, 12), (7, 0, 0)),
    (34, (3, 4, 29), (1, 3, 13), (7, 0, 0)),
    (35, (3, 4, 30), (1, 3, 13), (12, 0, 0)),
    (39, (3, 4, 33), (1, 3, 15), (14, 0, 0)),
)
# What glibc, libgcc and libstdc++ are made of: in every base that has a C++ compiler.
LIBRARIES = frozenset(
    {
        *("libc.so.6", "libm.so.6", "libmvec.so.1", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1"),
        *("ld-linux-x86-64.so.2", "libgcc_s.so.1", "libstdc++.so.6"),
    }
)
_NUMBERED = re.compile(r"(?P<family>GLIBC|GLIBCXX|CXXABI|GCC)_(?P<number>\d+(?:\.\d+){1,3})")
_MARKERS = {"GLIBC_ABI_DT_RELR": (2, 36)}  # a version without a number, and the release that brought it


@dataclass(frozen=True, kw_only=True)
class Base:
    """What compiled code may count on.

    Attributes:
        name: what gives it, for messages: `this base`, `manylinux_2_35`.
        newest: the newest version of each family: GLIBC, GLIBCXX, CXXABI, GCC.
        libraries: names of the shared objects that the loader finds by itself.
    """

    name: str
    newest: Mapping[str, Version] = field(hash=False)
    libraries: frozenset[str]

    def gives(self, version: str) -> bool | None:
        """Whether it defines `GLIBC_2.34` or the like; None for a version that is no family of the base's."""
        family, number = parse(version)
        if family is None:
            return None
        return number is not None and number <= self.newest.get(family, ())


def parse(version: str) -> tuple[str | None, Version | None]:
    """(family, number) of a symbol version; (None, None) for other families, no number for private ones."""
    if version in _MARKERS:
        return "GLIBC", _MARKERS[version]
    if match := _NUMBERED.fullmatch(version):
        return match["family"], tuple(int(part) for part in match["number"].split(".")[:4])
    return ("GLIBC", None) if version == "GLIBC_PRIVATE" else (None, None)


def of_platform(platform: str) -> Base:
    """What a platform promises; no base is looked at, because a wheel's layer goes onto any.

    Args:
        platform: `x86_64-manylinux_2_35`.

    Raises:
        PinsError: it is of another form.
    """
    match = re.fullmatch(plan.PLATFORM, platform)
    rows = [row for row in _PROMISED if match and row[0] <= int(match["glibc"])]
    if not match or not rows:
        raise PinsError(f"platform = {platform!r} is not of the form x86_64-manylinux_2_35")
    _, glibcxx, cxxabi, gcc = rows[-1]
    newest: dict[str, Version] = {"GLIBC": (2, int(match["glibc"])), "GLIBCXX": glibcxx, "CXXABI": cxxabi, "GCC": gcc}
    return Base(name=f"manylinux_2_{match['glibc']}", newest=newest, libraries=LIBRARIES)
