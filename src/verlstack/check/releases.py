"""Known troubles of releases: which of them a set of versions has, which verl tags exist, whose CUDA a torch is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from verlstack import verltags
from verlstack.check import knowledge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from verlstack.check.finding import Finding

# PyTorch's indexes are named for what their torch was built for: whl/cu118, whl/cpu, whl/nightly/cu121.
INDEX_CUDA = re.compile(r"/whl/(?:\w+/)?(?P<build>cu(?P<major>\d\d)\d|cpu|rocm[\d.]+|xpu)\b")


def troubles(versions: Mapping[str, Version], about: frozenset[str], where: Callable[[str], str]) -> Iterator[Finding]:
    """Every known trouble among these releases.

    Args:
        versions: canonical name → release, of everything that will be installed.
        about: what was asked for; a trouble between two others is not this check's.
        where: the line of a package.
    """
    for one in knowledge.troubles():
        if not one.hits(versions) or not {one.package, one.beside} & about:
            continue
        beside = f" beside {_shown(one.beside, versions)}" if one.beside else ""
        yield knowledge.finding(
            one.code,
            subject=_shown(one.package, versions),
            measured=f"{one.shown}{beside and f' ({_shown(one.package, versions)}{beside})'}",
            right=one.right,
            source=one.source,
            severity=one.severity,
            where=where(one.package) or where(one.beside),
        )


def _shown(name: str, versions: Mapping[str, Version]) -> str:
    """A release as people call it: verl by its tag."""
    return f"{name} {'v' * (name == 'verl')}{versions[name]}"


def verl(tag: str, where: str) -> tuple[Version | None, list[Finding]]:
    """The release that a tag of verl's names, and what is wrong with that tag."""
    known = verltags.known()
    if tag in known:
        return Version(tag), []
    plain = f"v{tag}"  # people write 0.2.0.post2 and mean the tag
    if plain in known:
        return Version(plain), []
    try:
        version = Version(tag)
    except InvalidVersion:
        version = None
    near = " and ".join(verltags.nearest(tag)) if version else ", ".join(known)
    right = f"the nearest tags that exist are {near}"
    return version, [
        knowledge.finding("VERL-TAG", subject=f"verl {tag}", measured="no such tag", right=right, where=where)
    ]


def cuda_of_local(version: Version) -> str | None:
    """CUDA that a local version names: `2.3.1+cu121` → "12.1"; None where it names none."""
    match = re.search(r"\bcu(\d{2})(\d)\b", version.local or "")
    return f"{match[1]}.{match[2]}" if match else None


def torch_cuda(version: Version, cuda: str, where: str, wanted: str = "") -> Iterator[Finding]:
    """Whether torch is wanted for the CUDA that the index's build of it has.

    Args:
        version: of torch; its local version may name a CUDA.
        cuda: the stack's, for a release of which it is not known.
        where: the line.
        wanted: CUDA as the file names it, "" where it names none.
    """
    index = knowledge.table("rules")["torch"]["cuda"].get(version.public) or cuda
    if version.local and cuda_of_local(version) != index:
        asked = f"+{version.local}"
    elif wanted and wanted != index:
        asked = f"CUDA {wanted}"
    else:
        return
    right = f"torch {version.public}; the index's build is of CUDA {index}"
    measured = f"{asked} is asked for"
    yield knowledge.finding("TORCH-CUDA", subject=f"torch {version}", measured=measured, right=right, where=where)
