"""The gate that every compiled wheel passes before it is used: does it fit this Python, torch, CUDA, base and GPUs."""

from __future__ import annotations

import collections
import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from verlstack import wheel as wheels
from verlstack import zips
from verlstack.content import Reader
from verlstack.errors import PinsError, WheelError
from verlstack.extension import elf_file, elf_symbols, fatbin, rules
from verlstack.extension.finding import RULES, Finding
from verlstack.extension.libraries import Libraries, mapped, shared_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from packaging.tags import Tag

    from verlstack import tar
    from verlstack.extension.elf_symbols import Object
    from verlstack.extension.system import Base

_SHOWN = 5  # findings in an error's text
_GIVERS = ("torch-", "nvidia_")  # the wheels whose libraries extensions are linked to
_MOST_UNPACKED = 1 << 34  # bytes of a whole wheel; flash-attn's has under a quarter of a billion
_LOCAL_CUDA = re.compile(r"cu(\d\d)")  # the major: a minor may follow
_LOCAL_TORCH = re.compile(r"torch(\d+\.\d+)")
_LOCAL_ABI = re.compile(r"cxx11abi(true|false)")


@dataclass(frozen=True, kw_only=True)
class Against:
    """The stack that a compiled wheel must fit.

    Attributes:
        python: X.Y of the interpreter.
        tags: what that interpreter accepts (`plan.tags`).
        wheels: SHA-256 → the stack's verified wheels; torch's and NVIDIA's are looked into, others may be among them.
        base: what the base gives (`system`).
        archs: compute capabilities wanted, "8.0"; empty for an extension without GPU code.
        notes: folder where to keep what torch's libraries define, on a disk with room to unpack the largest, 1 GB.
    """

    python: str
    tags: frozenset[Tag]
    wheels: Mapping[str, Path]
    base: Base
    archs: tuple[str, ...]
    notes: Path


@dataclass(frozen=True, kw_only=True)
class _Looked:
    """One object of the wheel: where it lies, what it says, and the GPU code in it."""

    path: str
    object: Object
    code: dict[fatbin.Container, int]


def contents(wheel: Path, python: str, tags: frozenset[Tag]) -> wheels.Plan:
    """What a wheel would install: known without the stack's wheels, so asked before they are fetched.

    Raises:
        WheelError: the wheel is damaged, hostile, or for another interpreter.
    """
    return wheels.plan(wheel, wheels.Venv(root="opt/verl", python=python), tags)


def check(wheel: Path, against: Against) -> tuple[Finding, ...]:
    """Everything that is wrong with a compiled wheel; empty if it may be used.

    Args:
        wheel: the wheel under its own name.
        against: what it must fit.

    Raises:
        WheelError: the wheel is damaged, hostile, inconsistent with its RECORD, or for another interpreter.
        PinsError: torch is not among the wheels, or an architecture is of another form than 8.0.
        StorageError: `notes` has no room.
    """
    _check_archs(against.archs)
    planned = contents(wheel, against.python, against.tags)
    with Reader() as reader:
        givers = {sha256: path for sha256, path in against.wheels.items() if path.name.startswith(_GIVERS)}
        libraries = Libraries(givers, reader, against.notes)
        try:
            torch = rules.torch_facts(libraries)
        except KeyError:
            raise PinsError("the gate was given no torch to compare with", todo="pass the stack's wheels") from None
        seen = list(_objects(wheel, planned.entries, reader, against.notes))
        found = [one for one in seen if isinstance(one, Finding)]
        found += _name(wheel, givers.values(), torch)
        found += _all_rules([one for one in seen if isinstance(one, _Looked)], libraries, torch, against)
    return tuple(sorted(found, key=lambda one: (RULES.index(one.rule), one.member, one.subject)))


def require(wheel: Path, against: Against) -> None:
    """Refuse a compiled wheel that does not fit.

    Raises:
        WheelError: it does not; the error names what is wrong. Otherwise as `check`.
        PinsError, StorageError: as `check`.
    """
    found = check(wheel, against)
    if not found:
        return
    first = {one.rule: one for one in reversed(found)}  # one of each rule, then more of the same
    order = [first[rule] for rule in RULES if rule in first]
    order += [one for one in found if one not in order]
    lines = [f"\n  {one}" for one in order[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"\n  and {len(found) - _SHOWN} more")
    raise WheelError(f"{wheel.name} does not fit this stack:{''.join(lines)}", where=str(wheel), todo=order[0].todo)


def _check_archs(archs: Iterable[str]) -> None:
    for arch in archs:
        try:
            fatbin.capability(arch)
        except ValueError as e:
            raise PinsError(str(e), todo="name compute capabilities as 8.0 or 9.0") from None


def _name(wheel: Path, givers: Iterable[Path], torch: rules.Torch) -> Iterator[Finding]:
    """Upstream's names say what a wheel was made for: `2.6.3+cu12torch2.3cxx11abiFALSE`."""
    local = parse_wheel_filename(wheel.name)[1].local or ""
    version = next((_version(path) for path in givers if path.name.startswith("torch-")), "")
    minor = ".".join(version.split(".")[:2])
    for pattern, word, have in (
        (_LOCAL_CUDA, "CUDA", torch.cudart.rpartition(".")[2]),
        (_LOCAL_TORCH, "torch", minor),
        (_LOCAL_ABI, "cxx11abi", str(torch.cxx11_abi).lower()),
    ):
        match = pattern.search(local)
        if match and match[1] != have:
            yield Finding(
                rule="tag",
                member="",
                subject=match[0],
                what=f"is named for {word} {match[1]}; the stack has {word} {have or 'none'}",
                todo="take the wheel whose name fits the stack, or compile it",
            )


def _version(path: Path) -> str:
    try:
        return parse_wheel_filename(path.name)[1].public
    except InvalidWheelFilename as e:
        raise zips.error(path, f"has no valid wheel name: {e}") from e


def _objects(wheel: Path, entries: Iterable[tar.Entry], reader: Reader, scratch: Path) -> Iterator[_Looked | Finding]:
    """Every compiled object of the wheel, or why it is none; every byte of it is hashed on the way."""
    left = _MOST_UNPACKED
    for entry in entries:
        content = entry.content
        if content is None:
            continue
        left -= content.size
        if left < 0:
            raise zips.error(wheel, f"unpacks to more than {_MOST_UNPACKED} bytes")
        path = entry.path.partition("/site-packages/")[2] or entry.path
        pieces = reader.chunks(content)
        first = next(pieces, b"")
        try:
            looked = _look(path, content.size, itertools.chain((first,), pieces), first, scratch)
        except (elf_file.BadElfError, fatbin.BadFatbinError) as e:
            yield Finding(
                rule="member",
                member=path,
                subject=path.rpartition("/")[2],
                what=f"is no shared object that can be loaded: {e}",
                todo="delete this wheel; fetch it again or compile it again",
            )
        else:
            if looked:
                yield looked


def _is_object(path: str, first: bytes) -> bool:
    """Whether the loader would take it: what is called so must be one, what is none of it may be any other ELF file."""
    if shared_name(path):
        return True
    if not first.startswith(elf_file.MAGIC):
        return False
    try:
        machine, kind = elf_file.identify(first)
    except elf_file.BadElfError:
        return False
    return machine == elf_file.X86_64 and kind in {elf_file.EXECUTABLE, elf_file.SHARED}


def _look(path: str, size: int, pieces: Iterable[bytes], first: bytes, scratch: Path) -> _Looked | None:
    """What an object says, None for any other file; its bytes are read in any case.

    Raises:
        BadElfError, BadFatbinError: it is called a shared object and is none.
    """
    if not _is_object(path, first):
        collections.deque(pieces, maxlen=0)
        return None
    with mapped(pieces, size, scratch) as data:
        if shared_name(path) and elf_file.identify(data[:64])[1] != elf_file.SHARED:
            raise elf_file.BadElfError("it is an ELF file of another kind")
        found, sections = elf_symbols.read(data), elf_file.sections(data)
        at, length = sections.get(".nv_fatbin", (0, 0)) if sections else (0, len(data))
        return _Looked(path=path, object=found, code=fatbin.containers(data, at, at + length))


def _all_rules(objects: list[_Looked], libraries: Libraries, torch: rules.Torch, against: Against) -> Iterator[Finding]:
    own = {one.path.rpartition("/")[2]: one.object for one in objects}
    for one in objects:
        yield from rules.kind(one.path, one.object, against.python)
        yield from rules.needed(
            one.path,
            one.object,
            libraries=libraries,
            own=own,
            base=against.base,
            torch=torch,
            python=against.python,
        )
        yield from rules.symbols(one.path, one.object, libraries=libraries, own=own, torch=torch)
        yield from rules.versions(one.path, one.object, against.base)
        if one.code:
            yield from rules.architectures(one.path, one.code, against.archs)
    if against.archs and not any(one.code for one in objects):
        yield Finding(
            rule="arch",
            member="",
            subject=", ".join(against.archs),
            what="holds no GPU code at all",
            todo="compile it with nvcc; FLASH_ATTENTION_SKIP_CUDA_BUILD must not be set",
        )
