"""The gate before what real compilers make: g++ with either std::string, nvcc with lists of architectures."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.wheels import Wheel
from verlstack import plan
from verlstack.extension import elf_file, elf_symbols, fatbin, gate, system

PLATFORM = "x86_64-manylinux_2_35"
PATH = "demo/_C.cpython-310-x86_64-linux-gnu.so"

C10 = """
#include <string>
namespace c10 { namespace detail { void torchCheckFail(const char*, std::string const&) {} } }
"""
EXTENSION = """
#include <string>
namespace c10 { namespace detail { void torchCheckFail(const char*, std::string const&); void gone(int); } }
extern "C" void PyErr_Print();
extern "C" void PyInit__C() { c10::detail::torchCheckFail("dim", std::string("x")); PyErr_Print(); GONE }
"""
KERNEL = """
__global__ void scale(float* x) { x[threadIdx.x] *= 2; }
extern "C" void PyInit__C(float* x) { scale<<<1, 32>>>(x); }
"""


def run(*command, **env):
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True, env=os.environ | env)


@pytest.fixture(scope="module")
def gxx():
    return shutil.which("g++") or pytest.skip("no g++")


def found_nvcc():
    """The nvcc of CUDA_HOME, PATH or where the toolkits go."""
    places = [os.environ.get("CUDA_HOME", ""), *sorted(map(str, Path("/usr/local").glob("cuda*")))]
    return next((path for at in places if at and (path := shutil.which(f"{at}/bin/nvcc"))), shutil.which("nvcc"))


@pytest.fixture(scope="module")
def nvcc(tmp_path_factory, gxx):
    """A function that compiles the kernel for architectures; skipped where nvcc cannot for those we want."""
    path = found_nvcc() or pytest.skip("no nvcc")
    folder = tmp_path_factory.mktemp("nvcc")
    (folder / "kernel.cu").write_text(KERNEL)

    def compiled(*codes):
        lists = [flag for arch, code in codes for flag in ("-gencode", f"arch=compute_{arch},code={code}")]
        out = folder / f"{hashlib.sha256(repr(codes).encode()).hexdigest()}.so"
        run(path, "-shared", "-cudart", "none", "-Xcompiler", "-fPIC", *lists, folder / "kernel.cu", "-o", out)
        return out.read_bytes()

    try:
        compiled(("80", "sm_80"), ("90", "sm_90"))
    except subprocess.CalledProcessError as e:
        pytest.skip(f"nvcc does not compile for 8.0 and 9.0 here: {e.stderr[-200:]}")
    return compiled


def extension(gxx, folder, *, torch_abi, abi, gone=""):
    """A wheel of torch with a libc10.so of one ABI, and an extension's wheel of another."""
    (folder / "c10.cpp").write_text(C10)
    (folder / "ext.cpp").write_text(EXTENSION.replace("GONE", gone))
    flags = ("-shared", "-fPIC", "-O1")
    lib = folder / "libc10.so"
    run(gxx, *flags, f"-D_GLIBCXX_USE_CXX11_ABI={torch_abi}", folder / "c10.cpp", "-o", lib, "-Wl,-soname,libc10.so")
    command = (gxx, *flags, f"-D_GLIBCXX_USE_CXX11_ABI={abi}", folder / "ext.cpp", "-o", folder / "ext.so")
    run(*command, f"-L{folder}", "-Wl,--no-as-needed", "-lc10")
    torch = Wheel(name="torch", version="2.3.1", files={"torch/lib/libc10.so": lib.read_bytes()}).write(folder)
    return torch, wheel(folder, (folder / "ext.so").read_bytes())


def wheel(folder, data):
    return Wheel(tag="cp310-cp310-linux_x86_64", files={PATH: data}).write(folder)


def against(folder, torch, base=None, archs=()):
    return gate.Against(
        python="3.10",
        tags=frozenset(plan.tags("3.10", PLATFORM)),
        wheels={hashlib.sha256(torch.read_bytes()).hexdigest(): torch},
        base=base or this_machine(),
        archs=archs,
        notes=folder / "notes",
    )


def this_machine():
    """What this machine's own libraries give: what was compiled here fits them."""
    maps = Path("/proc/self/maps").read_text()
    folders = {Path(line.split()[-1]).parent for line in maps.splitlines() if "/libc.so.6" in line}
    if not folders:
        pytest.skip("this Python does not run on glibc")
    (folder,) = folders
    names = ("libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6")
    newest = {}
    for version in (v for name in names for v in elf_symbols.read((folder / name).read_bytes()).versions):
        family, number = system.parse(version)
        if family and number:
            newest[family] = max(number, newest.get(family, ()))
    return system.Base(name="this machine", newest=newest, libraries=frozenset(names) | {"ld-linux-x86-64.so.2"})


@pytest.mark.parametrize("abi", [0, 1])
def test_the_same_string_fits(gxx, tmp_path, abi):
    torch, made = extension(gxx, tmp_path, torch_abi=abi, abi=abi)
    assert gate.check(made, against(tmp_path, torch)) == ()


@pytest.mark.parametrize(("abi", "symbol"), [(0, "RKSs"), (1, "RKNSt7__cxx1112basic_string")])
def test_the_other_string_does_not(gxx, tmp_path, abi, symbol):
    torch, made = extension(gxx, tmp_path, torch_abi=1 - abi, abi=abi)
    (finding,) = gate.check(made, against(tmp_path, torch))
    assert finding.rule == "abi"
    assert finding.subject.startswith(f"_ZN3c106detail14torchCheckFailEPKc{symbol}")
    assert f"-D_GLIBCXX_USE_CXX11_ABI={1 - abi}" in finding.todo


def test_a_function_that_this_torch_lacks(gxx, tmp_path):
    torch, made = extension(gxx, tmp_path, torch_abi=0, abi=0, gone="c10::detail::gone(1);")
    (finding,) = gate.check(made, against(tmp_path, torch))
    assert (finding.rule, finding.subject) == ("symbol", "_ZN3c106detail4goneEi")
    assert "c10::detail::gone" in finding.what


def test_an_older_base(gxx, tmp_path):
    torch, made = extension(gxx, tmp_path, torch_abi=1, abi=1)
    old = system.Base(name="an old base", newest={"GLIBC": (2, 2, 4)}, libraries=system.LIBRARIES)
    found = gate.check(made, against(tmp_path, torch, old))
    assert {f.rule for f in found} == {"glibc", "glibcxx"}
    assert all("an old base gives" in f.what for f in found)


def test_the_reader_agrees_with_nm(gxx, tmp_path):
    nm = shutil.which("nm") or pytest.skip("no nm")
    _, made = extension(gxx, tmp_path, torch_abi=0, abi=0)
    del made
    for path in (tmp_path / "ext.so", tmp_path / "libc10.so"):
        found = elf_symbols.read(path.read_bytes())
        rows = [line.split() for line in run(nm, "-D", "--without-symbol-versions", path).stdout.splitlines()]
        assert {s.name for s in found.undefined} == {row[-1] for row in rows if row[-2] == "U"}
        assert found.defined == {row[-1] for row in rows if row[-2] not in "Uwv"}


def codes(data):
    at, size = elf_file.sections(data)[".nv_fatbin"]
    return {str(code) for held in fatbin.containers(data, at, at + size) for code in held}


def test_what_nvcc_was_told_is_read_back(nvcc):
    assert codes(nvcc(("80", "sm_80"), ("90", "sm_90"))) == {"sm_80", "sm_90"}
    assert codes(nvcc(("80", "[sm_80,compute_80]"), ("90a", "sm_90a"))) == {"sm_80", "compute_80", "sm_90a"}
    assert codes(nvcc(("86", "sm_86"))) == {"sm_86"}


def test_the_reader_agrees_with_cuobjdump(nvcc, tmp_path):
    beside = Path(found_nvcc()).resolve().parent / "cuobjdump"
    tool = shutil.which(str(beside)) or shutil.which("cuobjdump") or pytest.skip("no cuobjdump")
    data = nvcc(("80", "[sm_80,compute_80]"), ("90a", "sm_90a"))
    (tmp_path / "k.so").write_bytes(data)
    said = run(tool, "-lelf", "-lptx", tmp_path / "k.so").stdout
    names = {line.split(".")[-2:][0] + "." + line.split(".")[-1] for line in said.splitlines()}
    assert names == {"sm_80.cubin", "sm_90a.cubin", "sm_80.ptx"}


def test_architectures_that_were_left_out(nvcc, gxx, tmp_path):
    torch, _ = extension(gxx, tmp_path, torch_abi=0, abi=0)
    both = gate.check(
        wheel(tmp_path, nvcc(("80", "sm_80"), ("90", "sm_90"))), against(tmp_path, torch, archs=("8.0", "9.0"))
    )
    assert [f for f in both if f.rule == "arch"] == []
    one = gate.check(
        wheel(tmp_path, nvcc(("80", "[sm_80,compute_80]"))), against(tmp_path, torch, archs=("8.0", "9.0"))
    )
    (finding,) = [f for f in one if f.rule == "arch"]
    assert finding.subject == "9.0"
    assert "PTX" in finding.what
