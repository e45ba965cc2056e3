"""What a wheel puts into the image: planned from its directory and RECORD, without unpacking it."""

from __future__ import annotations

import base64
import configparser
import csv
import dataclasses
import fnmatch
import hashlib
import io
import itertools
import warnings
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast

import installer
from installer.destinations import WheelDestination
from installer.exceptions import InstallerError
from installer.records import Hash, RecordEntry, parse_record_file
from installer.scripts import Script
from installer.sources import WheelFile
from installer.utils import Scheme, fix_shebang
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from verlstack import tar
from verlstack.content import Inline, Member, Reader, Source
from verlstack.errors import WheelError
from verlstack.zips import error, has_control_characters, members, unfit

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from installer.scripts import ScriptSection
    from installer.sources import WheelContentElement
    from packaging.tags import Tag

_SIGNATURES = ("RECORD.jws", "RECORD.p7s")
# What zipfile, installer and configparser raise for archives and metadata that are not as they should be.
_INVALID = (
    InstallerError,
    ValueError,
    KeyError,
    NotImplementedError,
    AssertionError,
    EOFError,
    zlib.error,
    configparser.Error,
)


@dataclass(frozen=True, kw_only=True)
class Venv:
    """The places of the image's virtual environment, without leading slash.

    Attributes:
        root: `opt/verl`.
        python: X.Y of the interpreter.
    """

    root: str
    python: str

    @property
    def site_packages(self) -> str:
        """Where packages go."""
        return f"{self.root}/lib/python{self.python}/site-packages"

    @property
    def interpreter(self) -> str:
        """Absolute path for shebang lines."""
        return f"/{self.root}/bin/python"

    def place(self, scheme: Scheme, project: str) -> str:
        """Folder of an installation scheme (PyPA "binary distribution format", spread phase)."""
        return {
            "purelib": self.site_packages,
            "platlib": self.site_packages,
            "scripts": f"{self.root}/bin",
            "data": self.root,
            "headers": f"{self.root}/include/site/python{self.python}/{project}",
        }[scheme]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one wheel installs, but for its RECORD, which waits for the bytecode.

    Attributes:
        wheel: file name of the wheel.
        entries: files to place.
        record: path of the RECORD to write, from the image's root.
        hashes: SHA-256 of each entry, hexadecimal, in the order of `entries`.
    """

    wheel: str
    entries: tuple[tar.Entry, ...]
    hashes: tuple[str, ...]
    record: str


def plan(path: Path, venv: Venv, tags: frozenset[Tag]) -> Plan:
    """Plan the installation of a wheel.

    Args:
        path: the wheel; its name must be the one its publisher gave.
        venv: where things go.
        tags: what the stack's interpreter accepts.

    Raises:
        WheelError: the wheel is damaged, hostile, inconsistent with its RECORD, or for another interpreter.
    """
    _check_tags(path, tags)
    try:
        with zipfile.ZipFile(path) as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # installer's note that it skips foreign __pycache__
            source = _Source(archive, tuple(members(path, archive)))
            source.validate_record(validate_contents=False)
            source.check_folders()
            planner = _Planner(source, venv)
            installer.install(source, planner, {})
            return planner.finished()
    except zipfile.BadZipFile as e:
        raise error(path, f"is not a zip archive, or is cut off: {e}") from e
    except _INVALID as e:
        issues = getattr(e, "issues", None)
        text = "; ".join(issues[:3]) if issues else str(e) or type(e).__name__
        text = text.replace(str(path), path.name)
        raise error(path, f"is not a valid wheel: {text}") from e


def without(planned: Plan, venv: Venv, globs: Sequence[str]) -> Plan:
    """The plan without the files that match, named as in site-packages; RECORD will not have them either.

    Raises:
        WheelError: the wheel has no such file.
    """
    gone: set[str] = set()
    for glob in globs:
        found = fnmatch.filter((entry.path for entry in planned.entries), f"{venv.site_packages}/{glob}")
        if not found:
            what = f"{planned.wheel} has no file {glob} that could be left out"
            todo = "mend leave_out in stacks.toml; a stack that inherits it may drop it, or have its own instead"
            raise WheelError(what, where=planned.wheel, todo=todo)
        gone.update(found)
    rows = zip(planned.entries, planned.hashes, strict=True)
    kept = [(entry, digest) for entry, digest in rows if entry.path not in gone]
    return dataclasses.replace(
        planned, entries=tuple(entry for entry, _ in kept), hashes=tuple(digest for _, digest in kept)
    )


def record_entry(plan: Plan, venv: Venv, bytecode: Iterable[tar.Entry]) -> tar.Entry:
    """The RECORD of a planned wheel: sorted, complete with its bytecode, every line true.

    Args:
        plan: the planned wheel.
        venv: where it goes.
        bytecode: the `.pyc` entries made from this wheel's sources.
    """
    lines = [(_relative(plan.record, venv), "", "")]
    for entry, digest in zip(plan.entries, plan.hashes, strict=True):
        lines.append((_relative(entry.path, venv), _record_hash(bytes.fromhex(digest)), str(entry.size)))
    for entry in bytecode:
        data = cast("Inline", entry.content).data
        lines.append((_relative(entry.path, venv), _record_hash(hashlib.sha256(data).digest()), str(len(data))))
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(sorted(lines))
    return tar.file(plan.record, Inline(data=out.getvalue().encode()))


def _relative(path: str, venv: Venv) -> str:
    """Path as RECORD writes it: relative to site-packages."""
    inside = venv.site_packages + "/"
    if path.startswith(inside):
        return path.removeprefix(inside)
    return "../../../" + path.removeprefix(venv.root + "/")  # lib, pythonX.Y, site-packages: three up


def _record_hash(digest: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _check_tags(path: Path, tags: frozenset[Tag]) -> None:
    try:
        *_, named = parse_wheel_filename(path.name)
    except InvalidWheelFilename as e:
        raise error(path, f"has no valid wheel name: {e}") from e
    if not named & tags:
        has = ", ".join(sorted(str(tag) for tag in named)[:3])
        mine = [t.interpreter for t in tags if t.interpreter.startswith("cp3")]
        newest = max(mine, key=lambda name: int(name[3:]), default="?")
        raise error(path, f"is built for {has}; the stack's interpreter ({newest}) cannot load it")


class _Stream(io.BytesIO):
    """Stands in for a member's bytes in installer's interface; the planner takes the member, nobody reads."""

    def __init__(self, member: Member) -> None:
        super().__init__()
        self.member = member


class _Source(WheelFile):
    """installer's view of the wheel, which hands out places instead of opened streams."""

    def __init__(self, archive: zipfile.ZipFile, members: tuple[Member, ...]) -> None:
        super().__init__(archive)
        self._members = members
        self._modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}

    def check_folders(self) -> None:
        """Refuse what installer takes for ordinary files, or never ends on.

        Raises:
            ValueError: saying which folder is wrong.
        """
        name, _, version = self.dist_info_dir.removesuffix(".dist-info").rpartition("-")
        if (canonicalize_name(name), Version(version)) != (canonicalize_name(self.distribution), Version(self.version)):
            raise ValueError(f"{self.dist_info_dir} is of another release than the file name says")
        for member in self._members:
            top, _, rest = member.name.partition("/")
            if top.endswith(".data") and (top != self.data_dir or not rest):
                raise ValueError(f"{top} is not the folder {self.data_dir}")

    def get_contents(self) -> Iterator[WheelContentElement]:
        records = self._records()
        if absent := sorted(set(records) - {member.name for member in self._members}):
            raise ValueError(f"RECORD lists {absent[0]}, which is not there")
        for member in self._members:
            if member.name.rpartition("/")[2] in _SIGNATURES and member.name.startswith(self.dist_info_dir):
                continue  # a signature over a RECORD that we rewrite proves nothing
            record = records.get(member.name, (member.name, "", ""))
            if record[2] and record[2] != str(member.size):
                raise ValueError(f"{member.name} has {member.size} bytes, RECORD gives its size as {record[2]}")
            stream = _Stream(_with_hash(member, record[1]))
            yield record, cast("BinaryIO", stream), bool(self._modes[member.name] & 0o111)

    def _records(self) -> dict[str, tuple[str, str, str]]:
        """RECORD's rows by path."""
        rows: dict[str, tuple[str, str, str]] = {}
        for row in parse_record_file(self.read_dist_info("RECORD").splitlines()):
            if rows.setdefault(row[0], row) != row:
                raise ValueError(f"RECORD has two different lines for {row[0]}")
        return rows


def _with_hash(member: Member, recorded: str) -> Member:
    """The member with RECORD's SHA-256; a stronger algorithm is checked now and replaced by SHA-256."""
    if not recorded:
        return member
    algorithm, _, value = recorded.partition("=")
    wanted = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
    if algorithm == "sha256":
        return dataclasses.replace(member, sha256=wanted.hex())
    if algorithm not in {"sha384", "sha512"}:
        raise ValueError(f"RECORD uses {algorithm} for {member.name}; the specification asks for sha256 or better")
    with Reader() as reader:
        data = reader.read(member)
    if hashlib.new(algorithm, data).digest() != wanted:
        raise ValueError(f"{member.name} does not match its {algorithm} in RECORD")
    return dataclasses.replace(member, sha256=hashlib.sha256(data).hexdigest())


class _Planner(WheelDestination):
    """installer's destination, which notes what would be written."""

    def __init__(self, source: WheelFile, venv: Venv) -> None:
        self._source = source
        self._venv = venv
        self._project = canonicalize_name(source.distribution)
        self._entries: list[tuple[tar.Entry, str]] = []
        self._record = ""

    def finished(self) -> Plan:
        """The plan, sorted by path."""
        rows = sorted(self._entries, key=lambda row: row[0].path)
        paths = [entry.path for entry, _ in rows]
        if twice := [one for one, next_one in itertools.pairwise(paths) if one == next_one]:
            raise ValueError(f"it puts two files at /{twice[0]}")
        return Plan(
            wheel=str(self._source._zipfile.filename).rpartition("/")[2],  # noqa: SLF001 - installer gives no other way
            entries=tuple(entry for entry, _ in rows),
            hashes=tuple(digest for _, digest in rows),
            record=self._record,
        )

    def write_script(self, name: str, module: str, attr: str, section: ScriptSection) -> RecordEntry:
        script, data = Script(name, module, attr, section).generate(self._venv.interpreter, "posix")
        return self._add(Scheme("scripts"), script, Inline(data=data), executable=True)

    def write_file(
        self,
        scheme: Scheme,
        path: str | os.PathLike[str],
        stream: BinaryIO,
        is_executable: bool,  # noqa: FBT001
    ) -> RecordEntry:
        member = cast("_Stream", stream).member
        content: Source = member
        if scheme == "scripts":
            with Reader() as reader, fix_shebang(io.BytesIO(reader.read(member)), self._venv.interpreter) as fixed:
                content = Inline(data=fixed.read())
        return self._add(scheme, str(path), content, executable=is_executable or scheme == "scripts")

    def finalize_installation(
        self, scheme: Scheme, record_file_path: str, records: Iterable[tuple[Scheme, RecordEntry]]
    ) -> None:
        del records  # ours are kept in full; the file itself is written by `record_entry`
        self._record = f"{self._venv.place(scheme, self._project)}/{record_file_path}"

    def _add(self, scheme: Scheme, path: str, content: Source, *, executable: bool) -> RecordEntry:
        if any(part in {"", ".", ".."} for part in path.split("/")) or "\\" in path or has_control_characters(path):
            raise ValueError(f"{path!r} leaves its folder, or is no name for a file")
        if reason := unfit(path):
            raise ValueError(f"{path[:80]!r} {reason}")
        digest = hashlib.sha256(content.data).hexdigest() if isinstance(content, Inline) else content.sha256
        if digest is None:
            raise ValueError(f"RECORD has no hash for {path}")
        entry = tar.file(f"{self._venv.place(scheme, self._project)}/{path}", content, executable=executable)
        self._entries.append((entry, digest))
        return RecordEntry(path, Hash("sha256", digest), entry.size)
