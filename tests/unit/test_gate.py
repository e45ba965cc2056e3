"""The gate: every rule refuses what it is for, names it, and lets through what fits."""

import hashlib
import struct

import pytest

from support.elves import EXACT, PTX, Elf, container, entry, gpu
from support.wheels import Wheel, change, record_hash, row
from verlstack import plan
from verlstack.errors import PinsError, WheelError
from verlstack.extension import elf_symbols, gate, libraries, system

CHECK_OLD = "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"
CHECK_NEW = "_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
OPTIONS = "_ZN2at12emptyOptionsEv"
STREAM = "_ZN3c104cuda20getCurrentCUDAStreamEa"
PATH = "demo/_C.cpython-310-x86_64-linux-gnu.so"
PLATFORM = "x86_64-manylinux_2_35"

CUDART = Elf(defined=("cudaMalloc", "__cudaRegisterFatBinary"))
TORCH = {
    "libc10.so": Elf(needed=("libstdc++.so.6",), defined=(CHECK_OLD, "_ZNSt7__cxx114listIiE4swapEv")),
    "libc10_cuda.so": Elf(needed=("libc10.so", "libcudart.so.12"), defined=(STREAM,)),
    "libtorch_cpu.so": Elf(needed=("libc10.so",), defined=(OPTIONS, *(f"_ZN2at4op{n:02}Ev" for n in range(90)))),
    "libtorch.so": Elf(needed=("libtorch_cpu.so", "libc10_cuda.so", "libcudnn.so.8")),
}
EXTENSION = Elf(
    needed=("libtorch.so", "libc10.so", "libcudart.so.12", "libstdc++.so.6", "libc.so.6"),
    undefined=(
        *(CHECK_OLD, OPTIONS, STREAM, "PyObject_Call", "_Py_NoneStruct"),
        ("cudaMalloc", "libcudart.so.12", "libcudart.so.12"),
        ("memcpy", "libc.so.6", "GLIBC_2.14"),
        ("_ZNSs4_Rep10_M_destroyERKSaIcE", "libstdc++.so.6", "GLIBCXX_3.4"),
    ),
    weak=("__gmon_start__", "_ITM_deregisterTMCloneTable"),
    defined=("PyInit__C",),
    fatbin=gpu(80, 90) * 3,
)


class Bench:
    """A stack of made-up torch and CUDA wheels, and wheels to gate against it."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "stack").mkdir()
        self.notes = folder / "notes"
        self.wheels = {}
        self.give("torch", "2.3.1", {f"torch/lib/{name}": elf for name, elf in TORCH.items()})
        self.give("nvidia_cuda_runtime_cu12", "12.1.105", {"nvidia/cuda_runtime/lib/libcudart.so.12": CUDART})

    def give(self, name, version, objects):
        files = {path: elf.to_bytes() for path, elf in objects.items()}
        path = Wheel(name=name, version=version, files=files).write(self.folder / "stack")
        self.wheels[hashlib.sha256(path.read_bytes()).hexdigest()] = path

    def against(self, **changes):
        usual = {
            "python": "3.10",
            "tags": frozenset(plan.tags("3.10", PLATFORM)),
            "wheels": self.wheels,
            "base": system.of_platform(PLATFORM),
            "archs": ("8.0", "9.0"),
            "notes": self.notes,
        }
        return gate.Against(**usual | changes)

    def wheel(self, elf, path=PATH, *, version="1.0", tag="cp310-cp310-linux_x86_64", **more):
        data = elf if isinstance(elf, bytes) else elf.to_bytes()
        files = {"demo/__init__.py": b"", path: data, **more.pop("files", {})}
        return Wheel(version=version, tag=tag, files=files, **more).write(self.folder)

    def found(self, elf, path=PATH, *, changes=None, **more):
        return [(f.rule, f.subject) for f in gate.check(self.wheel(elf, path, **more), self.against(**changes or {}))]


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def but(**changes):
    return Elf(**vars(EXTENSION) | changes)


def wanting(*symbols):
    return but(undefined=(*EXTENSION.undefined, *symbols))


def test_what_fits_passes(bench):
    assert gate.check(bench.wheel(EXTENSION), bench.against()) == ()
    gate.require(bench.wheel(EXTENSION), bench.against())


def test_a_wheel_without_compiled_code_passes_where_none_is_wanted(bench):
    assert bench.found(b"text", "demo/data.txt", changes={"archs": ()}) == []


# -- ABI and symbols


def test_the_other_string(bench):
    (finding,) = gate.check(bench.wheel(wanting(CHECK_NEW)), bench.against())
    assert (finding.rule, finding.member, finding.subject) == ("abi", PATH, CHECK_NEW)
    assert "(c10::detail::torchCheckFail)" in finding.what
    assert "-D_GLIBCXX_USE_CXX11_ABI=0" in finding.todo
    assert "cxx11abiFALSE" in finding.todo


def test_the_other_string_the_other_way_round(bench):
    bench.wheels.clear()
    bench.give("torch", "2.6.0", {"torch/lib/libc10.so": Elf(defined=(CHECK_NEW,))})
    elf = Elf(needed=("libc10.so",), undefined=(CHECK_OLD, CHECK_NEW))
    (finding,) = gate.check(bench.wheel(elf), bench.against(archs=()))
    assert (finding.rule, finding.subject) == ("abi", CHECK_OLD)
    assert "-D_GLIBCXX_USE_CXX11_ABI=1" in finding.todo
    assert "cxx11abiTRUE" in finding.todo


def test_a_string_of_torchs_own_abi_that_is_missing_is_a_missing_symbol(bench):
    assert bench.found(wanting("_ZN3c104gone1fESs")) == [("symbol", "_ZN3c104gone1fESs")]


@pytest.mark.parametrize("name", ["_ZN2at4goneEv", "THPGoneClass", "cudaGraphAddNode_v2", "__cudaGone"])
def test_a_symbol_that_nobody_defines(bench, name):
    assert bench.found(wanting(name)) == [("symbol", name)]


def test_a_versioned_symbol_of_the_cuda_runtime(bench):
    """CUDA 12.4's headers may ask 12.1's runtime for what it does not have yet."""
    assert bench.found(wanting(("cudaGone", "libcudart.so.12", "libcudart.so.12"))) == [("symbol", "cudaGone")]


def test_a_symbol_of_a_library_that_is_not_loaded(bench):
    elf = but(needed=("libc10.so", "libcudart.so.12", "libc.so.6"))
    assert bench.found(elf) == [("symbol", OPTIONS), ("symbol", STREAM)]


def test_what_a_library_hides_is_not_given(bench):
    bench.give("nvidia_demo", "1", {"nvidia/demo/lib/libdemo.so.1": Elf(hidden=("secret",), defined=("open",))})
    elf = Elf(needed=("libdemo.so.1",), undefined=("secret", "open"))
    assert bench.found(elf, changes={"archs": ()}) == [("symbol", "secret")]


def test_other_names_are_judged_only_where_all_libraries_are_known(bench):
    assert bench.found(wanting("mystery")) == []  # libtorch.so needs cuDNN, which was not given here
    bench.give("nvidia_cudnn_cu12", "8.9", {"nvidia/cudnn/lib/libcudnn.so.8": Elf(defined=("cudnnCreate",))})
    assert bench.found(wanting("mystery", "cudnnCreate")) == [("symbol", "mystery")]


def test_libraries_that_the_wheel_brings_along(bench):
    own = Elf(defined=("helper",)).to_bytes()
    elf = but(needed=(*EXTENSION.needed, "libhelper.so"), undefined=(*EXTENSION.undefined, "helper"))
    assert bench.found(elf, files={"demo/libhelper.so": own}) == []
    assert bench.found(elf) == [("needed", "libhelper.so")]


# -- libraries


def test_another_cuda_major(bench):
    (finding,) = gate.check(bench.wheel(but(needed=(*EXTENSION.needed, "libcudart.so.11.0"))), bench.against())
    assert (finding.rule, finding.subject) == ("needed", "libcudart.so.11.0")
    assert "needs libcudart.so.11.0" in finding.what
    (finding,) = gate.check(bench.wheel(but(needed=(*EXTENSION.needed, "libcudart.so.13"))), bench.against())
    assert "torch runs on libcudart.so.12: another CUDA major" in finding.what


def test_libraries_of_the_driver_and_the_interpreter_come_from_elsewhere(bench):
    assert bench.found(but(needed=(*EXTENSION.needed, "libcuda.so.1", "libpython3.10.so.1.0"))) == []
    assert bench.found(but(needed=(*EXTENSION.needed, "libpython3.11.so.1.0"))) == [("needed", "libpython3.11.so.1.0")]


# -- versions


@pytest.mark.parametrize(
    ("library", "version", "rule"),
    [
        ("libc.so.6", "GLIBC_2.38", "glibc"),
        ("libm.so.6", "GLIBC_2.38", "glibc"),
        ("libc.so.6", "GLIBC_ABI_DT_RELR", "glibc"),
        ("libc.so.6", "GLIBC_PRIVATE", "glibc"),
        ("libstdc++.so.6", "GLIBCXX_3.4.32", "glibcxx"),
        ("libstdc++.so.6", "CXXABI_1.3.15", "glibcxx"),
        ("libgcc_s.so.1", "GCC_14.0.0", "glibcxx"),
    ],
)
def test_a_version_newer_than_the_base(bench, library, version, rule):
    (finding,) = gate.check(bench.wheel(wanting(("newfunction", library, version))), bench.against())
    assert (finding.rule, finding.subject) == (rule, version)
    assert f"{version} of {library} (for newfunction); manylinux_2_35 gives " in finding.what


def test_versions_that_fit_or_may_be_missing(bench):
    assert bench.found(wanting(("f", "libc.so.6", "GLIBC_2.35"), ("g", "libstdc++.so.6", "GLIBCXX_3.4.30"))) == []
    assert bench.found(but(weak_needs=(("libc.so.6", "GLIBC_2.99"),))) == []


def test_what_is_promised_decides(bench):
    base = system.Base(name="this base", newest={"GLIBC": (2, 36)}, libraries=frozenset({"libc.so.6"}))
    assert bench.found(EXTENSION, changes={"base": base}) == [
        ("needed", "libstdc++.so.6"),
        ("glibcxx", "GLIBCXX_3.4"),
    ]


# -- GPU code


def arch(bench, fatbin, archs=("8.0", "9.0")):
    return gate.check(bench.wheel(but(fatbin=fatbin)), bench.against(archs=archs))


def test_an_architecture_that_is_missing(bench):
    (finding,) = arch(bench, gpu(80))
    assert (finding.rule, finding.subject, finding.member) == ("arch", "9.0", PATH)
    assert "no machine code for 9.0 in 1 of its 1 fat binaries, only sm_80" in finding.what
    assert "PTX" not in finding.what


def test_an_architecture_that_is_missing_in_one_source_file(bench):
    (finding,) = arch(bench, gpu(80, 90) + gpu(80) + gpu(80, 90))
    assert "in 1 of its 3 fat binaries" in finding.what


def test_ptx_alone_is_not_enough(bench):
    (finding,) = arch(bench, container(entry(80), entry(80, PTX)))
    assert finding.subject == "9.0"
    assert "only sm_80, compute_80; such a GPU would go through PTX" in finding.what


def test_machine_code_runs_within_its_major(bench):
    assert arch(bench, gpu(80), ("8.0", "8.6", "8.9")) == ()
    assert [f.subject for f in arch(bench, gpu(86), ("8.0", "8.6"))] == ["8.0"]


def test_code_for_one_very_architecture_is_asked_no_more(bench):
    exact = container(entry(90, flags=0x11 | EXACT))
    assert arch(bench, gpu(80, 90) + exact) == ()
    assert arch(bench, exact, ("9.0",)) == ()
    assert [f.subject for f in arch(bench, exact)] == ["8.0"]


def test_no_gpu_code_at_all(bench):
    (finding,) = arch(bench, None)
    assert (finding.rule, finding.member) == ("arch", "")
    assert "no GPU code at all" in finding.what
    assert arch(bench, None, ()) == ()


def test_gpu_code_is_found_without_section_headers(bench):
    assert bench.found(but(stripped=True)) == []
    assert bench.found(but(stripped=True, fatbin=None)) == [("arch", "8.0, 9.0")]


def test_an_architecture_of_another_form(bench):
    with pytest.raises(PinsError, match=r"'sm_80' is no compute capability of the form 8\.0"):
        arch(bench, gpu(80), ("sm_80",))


# -- names


@pytest.mark.parametrize(
    ("local", "found"),
    [
        ("cu12torch2.3cxx11abiFALSE", []),
        ("cu121torch2.3cxx11abiFALSE", []),
        ("cu11torch2.3cxx11abiFALSE", ["cu11"]),
        ("cu118torch2.4cxx11abiTRUE", ["cu11", "cxx11abitrue", "torch2.4"]),
        ("local", []),
    ],
)
def test_what_the_name_says(bench, local, found):
    elf = EXTENSION.to_bytes()
    assert bench.found(elf, version=f"1.0+{local}") == [("tag", part) for part in found]


@pytest.mark.parametrize("tag", ["cp311-cp311-linux_x86_64", "cp310-cp310-manylinux_2_39_x86_64", "cp310-cp310-win32"])
def test_another_interpreter(bench, tag):
    with pytest.raises(WheelError, match="is built for"):
        gate.check(bench.wheel(EXTENSION, tag=tag), bench.against())


def test_an_object_named_for_another_python(bench):
    assert bench.found(EXTENSION, "demo/_C.cpython-311-x86_64-linux-gnu.so") == [("member", "cpython-311")]
    assert bench.found(EXTENSION, "demo/_C.abi3.so") == []


def test_an_object_of_another_machine(bench):
    assert bench.found(but(machine=183)) == [("member", "183")]


# -- damaged and hostile wheels


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no 64-bit little-endian ELF file"),
        (b"INPUT(libc.so.6)", "no 64-bit little-endian ELF file"),
        (EXTENSION.to_bytes()[:200], "past the end"),
        (EXTENSION.to_bytes()[:-1], "past the end"),
        (but(kind=1).to_bytes(), "ELF file of another kind"),
        (but(fatbin=gpu(80)[:-1]).to_bytes(), "past its section"),
    ],
    ids=["empty", "linker script", "beginning", "all but a byte", "object file", "fat binary"],
)
def test_what_is_called_a_shared_object_and_is_none(bench, data, says):
    found = gate.check(bench.wheel(data), bench.against())
    assert [f.rule for f in found] == ["member", "arch"]
    assert says in found[0].what
    assert found[0].member == PATH


def test_objects_for_linking_and_other_machines_code_are_nobodys_business(bench):
    files = {"demo/kernel.o": but(kind=1).to_bytes(), "demo/k.cubin": but(machine=190).to_bytes(), "demo/e": b"\x7fELF"}
    assert bench.found(EXTENSION, files=files) == []


def test_programs_are_gated_too(bench):
    program = Elf(kind=2, needed=("libc.so.6",), undefined=(("f", "libc.so.6", "GLIBC_2.39"),)).to_bytes()
    assert bench.found(EXTENSION, files={"demo/bin/tool": program}) == [("glibc", "GLIBC_2.39")]


def test_a_record_that_is_not_true(bench):
    wheel = bench.wheel(EXTENSION, record=row("__init__.py", 1, record_hash(b"other")))
    with pytest.raises(WheelError, match="RECORD says"):
        gate.check(wheel, bench.against())
    wheel = bench.wheel(EXTENSION, record=row(".so", 1, record_hash(b"other")))
    with pytest.raises(WheelError, match="RECORD says"):
        gate.check(wheel, bench.against())


def test_a_bomb(bench):
    wheel = bench.wheel(EXTENSION, edit=change(".so", declared=4 * 10**9))
    with pytest.raises(WheelError):
        gate.check(wheel, bench.against())


def test_an_object_too_large_to_look_at(bench, monkeypatch):
    gate.check(bench.wheel(EXTENSION), bench.against())
    monkeypatch.setattr(libraries, "_LARGEST", 100)
    found = gate.check(bench.wheel(EXTENSION), bench.against())
    assert [f.rule for f in found] == ["member", "arch"]
    assert f"it has {len(EXTENSION.to_bytes())} bytes" in found[0].what


def test_no_torch(bench):
    bench.wheels.clear()
    with pytest.raises(PinsError, match="no torch") as e:
        gate.check(bench.wheel(EXTENSION), bench.against())
    assert e.value.todo


def test_a_wheel_too_large_to_read(bench, monkeypatch):
    monkeypatch.setattr(gate, "_MOST_UNPACKED", 100)
    with pytest.raises(WheelError, match="unpacks to more than 100 bytes"):
        gate.check(bench.wheel(EXTENSION), bench.against())


def test_torch_that_is_no_wheel(bench):
    next(iter(bench.wheels.values())).write_bytes(b"<html>")
    with pytest.raises(WheelError, match="not a zip archive"):
        gate.check(bench.wheel(EXTENSION), bench.against())


def test_a_library_of_torchs_that_is_none(bench):
    files = {"torch/lib/libc10.so": b"text"}
    bench.wheels = {"other": Wheel(name="torch", version="2.3.1", files=files).write(bench.folder)}
    with pytest.raises(WheelError, match=r"torch/lib/libc10\.so, which is no shared object"):
        gate.check(bench.wheel(EXTENSION), bench.against())


# -- what is kept


def count_reads(monkeypatch):
    reads = []
    monkeypatch.setattr(elf_symbols, "read", lambda data, read=elf_symbols.read: reads.append(1) or read(data))
    return reads


def test_torchs_libraries_are_unpacked_once(bench, monkeypatch):
    wheel, reads = bench.wheel(EXTENSION), count_reads(monkeypatch)
    gate.check(wheel, bench.against())
    assert len(reads) > 3
    reads.clear()
    assert gate.check(wheel, bench.against()) == ()
    assert len(reads) == 1  # the extension itself


def test_a_damaged_note_is_made_again(bench, monkeypatch):
    wheel = bench.wheel(wanting(CHECK_NEW))
    before = gate.check(wheel, bench.against())
    for note in bench.notes.iterdir():
        note.write_bytes(note.read_bytes()[:-3])
    assert gate.check(wheel, bench.against()) == before
    reads = count_reads(monkeypatch)
    gate.check(wheel, bench.against())
    assert len(reads) == 1


def test_no_more_is_unpacked_than_needed(bench, monkeypatch):
    reads = count_reads(monkeypatch)
    elf = Elf(needed=("libtorch_cpu.so", "libc10.so"), undefined=(CHECK_OLD,))
    gate.check(bench.wheel(elf), bench.against(archs=()))
    assert len(reads) == 3  # the extension, libc10.so, and libc10_cuda.so, which tells the CUDA major


def test_nothing_is_left_beside_the_notes(bench):
    gate.check(bench.wheel(EXTENSION), bench.against())
    assert {path.suffix for path in bench.notes.iterdir()} == {".json"}


# -- the error


def test_the_error_names_one_of_each_kind_and_counts_the_rest(bench):
    more = [f"_ZN2at5gone{n}Ev" for n in range(9)]
    elf = but(undefined=(CHECK_NEW, *more, ("f", "libc.so.6", "GLIBC_2.40")), fatbin=gpu(80))
    wheel = bench.wheel(elf)
    with pytest.raises(WheelError) as e:
        gate.require(wheel, bench.against())
    what = e.value.what
    assert what.startswith(f"{wheel.name} does not fit this stack:")
    for text in ("[abi] demo/_C", CHECK_NEW, "[symbol]", "_ZN2at5gone0Ev", "GLIBC_2.40", "[arch]", "and 7 more"):
        assert text in what
    assert e.value.where == str(wheel)
    assert "_GLIBCXX_USE_CXX11_ABI=0" in e.value.todo


def test_a_name_without_end_is_cut_in_messages(bench):
    name = "_ZN2at" + "4gone" * 900 + "Ev"
    (finding,) = gate.check(bench.wheel(wanting(name)), bench.against())
    assert finding.subject == name
    assert len(finding.what) < 500


@pytest.mark.parametrize("where", ["needed", "undefined"])
def test_names_that_would_speak_to_a_terminal(bench, where):
    elf = but(**{where: (*getattr(EXTENSION, where), "lib\x1b[2J.so")})
    found = gate.check(bench.wheel(elf), bench.against())
    assert [f.rule for f in found] == ["member", "arch"]
    assert "control characters" in found[0].what


def test_every_byte_of_a_small_wheel_changed(bench):
    """Whatever a changed object says, there is a verdict or an error with its wheel's name."""
    data = Elf(needed=("libc10.so",), undefined=(CHECK_OLD,), fatbin=gpu(80, 90)).to_bytes()
    against = bench.against()
    for at in range(0, len(data), 3):
        changed = bytearray(data)
        struct.pack_into("B", changed, at, changed[at] ^ 0xFF)
        gate.check(bench.wheel(bytes(changed)), against)
