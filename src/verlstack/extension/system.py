"""What a base gives to compiled code: its C and C++ libraries, and the newest symbol versions that they define."""

from __future__ import annotations

import posixpath
import re
import tarfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import zstandard
from isal import igzip

from verlstack import layer, plan
from verlstack.errors import BaseImageError, PinsError
from verlstack.extension import elf_file, elf_symbols

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

Version = tuple[int, ...]

# Newest versions that a platform tag promises on x86_64: PEP 600 and auditwheel's policy, which measured the
# distributions. (glibc 2.n, GLIBCXX, CXXABI, GCC)
_PROMISED = (
    (5, (3, 4, 8), (1, 3, 1), (4, 2, 0)),
    (12, (3, 4, 13), (1, 3, 3), (4, 3, 0)),
    (17, (3, 4, 19), (1, 3, 7), (4, 8, 0)),
    (24, (3, 4, 22), (1, 3, 10), (4, 8, 0)),
    (27, (3, 4, 24), (1, 3, 11), (7, 0, 0)),
    (31, (3, 4, 28), (1, 3, 12), (7, 0, 0)),
    (34, (3, 4, 29), (1, 3, 13), (7, 0, 0)),
    (35, (3, 4, 30), (1, 3, 13), (12, 0, 0)),
    (39, (3, 4, 33), (1, 3, 15), (14, 0, 0)),
)
# What glibc, libgcc and libstdc++ are made of: in every base that has a C++ compiler.
LIBRARIES = frozenset(
    {
        *("libc.so.6", "libm.so.6", "libmvec.so.1", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1"),
        *("ld-linux-x86-64.so.2", "libgcc_s.so.1", "libstdc++.so.6"),
    }
)
_NUMBERED = re.compile(r"(?P<family>GLIBC|GLIBCXX|CXXABI|GCC)_(?P<number>\d+(?:\.\d+){1,3})")
_MARKERS = {"GLIBC_ABI_DT_RELR": (2, 36)}  # a version without a number, and the release that brought it
_DEFINING = re.compile(r"libc\.so\.6|libc-2\.\d+\.so|libstdc\+\+\.so\.6[.\d]*|libgcc_s(-\d+[-\d]*)?\.so(\.1)?")
_FOLDERS = frozenset({"lib", "lib64", "usr/lib", "usr/lib64", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"})
_LARGEST = 1 << 26  # bytes; libstdc++ has two million


@dataclass(frozen=True, kw_only=True)
class Base:
    """What compiled code may count on.

    Attributes:
        name: what gives it, for messages: `this base`, `manylinux_2_35`.
        newest: the newest version of each family: GLIBC, GLIBCXX, CXXABI, GCC.
        libraries: names of the shared objects that the loader finds by itself.
    """

    name: str
    newest: Mapping[str, Version] = field(hash=False)
    libraries: frozenset[str]

    def gives(self, version: str) -> bool | None:
        """Whether it defines `GLIBC_2.34` or the like; None for a version that is no family of the base's."""
        family, number = parse(version)
        if family is None:
            return None
        return number is not None and number <= self.newest.get(family, ())


def parse(version: str) -> tuple[str | None, Version | None]:
    """(family, number) of a symbol version; (None, None) for other families, no number for private ones."""
    if version in _MARKERS:
        return "GLIBC", _MARKERS[version]
    if match := _NUMBERED.fullmatch(version):
        return match["family"], tuple(int(part) for part in match["number"].split(".")[:4])
    return ("GLIBC", None) if version == "GLIBC_PRIVATE" else (None, None)


def of_platform(platform: str) -> Base:
    """What a platform promises, where no base is at hand.

    Args:
        platform: `x86_64-manylinux_2_35`.

    Raises:
        PinsError: it is of another form.
    """
    match = re.fullmatch(plan.PLATFORM, platform)
    rows = [row for row in _PROMISED if match and row[0] <= int(match["glibc"])]
    if not match or not rows:
        raise PinsError(f"platform = {platform!r} is not of the form x86_64-manylinux_2_35")
    _, glibcxx, cxxabi, gcc = rows[-1]
    newest: dict[str, Version] = {"GLIBC": (2, int(match["glibc"])), "GLIBCXX": glibcxx, "CXXABI": cxxabi, "GCC": gcc}
    return Base(name=f"manylinux_2_{match['glibc']}", newest=newest, libraries=LIBRARIES)


def of_libraries(name: str, files: Mapping[str, bytes]) -> Base:
    """What a base's own libraries define.

    Args:
        name: what to call the base in messages.
        files: name of each shared object → its bytes; empty bytes where only its presence counts.

    Raises:
        BaseImageError: there is no C library, or a file is none.
    """
    newest: dict[str, Version] = {}
    for file, data in files.items():
        for family, number in _defined(name, file, data) if data else ():
            newest[family] = max(number, newest.get(family, ()))
    if "GLIBC" not in newest:
        raise BaseImageError(f"{name} has no glibc", todo="use a base with glibc, such as Debian or Ubuntu")
    return Base(name=name, newest=newest, libraries=frozenset(files) | {"ld-linux-x86-64.so.2"})


def of_layers(name: str, layers: Iterable[tuple[Path, str]]) -> Base:
    """What the layers of a base define, lowest first; later files replace earlier ones.

    Args:
        name: what to call the base in messages.
        layers: blob and compression ("gzip", "zstd", "none") of each.

    Raises:
        BaseImageError: a layer is no tar, or there is no C library in any.
    """
    files: dict[str, bytes] = {}
    for blob, kind in layers:
        try:
            with layer.opened(blob, kind) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
                for member in tar:
                    _take(tar, member, files)
        except (tarfile.TarError, zstandard.ZstdError, igzip.BadGzipFile, EOFError, OSError) as e:
            raise BaseImageError(f"a layer is no {kind} tar: {e}", where=str(blob), todo="use another image") from e
    return of_libraries(name, files)


def _take(tar: tarfile.TarFile, member: tarfile.TarInfo, files: dict[str, bytes]) -> None:
    folder, name = posixpath.split(posixpath.normpath(f"/{member.name}").lstrip("/"))
    if folder not in _FOLDERS or ".so" not in name:
        return
    if name.startswith(".wh."):
        files.pop(name.removeprefix(".wh."), None)
    elif member.issym():
        files.setdefault(name, b"")
    elif member.isreg():
        wanted = _DEFINING.fullmatch(name) and member.size <= _LARGEST
        content = tar.extractfile(member) if wanted else None
        files[name] = content.read() if content else b""


def _defined(name: str, file: str, data: bytes) -> Iterable[tuple[str, Version]]:
    try:
        versions = elf_symbols.read(data).versions
    except elf_file.BadElfError as e:
        raise BaseImageError(f"{file} of {name} is no shared object: {e}", todo="use another base") from e
    for version in versions:
        family, number = parse(version)
        if family is not None and number is not None:
            yield family, number
