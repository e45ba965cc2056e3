"""Which symbols, versions and libraries a shared object asks for and gives, read as the loader reads them.

Format: System V ABI, "Dynamic Linking"; LSB core, "Symbol Versioning"; the GNU hash section. 64-bit little-endian only,
the one kind our images hold. Every offset and count is checked: a damaged file costs an error, not memory or time.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verlstack.extension import elf_dynamic, elf_file
from verlstack.extension.elf_dynamic import Dynamic
from verlstack.extension.elf_file import BadElfError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verlstack.extension.elf_file import Data

_SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym
_VERNEED = struct.Struct("<HHIII")
_VERNAUX = struct.Struct("<IHHII")
_VERDEF = struct.Struct("<HHHHIII")
_GNU_HASH = struct.Struct("<IIII")
_WORD = struct.Struct("<I")
_DT_HASH, _DT_SYMTAB = 4, 6
_DT_GNU_HASH, _DT_VERSYM, _DT_VERDEF, _DT_VERNEED = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFE
_GLOBAL, _WEAK, _GNU_UNIQUE = 1, 2, 10
_SHN_UNDEF = 0
_VER_FLG_WEAK = 2
_VERSION_BITS = 0x7FFF  # the sixteenth says "hidden"
# What no sane object passes: ten times what torch 2.3.1's libtorch_cpu.so has, with 93 739 symbols and 6 MB of names.
_MOST_SYMBOLS = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Symbol:
    """A symbol that must be found elsewhere.

    Attributes:
        version: the version asked for, `GLIBC_2.34`, or "".
        library: the library that is to define that version, or "".
    """

    name: str
    version: str = ""
    library: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """A version that a library must define, and one symbol for which it is needed, or ""."""

    library: str
    version: str
    symbol: str = ""


@dataclass(frozen=True, kw_only=True)
class Library:
    """What a shared object is to those who load it.

    Attributes:
        needed: names of the libraries that it loads.
        defined: names that it gives to others.
    """

    needed: tuple[str, ...]
    defined: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Object(Library):
    """An executable or shared object as the loader sees it.

    Attributes:
        machine: e_machine; 62 is x86-64.
        kind: e_type; 3 is a shared object.
        undefined: global symbols that must be found; weak ones, which may stay unfound, are left out.
        needs: versions that the loader will ask of other libraries.
        versions: versions that it defines itself.
    """

    machine: int
    kind: int
    undefined: tuple[Symbol, ...]
    needs: tuple[Need, ...]
    versions: frozenset[str]


def read(data: Data) -> Object:
    """What the dynamic section of an ELF file says.

    Raises:
        BadElfError: it is no such file, is cut short, or its tables make no sense.
    """
    try:
        return _File(data).object()
    except (struct.error, OverflowError) as e:
        raise BadElfError("its tables reach past the end of the file") from e


class _File:
    """One file's tables, found through its dynamic section."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self._dynamic = Dynamic(data)
        self._table = self._dynamic.table
        strings = self._table(elf_dynamic.STRTAB)
        size = self._dynamic.values.get(elf_dynamic.STRSZ, 0)
        self._names = elf_file.Names(elf_file.stretch(data, strings, size) if strings is not None else b"")

    def object(self) -> Object:
        """Everything, once."""
        versions = dict(self._needed_versions())
        undefined, defined = self._symbols(versions)
        users = {(s.library, s.version): s.name for s in reversed(undefined) if s.version}
        needs = sorted({(library, version) for library, version, weak in versions.values() if not weak})
        return Object(
            machine=self._dynamic.machine,
            kind=self._dynamic.kind,
            needed=tuple(self._named(elf_dynamic.NEEDED)),
            undefined=undefined,
            defined=defined,
            needs=tuple(Need(library=at, version=v, symbol=users.get((at, v), "")) for at, v in needs),
            versions=frozenset(self._defined_versions()),
        )

    def _named(self, wanted: int) -> Iterator[str]:
        return (self._names.at(value) for tag, value in self._dynamic.entries if tag == wanted)

    def _symbols(self, versions: dict[int, tuple[str, str, bool]]) -> tuple[tuple[Symbol, ...], frozenset[str]]:
        at = self._table(_DT_SYMTAB)
        if at is None:
            return (), frozenset()
        count = self._count(at)
        indices = self._indices(count)
        undefined: list[Symbol] = []
        defined: set[str] = set()
        table = elf_file.stretch(self._data, at, count * _SYMBOL.size)
        for index, (name_at, info, other, section, _, _) in enumerate(_SYMBOL.iter_unpack(table)):
            if info >> 4 not in {_GLOBAL, _WEAK, _GNU_UNIQUE} or index == 0:
                continue
            name = self._names.at(name_at)
            if section != _SHN_UNDEF:
                if other & 3 in {0, 3}:  # default and protected; hidden and internal ones are nobody else's
                    defined.add(name)
            elif info >> 4 == _GLOBAL:
                library, version, _ = versions.get(indices[index] if indices else 0, ("", "", False))
                undefined.append(Symbol(name=name, version=version, library=library))
        return tuple(undefined), frozenset(defined)

    def _count(self, symbols: int) -> int:
        """How many symbols there are: no table says so, the hash tables imply it."""
        counts: list[int] = [1]
        if (at := self._table(_DT_HASH)) is not None:
            counts.append(_WORD.unpack_from(self._data, at + 4)[0])
        if (at := self._table(_DT_GNU_HASH)) is not None:
            counts.append(self._hashed(at))
        if max(counts) == 1:  # an empty GNU table counts nothing, not even what is undefined
            counts += [
                header[5] // _SYMBOL.size
                for header in elf_file.section_headers(self._data)
                if header[1] == elf_file.DYNAMIC_SYMBOLS and header[4] == symbols
            ]
        if max(counts) > _MOST_SYMBOLS:
            raise BadElfError(f"it claims {max(counts)} symbols")
        return max(counts)

    def _hashed(self, at: int) -> int:
        """One more than the highest index in a GNU hash table: the last chain's end."""
        first: int  # the index where the hashed ones begin
        buckets, first, bloom, _ = _GNU_HASH.unpack_from(self._data, at)
        if max(buckets, bloom, first) > _MOST_SYMBOLS:
            raise BadElfError("its hash table is too large to be true")
        start = at + _GNU_HASH.size + bloom * 8
        chains = start + buckets * 4
        last: int = max(_WORD.iter_unpack(elf_file.stretch(self._data, start, buckets * 4)), default=(0,))[0]
        if last < first:
            return first
        for index in range(last, _MOST_SYMBOLS):
            if _WORD.unpack_from(self._data, chains + (index - first) * 4)[0] & 1:
                return index + 1
        raise BadElfError("its hash table has no end")

    def _indices(self, count: int) -> list[int]:
        """The version index of each symbol."""
        at = self._table(_DT_VERSYM)
        if at is None:
            return []
        return [
            index & _VERSION_BITS for (index,) in struct.iter_unpack("<H", elf_file.stretch(self._data, at, count * 2))
        ]

    def _needed_versions(self) -> Iterator[tuple[int, tuple[str, str, bool]]]:
        """(version index, (library, version, whether it may be missing))."""
        at = self._table(_DT_VERNEED)
        if at is None:
            return
        left = elf_file.MOST_ENTRIES
        while True:
            _, count, library, aux, following = _VERNEED.unpack_from(self._data, at)
            name, inner = self._names.at(library), at + aux
            left -= 1 + count
            if left < 0:
                raise BadElfError("its version table has no end")
            for _ in range(count):
                _, flags, index, version, step = _VERNAUX.unpack_from(self._data, inner)
                yield index & _VERSION_BITS, (name, self._names.at(version), bool(flags & _VER_FLG_WEAK))
                inner += step
            at += following
            if following == 0:
                return

    def _defined_versions(self) -> Iterator[str]:
        at = self._table(_DT_VERDEF)
        if at is None:
            return
        for _ in range(elf_file.MOST_ENTRIES):
            *_, aux, following = _VERDEF.unpack_from(self._data, at)
            yield self._names.at(_WORD.unpack_from(self._data, at + aux)[0])
            at += following
            if following == 0:
                return
        raise BadElfError("its version table has no end")
