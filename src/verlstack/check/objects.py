"""What the shared objects of wheels ask of the C and C++ libraries, read once a wheel and kept under its hash."""

from __future__ import annotations

import json
import zipfile
from typing import TYPE_CHECKING

from verlstack import canonical, zips
from verlstack.cache import atomic
from verlstack.check import knowledge
from verlstack.content import Reader
from verlstack.extension import elf_symbols, libraries, rules
from verlstack.extension.elf_file import X86_64, BadElfError
from verlstack.extension.elf_symbols import Need, Object

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from verlstack.cache import Cache
    from verlstack.check.finding import Finding
    from verlstack.extension.system import Base

_FORMAT = 1
Needs = dict[str, list[tuple[str, str, str]]]  # member → (library, version, one symbol)


def kept(sha256: str, cache: Cache) -> Needs | None:
    """What was read of a wheel before."""
    try:
        document = json.loads(_note(sha256, cache).read_bytes())
        return {member: [(a, b, c) for a, b, c in needs] for member, needs in document.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def needs(wheel: Path, sha256: str, cache: Cache) -> Needs:
    """What each shared object of a wheel needs, from its note or from its bytes.

    Raises:
        WheelError: the wheel is damaged.
        StorageError: there is no room to unpack its largest object.
    """
    found = kept(sha256, cache)
    if found is None:
        found = dict(_read(wheel, cache))
        with atomic(_note(sha256, cache)) as out:
            out.write(canonical.dumps(found))
    return found


def too_new(wheel: str, found: Mapping[str, list[tuple[str, str, str]]], base: Base) -> Iterator[Finding]:
    """Every version that the base does not give, by the same rule as the gate's."""
    for member, asked in found.items():
        wanted = tuple(Need(library=library, version=version, symbol=symbol) for library, version, symbol in asked)
        for one in rules.versions(member, _object(wanted), base):
            family = one.subject.partition("_")[0]
            right = f"{base.name}: {family}_{'.'.join(map(str, base.newest.get(family, ())))} at most"
            subject = f"{wheel}: {member}"
            yield knowledge.finding("GLIBC", subject=subject, measured=f"needs {one.subject}", right=right)


def _object(wanted: tuple[Need, ...]) -> Object:
    nothing: frozenset[str] = frozenset()
    return Object(
        needed=(), defined=nothing, machine=X86_64, kind=3, undefined=(), needs=wanted, versions=nothing
    )  # fmt: skip


def _note(sha256: str, cache: Cache) -> Path:
    return cache.root / "needs" / f"{canonical.digest([_FORMAT, sha256])}.json"


def _read(wheel: Path, cache: Cache) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    try:
        archive = zipfile.ZipFile(wheel)
    except (zipfile.BadZipFile, OSError) as e:
        raise zips.error(wheel, f"is not a zip archive, or is cut off: {e}") from e
    with archive, Reader() as reader:
        for member in zips.members(wheel, archive):
            if libraries.shared_name(member.name) is None:
                continue
            try:
                with libraries.mapped(reader.chunks(member), member.size, cache.tmp) as data:
                    found = elf_symbols.read(data)
            except BadElfError:
                continue  # a linker script, or an object for another machine's loader: nothing loads it
            yield member.name, [(need.library, need.version, need.symbol) for need in found.needs]
