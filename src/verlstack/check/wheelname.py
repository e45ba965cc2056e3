"""A wheel's file name against a stack: Python, platform, and the torch, CUDA and C++ ABI that it was made for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from verlstack import plan
from verlstack.check import knowledge, releases
from verlstack.check.finding import FAIL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.tags import Tag
    from packaging.version import Version

    from verlstack.check.against import Against
    from verlstack.check.finding import Finding

# As upstreams write them: `cu123torch2.3cxx11abiFALSE`, `cu118`, `torch2.4.0.cu121`, `pt23cu121`.
_CUDA = re.compile(r"cu(?P<major>\d\d)(?P<minor>\d?)")
_TORCH = re.compile(r"torch\.?(?P<release>\d+\.\d+)|pt(?P<major>\d)(?P<minor>\d+)")
_OTHER = re.compile(r"(?:^|[.]|pt\d+)(?P<kind>cpu|rocm[\d.]*|xpu)(?=[.]|torch|$)")  # for no CUDA; whole words
_ABI = re.compile(r"cxx11[._]?abi\.?(?P<flag>true|false|1|0)")


def check(filename: str, against: Against, where: str = "") -> list[Finding]:
    """Everything in a wheel's name that does not fit the stack."""
    try:
        name, version, _, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename as e:
        return [knowledge.finding("WHEEL-NAME", subject=filename, measured=str(e), where=where)]
    found = [*_tags(filename, tags, against, where), *_local(filename, name, version, against, where)]
    versions = against.near({name: version})
    known = releases.troubles(versions, frozenset({name}), lambda _: where)
    return found + [one for one in known if one.severity == FAIL]


def _tags(filename: str, tags: frozenset[Tag], against: Against, where: str) -> Iterator[Finding]:
    accepted = plan.tags(against.python, against.platform)
    if tags & set(accepted):
        return
    python = "cp" + against.python.replace(".", "")
    shown = ", ".join(sorted(map(str, tags)))
    right = f"{python} on {against.platform}, such as {accepted[0]}"
    yield knowledge.finding("WHEEL-TAG", subject=filename, measured=shown, right=right, where=where)


def _local(filename: str, name: str, version: Version, against: Against, where: str) -> Iterator[Finding]:
    """What the local version says: `+cu123torch2.3cxx11abiFALSE`."""
    local = version.local or ""
    yield from _torch(filename, name, version, against, where)
    major = against.cuda.partition(".")[0]
    cuda, other = _CUDA.search(local), _OTHER.search(local)
    if made_for := cuda[0] if cuda and cuda["major"] != major else other["kind"] if other and not cuda else "":
        right = f"CUDA {against.cuda}: any cu{major}"
        yield knowledge.finding(
            "WHEEL-CUDA", subject=filename, measured=f"made for {made_for}", right=right, where=where
        )
    if (match := _ABI.search(local)) and against.cxx11_abi is not None:
        new = match["flag"] in {"true", "1"}
        if new != against.cxx11_abi:
            right = f"cxx11abi{str(against.cxx11_abi).upper()}"
            yield knowledge.finding(
                "WHEEL-ABI",
                subject=filename,
                measured=f"made with cxx11abi{str(new).upper()}",
                right=right,
                where=where,
            )


def _torch(filename: str, name: str, version: Version, against: Against, where: str) -> Iterator[Finding]:
    """The torch that the wheel was made for, or that it is."""
    torch = against.versions.get("torch")
    if torch is None:
        return
    have = _minor(torch)
    match = _TORCH.search(version.local or "")
    made_for = (match["release"] or f"{match['major']}.{match['minor']}") if match else have
    if made_for != have:
        measured = f"made for torch{made_for}"
    elif name == "torch" and _minor(version) != have:
        measured = f"it is torch{_minor(version)}"
    else:
        return
    yield knowledge.finding("WHEEL-TORCH", subject=filename, measured=measured, right=f"torch{have}", where=where)


def _minor(version: Version) -> str:
    return ".".join(map(str, version.release[:2]))
