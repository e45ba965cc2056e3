"""The shared objects inside wheels, opened one by one and only when asked for: torch's alone unpack to 1.5 GB."""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import re
import tempfile
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verlstack import canonical, zips
from verlstack.cache import atomic, storage_errors
from verlstack.extension import elf_symbols
from verlstack.extension.elf_file import BadElfError
from verlstack.extension.elf_symbols import Library

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from verlstack.content import Reader
    from verlstack.extension.elf_file import Data

_SHARED = re.compile(r"(?:.*/)?(?P<name>[^/]+\.so(?:\.\d+)*)")
_FORMAT = 1  # of the notes
_LARGEST = 1 << 32  # bytes of one object; torch 2.3.1's largest has 0.9 GB


def shared_name(path: str) -> str | None:
    """File name of a shared object, None for any other path."""
    match = _SHARED.fullmatch(path)
    return match["name"] if match else None


@contextlib.contextmanager
def mapped(pieces: Iterable[bytes], size: int, scratch: Path) -> Iterator[Data]:
    """Bytes as a file that has no name, so that their size costs disk and no memory.

    Args:
        pieces: the bytes.
        size: how many there are.
        scratch: folder with room for them.

    Raises:
        BadElfError: they are too many.
        StorageError: there is no room.
    """
    if size > _LARGEST:
        raise BadElfError(f"it has {size} bytes")
    with contextlib.ExitStack() as stack:
        with storage_errors(scratch):
            scratch.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(tempfile.TemporaryFile(dir=scratch))
        for piece in pieces:  # read from elsewhere: that may fail for other reasons than our disk
            with storage_errors(scratch):
                file.write(piece)
        with storage_errors(scratch):
            file.flush()
        if file.tell() == 0:  # nothing can be mapped
            yield b""
            return
        yield stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a shared object lies: in a wheel with this hash, under this name."""

    name: str
    sha256: str
    wheel: Path
    member: str
    size: int


class Libraries:
    """The shared objects of several wheels by file name, which is how the loader knows them.

    Opening one means unpacking it, up to 0.9 GB; so what it says is kept in `notes`, under the wheel's hash.
    """

    def __init__(self, wheels: Mapping[str, Path], reader: Reader, notes: Path) -> None:
        """Read the wheels' directories, nothing else.

        Args:
            wheels: SHA-256 → a wheel that has it.
            reader: reads their members.
            notes: folder for what was learned, on a disk with room for the largest library.

        Raises:
            WheelError: one is no wheel.
        """
        self._reader, self._notes = reader, notes
        self._read: dict[str, Library] = {}
        self._places: dict[str, _Place] = {}
        for sha256, wheel in wheels.items():
            for place in _places(sha256, wheel):
                self._places.setdefault(place.name, place)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def size(self, name: str) -> int:
        """Bytes of one, which is what opening it costs."""
        return self._places[name].size

    def of_torch(self, name: str) -> bool:
        """Whether it came in torch's own wheel."""
        return self._places[name].wheel.name.startswith("torch-")

    def open(self, name: str) -> Library:
        """One of them.

        Raises:
            WheelError: it is damaged.
            StorageError: there is no room to unpack it.
        """
        if name not in self._read:
            place = self._places[name]
            note = self._notes / f"{canonical.digest([_FORMAT, place.sha256, place.member])}.json"
            self._read[name] = _recall(note) or _remember(note, self._unpacked(place))
        return self._read[name]

    def _unpacked(self, place: _Place) -> Library:
        with zipfile.ZipFile(place.wheel) as archive:
            member = next(m for m in zips.members(place.wheel, archive) if m.name == place.member)
        try:
            with mapped(self._reader.chunks(member), member.size, self._notes) as data:
                return elf_symbols.read(data)
        except BadElfError as e:
            raise zips.error(place.wheel, f"holds {place.member}, which is no shared object: {e}") from e


def _recall(note: Path) -> Library | None:
    """What was kept, if it is there and whole."""
    try:
        digest, _, text = note.read_bytes().partition(b"\n")
    except OSError:
        return None
    if hashlib.sha256(text).hexdigest().encode() != digest:
        return None
    kept = json.loads(text)
    return Library(needed=tuple(kept["needed"]), defined=frozenset(kept["defined"]))


def _remember(note: Path, library: Library) -> Library:
    text = canonical.dumps({"needed": library.needed, "defined": sorted(library.defined)})
    with atomic(note) as out:
        out.write(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
    return library


def _places(sha256: str, wheel: Path) -> Iterator[_Place]:
    """Where the shared objects lie: from the directory as it stands, members are checked before one is unpacked."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for info in archive.infolist():
                if name := shared_name(info.filename):
                    yield _Place(name=name, sha256=sha256, wheel=wheel, member=info.filename, size=info.file_size)
    except (zipfile.BadZipFile, ValueError) as e:
        raise zips.error(wheel, f"is not a zip archive, or is cut off: {e}") from e
