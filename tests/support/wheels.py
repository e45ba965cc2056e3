"""Synthetic wheels, right and wrong in every way that the tests need, written byte by byte."""

from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
import io
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

STORED, DEFLATED = 0, 8
REGULAR, EXECUTABLE, SYMLINK = 0o100644, 0o100755, 0o120777
UTF8 = 0x800  # general purpose bit 11 (APPNOTE 4.4.4)
ENCRYPTED = 0x1
_DATE = (1980 - 1980) << 9 | 1 << 5 | 1  # 1980-01-01, the first day of zip


@dataclass(frozen=True, kw_only=True)
class Item:
    """One member of a zip archive.

    Attributes:
        method: as the headers declare it; what is neither stored nor deflated is written as it is.
        packed: the compressed bytes where they are not to be made from `data`.
        declared: uncompressed size in the headers, where it is a lie.
        local_name: name in the local header, where it differs from the directory's.
        offset: place of the local header in the directory, where it is a lie.
    """

    name: str
    data: bytes
    method: int = DEFLATED
    mode: int = REGULAR
    flags: int = UTF8
    packed: bytes | None = None
    declared: int | None = None
    local_name: str | None = None
    offset: int | None = None
    needs: int = 20  # version needed to extract, times ten
    ghost: bool = False  # in the directory only


def deflate(data: bytes) -> bytes:
    """Raw deflate, as zip members hold it."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def pack(items: list[Item]) -> bytes:
    """A zip archive of these items, in their order (APPNOTE 4.3)."""
    out, directory = io.BytesIO(), io.BytesIO()
    for item in items:
        packed = item.packed
        if packed is None:
            packed = deflate(item.data) if item.method == DEFLATED else item.data
        size = len(item.data) if item.declared is None else item.declared
        common = struct.pack(
            "<HHHHHLLL", item.needs, item.flags, item.method, 0, _DATE, zlib.crc32(item.data), len(packed), size
        )
        name = item.name.encode("utf-8", "surrogateescape")
        local = name if item.local_name is None else item.local_name.encode()
        offset = out.tell() if item.offset is None else item.offset
        if not item.ghost:
            out.write(b"PK\x03\x04" + common + struct.pack("<HH", len(local), 0) + local + packed)
        tail = struct.pack("<HHHHHLL", len(name), 0, 0, 0, 0, item.mode << 16, offset)
        directory.write(b"PK\x01\x02" + struct.pack("<H", 3 << 8 | 20) + common + tail + name)
    start, central = out.tell(), directory.getvalue()
    out.write(central + b"PK\x05\x06" + struct.pack("<HHHHLLH", 0, 0, len(items), len(items), len(central), start, 0))
    return out.getvalue()


def record_hash(data: bytes, algorithm: str = "sha256") -> str:
    """A hash as RECORD writes it."""
    value = base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b"=").decode()
    return f"{algorithm}={value}"


Rows = list[list[str]]


@dataclass(kw_only=True)
class Wheel:
    """A wheel to be written; every field has the right value until a test says otherwise.

    Attributes:
        files: path in the archive → bytes, outside `.dist-info`.
        modes: path → mode, where it is not 0644.
        entry_points: text of entry_points.txt, or None.
        info: files of `.dist-info` besides METADATA, WHEEL and RECORD.
        record: changes the rows of RECORD before they are written; None as its result leaves RECORD out.
        edit: changes the items of the archive, RECORD included, before they are written.
        finish: changes the bytes of the archive.
    """

    name: str = "demo"
    version: str = "1.0"
    tag: str = "py3-none-any"
    files: dict[str, bytes] = field(default_factory=lambda: {"demo/__init__.py": b"value = 1\n"})
    modes: dict[str, int] = field(default_factory=dict)
    entry_points: str | None = None
    info: dict[str, bytes] = field(default_factory=dict)
    purelib: bool = True
    wheel_version: str = "1.0"
    algorithm: str = "sha256"
    dist_info: str = ""
    record: Callable[[Rows], Rows | None] = lambda rows: rows
    edit: Callable[[list[Item]], list[Item]] = lambda items: items
    finish: Callable[[bytes], bytes] = lambda data: data

    @property
    def filename(self) -> str:
        """Name of the file."""
        return f"{self.name}-{self.version}-{self.tag}.whl"

    @property
    def info_folder(self) -> str:
        """The `.dist-info` folder."""
        return self.dist_info or f"{self.name}-{self.version}.dist-info"

    @property
    def data_folder(self) -> str:
        """The `.data` folder."""
        return f"{self.name}-{self.version}.data"

    def to_bytes(self) -> bytes:
        """The archive."""
        wheel = (
            f"Wheel-Version: {self.wheel_version}\nGenerator: tests\n"
            f"Root-Is-Purelib: {str(self.purelib).lower()}\nTag: {self.tag}\n"
        )
        info = {
            "METADATA": f"Metadata-Version: 2.1\nName: {self.name}\nVersion: {self.version}\n".encode(),
            "WHEEL": wheel.encode(),
            **self.info,
        }
        if self.entry_points is not None:
            info["entry_points.txt"] = self.entry_points.encode()
        contents = self.files | {f"{self.info_folder}/{name}": data for name, data in info.items()}
        rows: Rows | None = [[p, record_hash(d, self.algorithm), str(len(d))] for p, d in contents.items()]
        rows = self.record([*(rows or []), [f"{self.info_folder}/RECORD", "", ""]])
        items = [Item(name=p, data=d, mode=self.modes.get(p, REGULAR)) for p, d in contents.items()]
        if rows is not None:
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(rows)
            items.append(Item(name=f"{self.info_folder}/RECORD", data=text.getvalue().encode()))
        return self.finish(pack(self.edit(items)))

    def write(self, folder: Path) -> Path:
        """The wheel as a file in `folder`, under its own name."""
        path = Path(folder) / self.filename
        path.write_bytes(self.to_bytes())
        return path


def change(name: str, **fields: object) -> Callable[[list[Item]], list[Item]]:
    """An edit that changes fields of the items whose name ends with `name`."""
    return lambda items: [dataclasses.replace(i, **fields) if i.name.endswith(name) else i for i in items]


def row(name: str, at: int, value: str) -> Callable[[Rows], Rows]:
    """A change of RECORD: column `at` (0 path, 1 hash, 2 size) of the row for a path that ends with `name`."""
    return lambda rows: [[*r[:at], value, *r[at + 1 :]] if r[0].endswith(name) else r for r in rows]


@dataclass(frozen=True, kw_only=True)
class Hostile:
    """A wheel that must be refused, and a pattern that the message must match."""

    wheel: Wheel
    says: str


def _with(path: str, data: bytes = b"x") -> dict[str, bytes]:
    return {"demo/__init__.py": b"value = 1\n", path: data}


_ZEROS = bytes(200_000)  # deflates to about 200 bytes
_NOISE = hashlib.shake_128(b"noise").digest(5_000)  # does not deflate


def _ghosts(item: Item) -> list[Item]:
    """Twenty more directory entries for the bytes of the first item (the "better zip bomb" of Fifield, 2019)."""
    return [dataclasses.replace(item, name=f"{item.name}{n}", offset=0, ghost=True) for n in range(20)]


HOSTILE: dict[str, Hostile] = {
    "parent path": Hostile(wheel=Wheel(files=_with("../x")), says=r"unsafe path '\.\./x'"),
    "parent path inside": Hostile(wheel=Wheel(files=_with("demo/../../x")), says=r"unsafe path 'demo/\.\./\.\./x'"),
    "dot path": Hostile(wheel=Wheel(files=_with("./x")), says=r"unsafe path '\./x'"),
    "absolute path": Hostile(wheel=Wheel(files=_with("/etc/x")), says="unsafe path '/etc/x'"),
    "double slash": Hostile(wheel=Wheel(files=_with("demo//x")), says="unsafe path 'demo//x'"),
    "backslash": Hostile(wheel=Wheel(files=_with("demo\\..\\x")), says="unsafe path"),
    "drive letter": Hostile(wheel=Wheel(files=_with("C:/x")), says="unsafe path 'C:/x'"),
    "NUL in a name": Hostile(wheel=Wheel(files=_with("demo/x\0.py")), says=r"control characters: 'demo/x\\x00\.py'"),
    "newline in a name": Hostile(wheel=Wheel(files=_with("demo/x\ny")), says="control characters"),
    "hostile folder": Hostile(
        wheel=Wheel(edit=lambda items: [*items, Item(name="../up/", data=b"", method=STORED)]),
        says="unsafe path '../up/'",
    ),
    "symlink": Hostile(
        wheel=Wheel(files=_with("demo/link", b"../../etc/passwd"), modes={"demo/link": SYMLINK}),
        says="'demo/link', which is a link or a device",
    ),
    "device": Hostile(wheel=Wheel(files=_with("demo/null"), modes={"demo/null": 0o020644}), says="a link or a device"),
    "duplicate name": Hostile(
        wheel=Wheel(edit=lambda items: [*items, Item(name="demo/__init__.py", data=b"evil = 1\n")]),
        says=r"'demo/__init__\.py' twice",
    ),
    "encrypted": Hostile(
        wheel=Wheel(edit=change("__init__.py", flags=UTF8 | ENCRYPTED)), says=r"'demo/__init__\.py' encrypted"
    ),
    "missing hash": Hostile(
        wheel=Wheel(record=row("__init__.py", 1, "")), says=r"hash .*demo/__init__\.py is not included"
    ),
    "wrong hash": Hostile(
        wheel=Wheel(record=row("__init__.py", 1, record_hash(b"other"))), says=r"demo/__init__\.py.* RECORD says"
    ),
    "short hash": Hostile(
        wheel=Wheel(record=row("__init__.py", 1, "sha256=AAAA")), says=r"demo/__init__\.py.* RECORD says 000000"
    ),
    "empty hash": Hostile(
        wheel=Wheel(record=row("__init__.py", 1, "sha256=")), says=r"demo/__init__\.py.* RECORD says"
    ),
    "hash without algorithm": Hostile(
        wheel=Wheel(record=row("__init__.py", 1, "abcdef")), says="does not follow the required format"
    ),
    "weak hash": Hostile(wheel=Wheel(algorithm="md5"), says="RECORD uses md5"),
    "unknown hash": Hostile(
        wheel=Wheel(record=row("__init__.py", 1, "rot13=abc")), says="invalid hash algorithm 'rot13'"
    ),
    "wrong sha512": Hostile(
        wheel=Wheel(record=row("__init__.py", 1, record_hash(b"other", "sha512"))),
        says=r"demo/__init__\.py does not match its sha512 in RECORD",
    ),
    "size that is no number": Hostile(
        wheel=Wheel(record=row("__init__.py", 2, "many")), says="size.* cannot be non-integer"
    ),
    "missing RECORD": Hostile(wheel=Wheel(record=lambda _: None), says="RECORD"),
    "file that RECORD lacks": Hostile(
        wheel=Wheel(record=lambda rows: rows[1:]), says=r"demo/__init__\.py is not mentioned in RECORD"
    ),
    "RECORD with four columns": Hostile(
        wheel=Wheel(record=lambda rows: [[*rows[0], "more"], *rows[1:]]), says="expected 3 elements, got 4"
    ),
    "RECORD that is not UTF-8": Hostile(wheel=Wheel(edit=change("RECORD", data=b"\xff,,\n")), says="RECORD"),
    "RECORD that hashes itself": Hostile(
        wheel=Wheel(record=row("RECORD", 1, record_hash(b""))), says="RECORD file incorrectly contains hash"
    ),
    "signature in RECORD": Hostile(
        wheel=Wheel(info={"RECORD.jws": b"{}"}), says=r"RECORD\.jws is incorrectly contained in RECORD"
    ),
    "declared smaller": Hostile(
        wheel=Wheel(files={"demo/big.bin": _ZEROS}, edit=change("big.bin", declared=10)),
        says=r"demo/big\.bin has 10 bytes, RECORD gives its size as 200000",
    ),
    "declared larger": Hostile(
        wheel=Wheel(edit=change("__init__.py", declared=11)),
        says=r"demo/__init__\.py has 11 bytes, RECORD gives its size as 10",
    ),
    "stored with another size": Hostile(
        wheel=Wheel(edit=change("__init__.py", method=STORED, declared=3)),
        says="has 3 bytes, RECORD gives its size as 10",
    ),
    "bomb by ratio": Hostile(
        wheel=Wheel(files={"demo/big.bin": _ZEROS}, edit=change("big.bin", declared=4_000_000_000)),
        says=r"declares 4000000000 bytes for demo/big\.bin: that is a zip bomb",
    ),
    "overlapping members": Hostile(
        wheel=Wheel(files={"demo/a.bin": _NOISE}, edit=lambda items: [*items, *_ghosts(items[0])]),
        says=r"for demo/a\.bin\d+: that is a zip bomb",
    ),
    "damaged data": Hostile(
        wheel=Wheel(edit=change("__init__.py", packed=b"\xff\xff\xff\xff")), says=r"demo/__init__\.py in .* damaged"
    ),
    "data cut short": Hostile(
        wheel=Wheel(
            files={"demo/x": bytes(range(256)) * 9}, edit=change("demo/x", packed=deflate(bytes(range(256)) * 9)[:40])
        ),
        says=r"demo/x in .* ends in the middle of its compressed data",
    ),
    "unknown method": Hostile(
        wheel=Wheel(edit=change("__init__.py", method=99)), says=r"demo/__init__\.py' in zip method 99"
    ),
    "bzip2": Hostile(wheel=Wheel(edit=change("__init__.py", method=12)), says="in zip method 12"),
    "no local header": Hostile(
        wheel=Wheel(edit=change("__init__.py", offset=1)),
        says=r"no header where its directory places demo/__init__\.py",
    ),
    "local header past the end": Hostile(
        wheel=Wheel(edit=change("__init__.py", offset=1_000_000)), says=r"places demo/__init__\.py"
    ),
    "local header of another name": Hostile(
        wheel=Wheel(edit=change("WHEEL", local_name="demo-1.0.dist-info/OTHER")), says="in its directory and"
    ),
    "two dist-info folders": Hostile(
        wheel=Wheel(files=_with("other-2.0.dist-info/METADATA")), says=r"exactly one \.dist-info"
    ),
    "no dist-info folder": Hostile(
        wheel=Wheel(edit=lambda items: [i for i in items if ".dist-info" not in i.name]), says="RECORD"
    ),
    "dist-info of another name": Hostile(
        wheel=Wheel(dist_info="other-1.0.dist-info"), says="doesn't match wheel filename"
    ),
    "wheel version 2": Hostile(wheel=Wheel(wheel_version="2.0"), says=r"Wheel-Version 2\.0"),
    "no wheel version": Hostile(wheel=Wheel(edit=change("WHEEL", data=b"Generator: x\n")), says="Wheel-Version"),
    "no WHEEL": Hostile(
        wheel=Wheel(edit=lambda items: [i for i in items if not i.name.endswith("/WHEEL")]), says="WHEEL"
    ),
    "unknown scheme": Hostile(wheel=Wheel(files=_with("demo-1.0.data/elsewhere/x")), says=r"valid \.data subdirectory"),
    "entry point that climbs": Hostile(
        wheel=Wheel(entry_points="[console_scripts]\n../../x = demo:main\n"), says=r"'\.\./\.\./x' leaves its folder"
    ),
    "absolute entry point": Hostile(
        wheel=Wheel(entry_points="[console_scripts]\n/bin/x = demo:main\n"), says="'/bin/x' leaves its folder"
    ),
    "wrong tag": Hostile(
        wheel=Wheel(tag="cp27-cp27mu-win32"), says=r"built for cp27-cp27mu-win32; the stack's interpreter \(cp310\)"
    ),
    "wrong architecture": Hostile(
        wheel=Wheel(tag="cp310-cp310-manylinux2014_aarch64"), says="built for cp310-cp310-manylinux2014_aarch64"
    ),
    "newer glibc": Hostile(wheel=Wheel(tag="cp310-cp310-manylinux_2_39_x86_64"), says="built for"),
    "no tag": Hostile(wheel=Wheel(tag="py3"), says="no valid wheel name"),
    "not a zip": Hostile(wheel=Wheel(finish=lambda _: b"<!DOCTYPE html><title>403</title>"), says="not a zip archive"),
    "empty file": Hostile(wheel=Wheel(finish=lambda _: b""), says="not a zip archive"),
    "first half": Hostile(
        wheel=Wheel(finish=lambda data: data[: len(data) // 2]), says="not a zip archive, or is cut off"
    ),
}
