"""SHA-256 of the files that Debian packages were installed from: a list in the tree, in the form of sha256sum(1)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from verlstack.base.dpkg import Package

PATH = "usr/share/verlstack/debs.sha256"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9+.~%_-]+\.deb)")

_MOST = 1 << 20  # characters; 3000 packages have 400 kB
_MOST_COMPLAINTS = 20  # one is enough to refuse it


def file_name(package: Package) -> str:
    """What `apt-get download` calls a package's file: the colon of an epoch as %3a."""
    return f"{package.name}_{package.version.replace(':', '%3a')}_{package.architecture}.deb"


def listed(index: Iterable[str], installed: Iterable[Package]) -> str:
    """The list of installed packages.

    dpkg keeps no hash. apt checked each file against the one of the mirrors' indices, which are signed.

    Args:
        index: lines of all `Packages` files that the mirrors gave, one after another with an empty line between.
        installed: what dpkg lists.

    Returns:
        A line for each package of whose version and architecture the indices name one hash. None for a package that no
        index has, or that two mirrors have in different bytes under one version: no hash is better than a wrong one.
    """
    wanted = {(x.name, x.version, x.architecture): file_name(x) for x in installed}
    found: dict[str, set[str]] = {}
    for stanza in _stanzas(index):
        name = wanted.get((stanza.get("Package", ""), stanza.get("Version", ""), stanza.get("Architecture", "")))
        if name and _SHA256.fullmatch(digest := stanza.get("SHA256", "").lower()):
            found.setdefault(name, set()).add(digest)
    return "".join(f"{min(found[name])}  {name}\n" for name in sorted(found) if len(found[name]) == 1)


def _stanzas(index: Iterable[str]) -> Iterator[dict[str, str]]:
    """The fields of each stanza that say which file it is of."""
    stanza: dict[str, str] = {}
    for line in index:
        if line.startswith(("Package:", "Version:", "Architecture:", "SHA256:")):
            key, _, value = line.partition(":")
            stanza[key] = value.strip()
        elif line.isspace():
            yield stanza
            stanza = {}
    yield stanza


def read(text: str, installed: Iterable[Package]) -> tuple[tuple[Package, ...], tuple[str, ...]]:
    """The installed packages, with hash where the list has theirs, and what is wrong with the list.

    A line for what dpkg does not list, or not any more, is stale: a base that was upgraded after its bootstrap, and
    squashed to one layer, has such.

    Args:
        text: the list, which may be a stranger's; empty where there is none.
        installed: what dpkg lists beside it.

    Returns:
        (packages, complaints); a complaint is a sentence without subject. Of a list that is wrong no hash is taken.
    """
    packages = tuple(installed)
    if len(text) > _MOST:
        return packages, (f"has more than {_MOST} bytes in /{PATH}",)
    known, complaints = _parsed(text)
    if complaints:
        return packages, tuple(complaints)
    return tuple(replace(x, sha256=known.get(file_name(x))) for x in packages), ()


def _parsed(text: str) -> tuple[Mapping[str, str], list[str]]:
    """(file name → hash, the first complaints)."""
    known: dict[str, str] = {}
    complaints: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if len(complaints) == _MOST_COMPLAINTS:
            break
        match = _LINE.fullmatch(line)
        if match is None:
            complaints.append(f"has no hash and name of a package in line {number} of /{PATH}")
        elif known.setdefault(match[2], match[1]) != match[1]:
            complaints.append(f"has two hashes of {match[2]} in /{PATH}")
    return known, complaints
