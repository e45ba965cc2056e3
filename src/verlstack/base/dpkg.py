"""Debian packages of a root tree, as dpkg's own status file lists them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verlstack.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

_FIELD = re.compile(r"^(Package|Status|Version|Architecture|Source|Installed-Size):[ \t]*(.*)$", re.MULTILINE)
_SOURCE = re.compile(r"(\S+)(?: \((\S+)\))?")
# Debian policy 5.6.1 and 5.6.12; a hostile status file must not put blanks or line ends into labels and tables.
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]*")
# What a person may ask for. apt takes NAME-, NAME=VERSION, NAME/SUITE and NAME:ARCHITECTURE for orders, and no package
# is called so. NAME+ is an order too, but also a name (g++, memtest86+): which of them, only the mirror knows, and a
# name that it does not have exactly is refused there before anything is installed.
_ASKED = re.compile(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.]")
_VERSION = re.compile(r"[A-Za-z0-9.+:~-]+")


@dataclass(frozen=True, kw_only=True)
class Package:
    """An installed package.

    Attributes:
        architecture: "amd64", or "all".
        source: the source package it was built from; advisories are about these.
        source_version: its version, which may differ from the binary's.
        installed_kib: `Installed-Size`, KiB by the packager's account; 0 where it is not told.
        licence: path of its copyright file, or None where the tree has none.
        sha256: of the file it was installed from, where the tree says so.
    """

    name: str
    version: str
    architecture: str
    source: str
    source_version: str
    installed_kib: int
    licence: str | None = None
    sha256: str | None = None


def check_names(names: Iterable[str], where: str) -> None:
    """Refuse what is no name of a Debian package: it would go into a shell line, and to apt as an order.

    Raises:
        UsageError: naming it.
    """
    for name in names:
        if _ASKED.fullmatch(name):
            continue
        what = f"{name!r} is no name of a Debian package"
        if re.fullmatch(r"[a-z0-9][a-z0-9+.-]*-", name):
            what += ": apt takes the - at its end for an order to remove"
        elif re.match(r"[a-z0-9][a-z0-9+.-]+[=/:]", name):
            what += ": no version, suite or architecture can be asked for"
        raise UsageError(
            what, where=where, todo="write the bare name, once for each package; the mirror decides the version"
        )


def parse(status: str) -> tuple[Package, ...]:
    """The installed packages of a status file's text, sorted by name; malformed stanzas are passed over.

    A file below `status.d` (as distroless images have them) holds one stanza without `Status`; it counts as installed.
    """
    found = {}
    for stanza in re.split(r"\n\s*\n", status):
        fields = dict(_FIELD.findall(stanza))
        name, version = fields.get("Package", ""), fields.get("Version", "")
        installed = fields.get("Status", "ok installed").endswith(" installed")
        if installed and _NAME.fullmatch(name) and _VERSION.fullmatch(version):
            found[name, fields.get("Architecture", "")] = _package(name, version, fields)
    return tuple(found[key] for key in sorted(found))


def _package(name: str, version: str, fields: dict[str, str]) -> Package:
    source = _SOURCE.fullmatch(fields.get("Source", ""))
    size = fields.get("Installed-Size", "")
    return Package(
        name=name,
        version=version,
        architecture=fields.get("Architecture", ""),
        source=source[1] if source else name,
        source_version=(source[2] if source else None) or version,
        installed_kib=int(size) if re.fullmatch(r"[0-9]{1,12}", size) else 0,
    )
