"""Shared objects and fat binaries made byte by byte, as small as the loader's tables allow."""

from __future__ import annotations

import struct
from dataclasses import dataclass

GLOBAL, WEAK = 1, 2
DEFAULT, HIDDEN = 0, 2
PTX, MACHINE_CODE = 1, 2
EXACT, FAMILY = 0x100000, 0x200000


@dataclass(frozen=True, kw_only=True)
class Elf:
    """A shared object; one segment holds all of it, so that addresses are offsets.

    Attributes:
        undefined: symbols wanted: a name, or (name, library, version).
        weak: symbols wanted, but not necessarily.
        defined: symbols given.
        hidden: symbols that are in the table and nobody else's.
        versions: versions defined.
        weak_needs: (library, version) that may be missing.
        fatbin: content of the section `.nv_fatbin`; None for none.
        stripped: leave out the section headers.
        gnu: count symbols by a GNU hash table instead of the old one.
    """

    needed: tuple[str, ...] = ()
    undefined: tuple[str | tuple[str, str, str], ...] = ()
    weak: tuple[str, ...] = ()
    defined: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    weak_needs: tuple[tuple[str, str], ...] = ()
    fatbin: bytes | None = None
    machine: int = 62
    kind: int = 3
    stripped: bool = False
    gnu: bool = False

    def to_bytes(self) -> bytes:
        """The file."""
        return _Writer(self).finished()


class _Writer:
    def __init__(self, elf: Elf) -> None:
        self.elf = elf
        self.strings = bytearray(b"\0")
        self.out = bytearray(bytes(64 + 2 * 56))  # header and two program headers, filled in at the end
        self.dynamic: list[tuple[int, int]] = []
        self.symbols = (0, 0)
        self.code = 0

    def string(self, text: str) -> int:
        data = text.encode() + b"\0"
        at = self.strings.find(b"\0" + data)
        if at >= 0:
            return at + 1
        self.strings += data
        return len(self.strings) - len(data)

    def place(self, data: bytes) -> int:
        self.out += bytes(-len(self.out) % 8)
        self.out += data
        return len(self.out) - len(data)

    def finished(self) -> bytes:
        elf = self.elf
        self.dynamic += [(1, self.string(name)) for name in elf.needed]
        needs = self._needs()
        symbols, indices = self._symbols(needs)
        self._tables(symbols, indices)
        if needs:
            self.dynamic += [(0x6FFFFFFE, self.place(self._verneed(needs)))]
        if elf.versions:
            self.dynamic += [(0x6FFFFFFC, self.place(self._verdef()))]
        self.code = self.place(elf.fatbin or b"")
        table = self.place(bytes(self.strings))
        self.dynamic += [(5, table), (10, len(self.strings)), (0, 0)]
        dynamic = b"".join(struct.pack("<qQ", *entry) for entry in self.dynamic)
        at = self.place(dynamic)
        headers, count = (0, 0) if elf.stripped else self._sections()
        self.out[:64] = struct.pack(
            "<16sHHIQQQIHHHHHH",
            *(b"\x7fELF\x02\x01\x01", elf.kind, elf.machine, 1, 0, 64, headers, 0, 64, 56, 2, 64, count, count and 1),
        )
        size = len(self.out)
        self.out[64:120] = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 4096)
        self.out[120:176] = struct.pack("<IIQQQQQQ", 2, 6, at, at, at, len(dynamic), len(dynamic), 8)
        return bytes(self.out)

    def _needs(self) -> dict[tuple[str, str], int]:
        wanted = [one[1:] for one in self.elf.undefined if isinstance(one, tuple)]
        return {need: n + 2 for n, need in enumerate(dict.fromkeys([*wanted, *self.elf.weak_needs]))}

    def _symbols(self, needs: dict[tuple[str, str], int]) -> tuple[bytes, bytes]:
        elf = self.elf
        rows = [(0, 0, 0, 0, 0)]
        for one in elf.undefined:
            name, index = (one[0], needs[one[1:]]) if isinstance(one, tuple) else (one, 1)
            rows.append((self.string(name), GLOBAL << 4, DEFAULT, 0, index))
        rows += [(self.string(name), WEAK << 4, DEFAULT, 0, 1) for name in elf.weak]
        rows += [(self.string(name), GLOBAL << 4, HIDDEN, 9, 1) for name in elf.hidden]
        rows += [(self.string(name), GLOBAL << 4, DEFAULT, 9, 1) for name in elf.defined]
        symbols = b"".join(struct.pack("<IBBHQQ", *row[:4], 0, 0) for row in rows)
        return symbols, b"".join(struct.pack("<H", row[4]) for row in rows)

    def _tables(self, symbols: bytes, indices: bytes) -> None:
        count = len(symbols) // 24
        self.symbols = (self.place(symbols), len(symbols))
        self.dynamic += [(6, self.symbols[0]), (0x6FFFFFF0, self.place(indices))]
        if not self.elf.gnu:
            self.dynamic += [(4, self.place(struct.pack("<II", 1, count) + bytes(4 + 4 * count)))]
            return
        given = len(self.elf.defined)
        first = count - given if given else 1  # as GNU ld: an empty table counts nothing
        hashes = [0] * (given - 1) + [1] if given else []
        bucket = first if given else 0
        table = struct.pack("<IIIIQI", 1, first, 1, 0, 0, bucket) + struct.pack(f"<{given}I", *hashes)
        self.dynamic += [(0x6FFFFEF5, self.place(table))]

    def _verneed(self, needs: dict[tuple[str, str], int]) -> bytes:
        out, libraries = b"", list(dict.fromkeys(library for library, _ in needs))
        for n, library in enumerate(libraries):
            rows = [(version, index) for (at, version), index in needs.items() if at == library]
            following = 16 + 16 * len(rows) if n + 1 < len(libraries) else 0
            out += struct.pack("<HHIII", 1, len(rows), self.string(library), 16, following)
            for m, (version, index) in enumerate(rows):
                flags = 2 if (library, version) in self.elf.weak_needs else 0
                out += struct.pack("<IHHII", 0, flags, index, self.string(version), 16 if m + 1 < len(rows) else 0)
        return out

    def _verdef(self) -> bytes:
        out = b""
        for n, version in enumerate(self.elf.versions):
            last = n + 1 == len(self.elf.versions)
            out += struct.pack("<HHHHIII", 1, 0, n + 1, 1, 0, 20, 0 if last else 28)
            out += struct.pack("<II", self.string(version), 0)
        return out

    def _sections(self) -> tuple[int, int]:
        names = b"\0.shstrtab\0.dynsym\0.nv_fatbin\0"
        text = self.place(names)
        rows = [(0,) * 10, (1, 3, 0, 0, text, len(names), 0, 0, 1, 0)]
        rows.append((11, 11, 2, self.symbols[0], *self.symbols, 0, 1, 8, 24))
        if self.elf.fatbin is not None:
            rows.append((19, 1, 2, self.code, self.code, len(self.elf.fatbin), 0, 0, 8, 0))
        return self.place(b"".join(struct.pack("<IIQQQQIIQQ", *row) for row in rows)), len(rows)


def entry(arch: int, kind: int = MACHINE_CODE, flags: int = 0x11, code: bytes = b"code" * 8, header: int = 64) -> bytes:
    """One entry of a fat binary."""
    head = struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, header, len(code), 0, 0, 7, 1, arch, 0, 0, flags, 0, 0)
    return head + bytes(header - 64) + code


def container(*entries: bytes) -> bytes:
    """A fat binary."""
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def gpu(*archs: int) -> bytes:
    """A fat binary with machine code for these architectures."""
    return container(*(entry(arch) for arch in archs))
