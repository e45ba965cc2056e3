"""Whether compiled modules fit the torch beside them: Python tag, C++ ABI, symbols, glibc; nothing is imported."""

from __future__ import annotations

import os
import re
import sys
from itertools import islice
from typing import TYPE_CHECKING

from verldoctor import elf
from verldoctor.finding import Finding, found
from verldoctor.text import safe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TORCH = re.compile(rb"^_ZNK?(?:St6vectorIN|RK?)?(?:3c10|2at|5torch|6caffe2)|^_ZT[VIS]N?(?:3c10|2at|5torch)")
_TAG = re.compile(r"\.cpython-(\d{2,4})[a-z]*-")
_LIBRARIES = ("libc10.so", "libtorch_cpu.so", "libtorch_python.so", "libc10_cuda.so", "libtorch_cuda.so", "libtorch.so",
              "libtorch_cuda_linalg.so", "libshm.so")  # fmt: skip
_PACKAGES = ("flash_attn", "vllm", "xformers", "apex", "torchvision", "torchaudio", "deepspeed", "transformer_engine",
             "causal_conv1d", "mamba_ssm", "grouped_gemm", "torchao", "liger_kernel")  # fmt: skip
Libraries = dict[str, elf.Library]  # by file name
_MODULES = 64  # compiled modules looked at; a stack has under ten


def judge(place: Path, torch: str, python: tuple[int, int] | None) -> Iterator[Finding]:
    """Findings on the compiled modules in site-packages `place` with torch `torch` for `python` (None: unknown)."""
    libraries = _torch_libraries(place)
    for module in islice(_modules(place), _MODULES):
        package = module.name.partition(".")[0] if module.parent == place else module.relative_to(place).parts[0]
        package = "flash-attn" if package.startswith("flash_attn") else package
        if python and (tagged := _other_python(module.name, python)):
            yield found(
                "env", "ENV-EXT-PYTHON", safe(module), measured=safe(module.name), right=tagged, package=package
            )
            continue
        yield from _symbols(module, package, libraries, torch)


def _modules(place: Path) -> Iterator[Path]:
    for folder in (place, *(place / name for name in _PACKAGES)):
        try:
            names = sorted(os.listdir(folder))  # noqa: PTH208 - names only, thousands of them
        except OSError:
            continue
        yield from (folder / name for name in names if name.endswith(".so"))


def _other_python(name: str, python: tuple[int, int]) -> str:
    wanted = f"{python[0]}{python[1]}"
    tag = _TAG.search(name)
    return f"cp{wanted}" if tag and tag[1] != wanted else ""


def _torch_libraries(place: Path) -> Libraries:
    loaded: Libraries = {}
    for name in _LIBRARIES:
        try:
            loaded[name] = elf.load(place / "torch" / "lib" / name)
        except (OSError, ValueError):
            continue
    return loaded


def _symbols(module: Path, package: str, libraries: Libraries, torch: str) -> Iterator[Finding]:
    try:
        library = elf.load(module)
    except (OSError, ValueError):
        return  # an empty stand-in or a script: importing it says so itself
    yield from _glibc(module, library)
    asked = [name for name in library.needed if name.startswith(("libc10", "libtorch"))]
    if not libraries:
        return
    if absent := [name for name in asked if name not in libraries]:
        yield found("env", "ENV-LIB", safe(module), measured=safe(absent[0]), right=torch, package=package)
        return
    wanted = [name for name in elf.undefined(library) if _TORCH.match(name)]
    missing = [name for name in wanted if not any(elf.defines(given, name) for given in libraries.values())]
    if missing:
        yield _missing(module, package, missing, list(libraries.values()), torch)


def _missing(module: Path, package: str, missing: list[bytes], libraries: list[elf.Library], torch: str) -> Finding:
    new_abi = torch_has_new_abi(libraries)
    sign = next((name for name in missing if (b"__cxx11" in name) != new_abi and _has_string(name)), None)
    if sign is not None:
        right = f"cxx11abi{'TRUE' if new_abi else 'FALSE'}"
        return found("env", "ENV-ABI", safe(module), measured=safe(sign), right=right, package=package)
    words = {"right": torch, "package": package, "count": len(missing)}
    return found("env", "ENV-SYMBOL", safe(module), measured=safe(missing[0]), **words)


def _has_string(name: bytes) -> bool:
    """Whether a std::string is in the signature: `Ss` in the old ABI, __cxx11::basic_string in the new one."""
    return b"__cxx11" in name or b"Ss" in name


def torch_has_new_abi(libraries: list[elf.Library]) -> bool:
    """Whether torch's libc10 was built with _GLIBCXX_USE_CXX11_ABI=1; asked of a function that every release has."""
    new = b"_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
    return any(elf.defines(library, new) for library in libraries)


def _glibc(module: Path, library: elf.Library) -> Iterator[Finding]:
    here = system_glibc()
    needs = elf.newest_glibc(library)
    if here and needs > here:
        yield found("env", "ENV-GLIBC", safe(module), measured=f"GLIBC_2.{needs}", right=f"glibc 2.{here}")


def system_glibc() -> int:
    """The minor version of this system's glibc; 0 where it is another libc."""
    if sys.platform != "linux":
        return 0
    try:
        told = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        return 0
    match = re.fullmatch(r"glibc 2\.(\d{1,3})(?:\.\d+)?", told)
    return int(match[1]) if match else 0
