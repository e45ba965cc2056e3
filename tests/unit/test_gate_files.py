"""Reading shared objects and fat binaries: what they say, and no traceback whatever they say."""

import random
import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.elves import EXACT, FAMILY, PTX, Elf, container, entry, gpu
from verlstack.errors import PinsError
from verlstack.extension import elf_file, elf_symbols, fatbin, mangled, system
from verlstack.extension.elf_file import BadElfError
from verlstack.extension.elf_symbols import Need, Symbol
from verlstack.extension.fatbin import BadFatbinError, Code

RICH = Elf(
    needed=("libc10.so", "libc.so.6"),
    undefined=("plain", ("memcpy", "libc.so.6", "GLIBC_2.14"), ("cerr", "libstdc++.so.6", "GLIBCXX_3.4")),
    weak=("perhaps",),
    defined=("given", "_Z5givenv"),
    hidden=("secret",),
    versions=("demo_1", "demo_2"),
    weak_needs=(("libc.so.6", "GLIBC_2.99"),),
    fatbin=gpu(80, 90),
)


@pytest.mark.parametrize("gnu", [False, True])
@pytest.mark.parametrize("stripped", [False, True])
def test_what_the_loader_sees(gnu, stripped):
    elf = Elf(**{**vars(RICH), "gnu": gnu, "stripped": stripped})
    found = elf_symbols.read(elf.to_bytes())
    assert (found.machine, found.kind) == (62, 3)
    assert found.needed == ("libc10.so", "libc.so.6")
    assert found.undefined == (
        Symbol(name="plain"),
        Symbol(name="memcpy", version="GLIBC_2.14", library="libc.so.6"),
        Symbol(name="cerr", version="GLIBCXX_3.4", library="libstdc++.so.6"),
    )
    assert found.defined == {"given", "_Z5givenv"}
    assert found.needs == (
        Need(library="libc.so.6", version="GLIBC_2.14", symbol="memcpy"),
        Need(library="libstdc++.so.6", version="GLIBCXX_3.4", symbol="cerr"),
    )
    assert found.versions == {"demo_1", "demo_2"}


def test_undefined_symbols_are_seen_where_nothing_is_defined():
    """GNU ld's hash table counts nothing then; the section header does."""
    assert [s.name for s in elf_symbols.read(Elf(undefined=("a", "b"), gnu=True).to_bytes()).undefined] == ["a", "b"]


def test_sections_by_name():
    data = RICH.to_bytes()
    at, size = elf_file.sections(data)[".nv_fatbin"]
    assert data[at : at + size] == gpu(80, 90)
    assert elf_file.sections(Elf(stripped=True).to_bytes()) == {}


def test_a_section_that_lies():
    data = bytearray(RICH.to_bytes())
    at = data.rfind(struct.pack("<Q", len(gpu(80, 90))))  # the size in the last section header
    struct.pack_into("<Q", data, at, len(data))
    with pytest.raises(BadElfError, match="section reaches past the end"):
        elf_file.sections(bytes(data))


@pytest.mark.parametrize(
    "data",
    [b"", b"\x7fELF", b"#!/bin/sh\n" * 9, b"\x7fELF\x01\x01" + bytes(60), b"\x7fELF\x02\x02" + bytes(60)],
    ids=["empty", "magic", "script", "32-bit", "big-endian"],
)
def test_other_files(data):
    with pytest.raises(BadElfError):
        elf_symbols.read(data)
    with pytest.raises(BadElfError):
        elf_file.sections(data)


def _everything(data):
    """All that the gate reads of one file; True if it was taken for whole."""
    try:
        elf_symbols.read(data)
        sections = elf_file.sections(data)
        at, size = sections.get(".nv_fatbin", (0, len(data)))
        fatbin.containers(data, at, at + size)
    except (BadElfError, BadFatbinError):
        return False
    return True


@pytest.mark.parametrize("gnu", [False, True])
def test_cut_anywhere(gnu):
    data = Elf(**{**vars(RICH), "gnu": gnu}).to_bytes()
    assert _everything(data)
    assert not any(_everything(data[:n]) for n in range(len(data)))


@pytest.mark.parametrize("gnu", [False, True])
def test_every_byte_changed(gnu):
    data = Elf(**{**vars(RICH), "gnu": gnu}).to_bytes()
    for at in range(len(data)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            _everything(data[:at] + bytes([value]) + data[at + 1 :])


def test_words_changed_at_random():
    rng = random.Random(3)  # noqa: S311 - a fixed seed is the point
    data = RICH.to_bytes()
    words = [0, 1, 8, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1, len(data), len(data) - 8]
    for _ in range(4000):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            struct.pack_into("<Q", changed, rng.randrange(0, len(data) - 8, 4), rng.choice(words))
        _everything(bytes(changed))


@given(st.binary(max_size=400))
def test_noise(noise):
    _everything(b"\x7fELF\x02\x01" + noise)
    _everything(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(noise)) + noise)


def test_names_that_share_their_bytes_do_not_fill_the_memory():
    """Six thousand symbols that all are one name of 60 KB: 360 MB out of 200 KB."""
    data = bytearray(Elf(defined=(*(f"s{n}" for n in range(6000)), "x" * 60_000)).to_bytes())
    at = data.find(b"x" * 60_000)
    strings = data.find(b"\0s0\0s1\0")
    symbols = elf_file.sections(bytes(data))[".dynsym"]
    for n in range(1, symbols[1] // 24):
        struct.pack_into("<I", data, symbols[0] + 24 * n, at - strings)
    with pytest.raises(BadElfError, match="longer than"):
        elf_symbols.read(bytes(data))


LONG = "x" * 60_000


def test_needed_names_that_share_their_bytes():
    """Entries that all name one library of 60 KB; the table has room for 65536 of them: 4 GB."""
    with pytest.raises(BadElfError, match="longer than"):
        elf_symbols.read(Elf(needed=(LONG,) * 2000).to_bytes())


def test_symbols_versions_and_libraries_share_one_budget(monkeypatch):
    data = RICH.to_bytes()
    names = elf_symbols.read(data)
    of_symbols = sum(map(len, (*names.defined, "perhaps", *(s.name for s in names.undefined))))
    monkeypatch.setattr(elf_file, "_MOST_NAMES", of_symbols)
    with pytest.raises(BadElfError, match="longer than"):
        elf_symbols.read(data)


def test_versions_whose_names_share_their_bytes():
    elf = Elf(versions=(*(f"v{n}" for n in range(6000)), LONG))
    data = bytearray(elf.to_bytes())
    strings = data.find(b"\0v0\0v1\0")
    at = data.find(LONG.encode()) - strings
    first = data.find(struct.pack("<HHHHIII", 1, 0, 1, 1, 0, 20, 28))
    for n in range(6000):
        struct.pack_into("<I", data, first + 28 * n + 20, at)
    with pytest.raises(BadElfError, match="longer than"):
        elf_symbols.read(bytes(data))


def test_versions_wanted_that_share_their_bytes():
    """One row that claims 65535 versions; each of them lies where the first does."""
    data = bytearray(Elf(undefined=(("f", "lib.so", LONG),)).to_bytes())
    # vn_version, vn_cnt, vn_file, vn_aux, vn_next
    (row,) = re.finditer(rb"\x01\x00\x01\x00....\x10\x00{7}", data, re.DOTALL)
    struct.pack_into("<H", data, row.start() + 2, 0xFFFF)
    with pytest.raises(BadElfError, match="longer than"):
        elf_symbols.read(bytes(data))


def sectioned(count, name):
    """A file that is `count` section headers, all of one name."""
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 62, 1, 0, 0, 64, 0, 64, 56, 0, 64, count, 1)
    text = 64 + 64 * count
    rows = [struct.pack("<IIQQQQIIQQ", 0, 1, 0, 0, 0, 0, 0, 0, 0, 0)] * count
    rows[1] = struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, text, len(name) + 1, 0, 0, 0, 0)
    return header + b"".join(rows) + name + b"\0"


def test_sections_that_share_one_name():
    with pytest.raises(BadElfError, match="longer than"):
        elf_file.sections(sectioned(30_000, LONG.encode()))


def headed(count, size, kind=2):
    """A file that is `count` program headers of `size` bytes each."""
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 62, 1, 0, 64, 0, 0, 64, size, count, 64, 0, 0)
    dynamic = struct.pack("<qQ", 1, 0) * 4096
    return header + struct.pack("<IIQQQQQQ", kind, 6, 120, 120, 120, len(dynamic), 1, 8) * max(count, 1) + dynamic


def test_one_dynamic_section_and_no_more():
    elf_symbols.read(headed(0, 0))
    with pytest.raises(BadElfError, match="65535 dynamic sections"):
        elf_symbols.read(headed(0xFFFF, 56))


@pytest.mark.parametrize("size", [0, 8, 57])
def test_program_headers_of_another_size(size):
    with pytest.raises(BadElfError, match=f"are {size} bytes each"):
        elf_symbols.read(headed(2, size))


@pytest.mark.parametrize("count", [1 << 20, 0xFFFFFFFF])
def test_a_count_that_cannot_be_true(count):
    data = bytearray(Elf(defined=("a",)).to_bytes())
    at = data.find(struct.pack("<II", 1, 2))  # the old hash table: one bucket, two symbols
    struct.pack_into("<I", data, at + 4, count)
    with pytest.raises(BadElfError, match=f"claims {count} symbols"):
        elf_symbols.read(bytes(data))


# -- fat binaries


def held(data):
    return fatbin.containers(data, 0, len(data))


def test_entries_of_every_kind():
    data = container(
        entry(80),
        entry(90, flags=0x11 | EXACT),
        entry(120, flags=0x11 | FAMILY, header=112),
        entry(80, PTX, header=88),
        entry(75, kind=8),
    )
    ((codes, count),) = held(data).items()
    assert (sorted(map(str, codes)), count) == (["compute_80", "sm_120f", "sm_80", "sm_90a"], 1)


def test_containers_are_counted_and_padding_between_them_is_skipped():
    found = held(bytes(8) + gpu(80) + bytes(24) + gpu(80) + gpu(80, 90) + container() + bytes(8))
    assert {tuple(sorted(map(str, codes))): n for codes, n in found.items()} == {("sm_80",): 2, ("sm_80", "sm_90"): 1}


def test_a_magic_number_by_chance_is_passed_over():
    assert held(struct.pack("<IHHQ", 0xBA55ED50, 7, 16, 1 << 40) + gpu(86)) == held(gpu(86))
    assert held(container(entry(80, code=struct.pack("<I", 0xBA55ED50) * 4))) == held(gpu(80))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (struct.pack("<I", 0xBA55ED50), "cut short"),
        (gpu(80)[:-1], "past its section"),
        (container(entry(80)[:-1]), "past its end"),
        (container(b"x" * 63), "middle of an entry"),
        (container(struct.pack("<HHIQ", 2, 1, 0, 0) + bytes(48)), "past its end"),
        (container(struct.pack("<HHIQ", 2, 1, 64, 2**64 - 64) + bytes(48)), "past its end"),
        (b"".join(gpu(n) for n in range(1100)), "kinds of fat binaries"),
    ],
)
def test_fat_binaries_that_contradict_themselves(data, says):
    with pytest.raises(BadFatbinError, match=says):
        held(data)


@pytest.mark.parametrize(
    ("code", "runs", "runs_not"),
    [
        (Code(major=8, minor=0), ["8.0", "8.6", "8.9"], ["7.5", "9.0"]),
        (Code(major=8, minor=6), ["8.6", "8.9"], ["8.0"]),
        (Code(major=9, minor=0, variant="a"), ["9.0"], ["10.0", "8.0"]),
        (Code(major=12, minor=0, variant="f"), ["12.0", "12.1"], ["10.0"]),
        (Code(major=8, minor=0, ptx=True), ["8.0", "9.0", "12.0"], ["7.5"]),
        (Code(major=9, minor=0, variant="a", ptx=True), ["9.0"], ["10.0"]),
        (Code(major=10, minor=0, variant="f", ptx=True), ["10.0", "10.3"], ["12.0"]),
    ],
)
def test_what_runs_where(code, runs, runs_not):
    assert all(code.runs_on(*fatbin.capability(arch)) for arch in runs)
    assert not any(code.runs_on(*fatbin.capability(arch)) for arch in runs_not)


@pytest.mark.parametrize("text", ["", "8", "80", "sm_80", "8.0+PTX", "9.0a", "8.00"])
def test_no_compute_capability(text):
    with pytest.raises(ValueError, match="of the form"):
        fatbin.capability(text)


# -- names

CHECK_OLD = "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"
CHECK_NEW = "_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"


@pytest.mark.parametrize(
    ("name", "abi"),
    [
        (CHECK_OLD, "old"),
        (CHECK_NEW, "C++11"),
        ("_ZN2at4_ops10add_Tensor4callERKNS_6TensorES4_RKN3c106ScalarE", None),
        ("_ZN3c101fESt4listIiSaIiEE", "old"),
        ("_ZN3c101fENSt7__cxx114listIiSaIiEEE", "C++11"),
        ("_ZN3c102SsEv", None),  # a function called Ss
        ("_ZN3c101gILi8EEEvSs", "old"),  # a literal's digits are no length
        ("_ZN3c104listEv", None),
        ("memcpy", None),
    ],
)
def test_which_string_a_name_has(name, abi):
    assert mangled.strings(name) == abi


@pytest.mark.parametrize(
    "name",
    [CHECK_OLD, "_ZNK3c104Type3strEv", "_ZTVN5torch8autograd4NodeE", "_ZN3c10eqEii", "THPVariableClass",
     "_Z16THPVariable_WrapN2at10TensorBaseE", "_ZNSt6vectorIN2at6TensorESaIS1_EE3popEv"],
)  # fmt: skip
def test_torchs_names(name):
    assert mangled.of_torch(name)


@pytest.mark.parametrize("name", ["memcpy", "_ZNSs4_Rep10_M_destroyERKSaIcE", "_Z3fooi", "cudaMalloc", "THX", "c10"])
def test_other_names(name):
    assert not mangled.of_torch(name)


def test_the_runtimes_and_pythons_names():
    assert mangled.of_cuda_runtime("cudaMalloc")
    assert mangled.of_cuda_runtime("__cudaRegisterFatBinary")
    assert not mangled.of_cuda_runtime("cuInit")
    assert mangled.of_python("PyObject_Call")
    assert mangled.of_python("_Py_NoneStruct")
    assert not mangled.of_python("pthread_create")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (CHECK_NEW, "c10::detail::torchCheckFail"),
        ("_ZN3c105ErrorC1ENS_14SourceLocationESs", "c10::Error::Error"),
        ("_Z3fooi", "foo"),
        ("cudaMalloc", ""),
        ("_ZN", ""),
        ("_Z9foo", "foo"),
    ],
)
def test_a_name_to_read(name, said):
    assert mangled.readable(name) == said


@given(st.text(alphabet="_ZNSKLETIis0123456789c10atE", max_size=60))
def test_any_name(name):
    mangled.strings(name), mangled.readable(name), mangled.of_torch(name)


# -- what a base gives


@pytest.mark.parametrize(
    ("platform", "gives", "gives_not"),
    [
        (
            "x86_64-manylinux_2_35",
            ["GLIBC_2.35", "GLIBC_2.2.5", "GLIBCXX_3.4.30", "CXXABI_1.3.13", "GCC_12.0.0"],
            ["GLIBC_2.36", "GLIBC_ABI_DT_RELR", "GLIBC_PRIVATE", "GLIBCXX_3.4.31", "CXXABI_1.3.14", "GCC_13.0.0"],
        ),
        ("x86_64-manylinux_2_28", ["GLIBC_2.28", "GLIBCXX_3.4.24"], ["GLIBC_2.29", "GLIBCXX_3.4.25"]),
        ("x86_64-manylinux_2_36", ["GLIBC_ABI_DT_RELR"], []),
    ],
)
def test_what_a_platform_promises(platform, gives, gives_not):
    base = system.of_platform(platform)
    assert [base.gives(version) for version in gives] == [True] * len(gives)
    assert [base.gives(version) for version in gives_not] == [False] * len(gives_not)
    assert base.gives("libcudart.so.12") is None


@pytest.mark.parametrize("platform", ["x86_64-manylinux_2_4", "linux", "x86_64-musllinux_1_2"])
def test_no_platform(platform):
    with pytest.raises(PinsError, match="manylinux_2_35"):
        system.of_platform(platform)
