"""What is asked of one compiled object: pure, from what it says of itself and from what torch and the base give."""

from __future__ import annotations

import heapq
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from verlstack.extension import elf_file, fatbin, mangled
from verlstack.extension.finding import Finding
from verlstack.extension.system import LIBRARIES as SYSTEM

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from verlstack.extension.elf_symbols import Library, Object
    from verlstack.extension.system import Base

# The driver's libraries come from the host when the container starts; no image holds them.
_DRIVER = frozenset({"libcuda.so.1", "libnvidia-ml.so.1"})
_CUDART = re.compile(r"libcudart\.so\.(\d+)")
_SUFFIX = re.compile(r".*\.cpython-(?P<tag>\d+)[a-z]*-[\w-]+\.so")

_REBUILD = "compile it against this stack's torch, or take the wheel made for that torch"
_OTHER_ABI = "compile it with -D_GLIBCXX_USE_CXX11_ABI={flag}, or take the wheel whose name says cxx11abi{word}"
_OLDER = "compile it on a base no newer than the stack's, or choose a newer base"


class Given(Protocol):
    """The libraries that an object can be linked to (`libraries.Libraries`)."""

    def __contains__(self, name: str) -> bool: ...

    def size(self, name: str) -> int:
        """Bytes of one."""

    def of_torch(self, name: str) -> bool:
        """Whether it is torch's own."""

    def open(self, name: str) -> Library:
        """What one says."""


@dataclass(frozen=True, kw_only=True)
class Torch:
    """What torch's own libraries say.

    Attributes:
        cxx11_abi: whether they were compiled with the new std::string.
        cudart: the CUDA runtime that they load, `libcudart.so.12`, or "" for torch without CUDA.
    """

    cxx11_abi: bool
    cudart: str


def torch_facts(libraries: Given) -> Torch:
    """Read them off torch's two smallest libraries.

    Raises:
        KeyError: `libc10.so` is not there.
    """
    if "libc10.so" not in libraries:
        raise KeyError("libc10.so")
    exports = libraries.open("libc10.so").defined
    # Only c10's own: torch's build links parts of libstdc++ into it, which bring names of the other ABI along.
    new = any("__cxx11" in name and mangled.of_torch(name) for name in exports)
    needed = libraries.open("libc10_cuda.so").needed if "libc10_cuda.so" in libraries else ()
    return Torch(cxx11_abi=new, cudart=next((name for name in needed if _CUDART.fullmatch(name)), ""))


def kind(path: str, found: Object, python: str) -> Iterable[Finding]:
    """Whether this interpreter on this machine looks at the file at all."""
    if found.machine != elf_file.X86_64:
        yield Finding(
            rule="member",
            member=path,
            subject=str(found.machine),
            what=f"is for another machine (ELF number {found.machine}, x86-64 is {elf_file.X86_64})",
            todo="take the wheel for x86_64",
        )
    match = _SUFFIX.fullmatch(path)
    if match and match["tag"] != python.replace(".", ""):
        yield Finding(
            rule="member",
            member=path,
            subject=f"cpython-{match['tag']}",
            what=f"is named for CPython {match['tag'][0]}.{match['tag'][1:]}; CPython {python} does not find it",
            todo=f"compile it with CPython {python}",
        )


def needed(
    path: str, found: Object, *, libraries: Given, own: Iterable[str], base: Base, torch: Torch, python: str
) -> Iterable[Finding]:
    """Whether every library that it loads is there."""
    here = {*own, *base.libraries, *_DRIVER, f"libpython{python}.so.1.0"}
    for name in found.needed:
        if name in here or name in libraries:
            continue
        what, todo = f"needs {name[:200]}, which neither the stack's wheels nor {base.name} hold", _REBUILD
        if _CUDART.fullmatch(name) and torch.cudart:
            what = f"needs {name}, but the stack's torch runs on {torch.cudart}: another CUDA major"
            todo = "compile it with an nvcc of torch's CUDA major, or take the wheel made for it"
        yield Finding(rule="needed", member=path, subject=name, what=what, todo=todo)


def symbols(
    path: str, found: Object, *, libraries: Given, own: Mapping[str, Library], torch: Torch
) -> Iterable[Finding]:
    """Whether every symbol that must be found is: always for torch's and CUDA's, else where all libraries are known."""
    left = {
        symbol.name for symbol in found.undefined if symbol.library not in SYSTEM and not mangled.of_python(symbol.name)
    }
    unseen = _resolve(left, found, libraries, own)
    for name in sorted(left):
        ours = mangled.of_torch(name) or mangled.of_cuda_runtime(name)
        if ours or not unseen:
            yield _unresolved(path, name, torch)


def _resolve(left: set[str], found: Object, libraries: Given, own: Mapping[str, Library]) -> bool:
    """Take away what the libraries define that it loads, and that they load; small ones first, for they are cheap.

    Returns:
        Whether some library could not be looked into, other than the base's, which give versioned symbols only.
    """
    unseen, seen = False, set(found.needed)
    todo = [(_cost(name, libraries, own), name) for name in seen]
    heapq.heapify(todo)
    while todo and left:
        _, name = heapq.heappop(todo)
        at = own.get(name)
        if at is None and name in libraries:
            if not _may_define(name, libraries, left):
                continue
            at = libraries.open(name)
        if at is None:
            unseen = unseen or name not in SYSTEM
            continue
        left -= at.defined
        for further in set(at.needed) - seen:
            seen.add(further)
            heapq.heappush(todo, (_cost(further, libraries, own), further))
    return unseen


def _cost(name: str, libraries: Given, own: Mapping[str, Library]) -> int:
    return libraries.size(name) if name not in own and name in libraries else 0


def _may_define(name: str, libraries: Given, left: Iterable[str]) -> bool:
    """Whether opening a library can help: torch's names are in torch's libraries, the runtime's in libcudart."""
    if libraries.of_torch(name):
        return True
    runtime = bool(_CUDART.fullmatch(name))
    return any(not mangled.of_torch(one) and (runtime or not mangled.of_cuda_runtime(one)) for one in left)


def _unresolved(path: str, name: str, torch: Torch) -> Finding:
    made_with = mangled.strings(name)
    its_own = mangled.NEW if torch.cxx11_abi else mangled.OLD
    if mangled.of_torch(name) and made_with not in {None, its_own}:
        word = "TRUE" if torch.cxx11_abi else "FALSE"
        return Finding(
            rule="abi",
            member=path,
            subject=name,
            what=f"wants {mangled.shown(name)} with std::string of the {made_with} ABI; the stack's torch has the "
            f"{its_own} one",
            todo=_OTHER_ABI.format(flag=int(torch.cxx11_abi), word=word),
        )
    who = "the stack's torch" if mangled.of_torch(name) else "the library it is linked to"
    if mangled.of_cuda_runtime(name):
        who = "the stack's CUDA runtime"
    return Finding(
        rule="symbol",
        member=path,
        subject=name,
        what=f"wants {mangled.shown(name)}, which {who} does not define",
        todo=_REBUILD,
    )


def versions(path: str, found: Object, base: Base) -> Iterable[Finding]:
    """Whether the base's C and C++ libraries are new enough."""
    for need in found.needs:
        if need.library not in SYSTEM or base.gives(need.version) is not False:
            continue
        family = need.version.partition("_")[0]
        newest = ".".join(map(str, base.newest.get(family, ())))
        have = f"{base.name} gives {family}_{newest} at most" if newest else f"{base.name} gives no {family}"
        user = f" (for {mangled.shown(need.symbol)})" if need.symbol else ""
        yield Finding(
            rule="glibc" if family == "GLIBC" else "glibcxx",
            member=path,
            subject=need.version,
            what=f"needs {need.version} of {need.library}{user}; {have}",
            todo=_OLDER,
        )


def architectures(path: str, held: Mapping[fatbin.Container, int], archs: Iterable[str]) -> Iterable[Finding]:
    """Whether every fat binary of an object has machine code for each wanted compute capability.

    A fat binary with code for exact architectures alone ("9.0a") was made for those on purpose: no more is asked of it.
    """
    general = {codes: n for codes, n in held.items() if any(not code.variant for code in codes)} or held
    for arch in archs:
        at = fatbin.capability(arch)
        without = [codes for codes in general if not any(code.runs_on(*at) for code in codes if not code.ptx)]
        if not without:
            continue
        lacking, total = sum(general[codes] for codes in without), sum(general.values())
        has = ", ".join(map(str, sorted({code for codes in without for code in codes})[:12])) or "none"
        what = f"has no machine code for {arch} in {lacking} of its {total} fat binaries, only {has}"
        if all(any(code.runs_on(*at) for code in codes) for codes in without):
            what += "; such a GPU would go through PTX, which the driver compiles when the program starts"
        yield Finding(
            rule="arch",
            member=path,
            subject=arch,
            what=what,
            todo=f"compile it with {arch} in the list of architectures",
        )
