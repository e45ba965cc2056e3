"""The check `env`: each rule both ways, on made site-packages, ELF files, requirement files, scripts and dumps."""

from __future__ import annotations

import json
import re
import struct
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verldoctor import elf, env, envabi, envdists, envnames, envpaths, signatures, stackfile
from verldoctor.context import Context
from verldoctor.finding import Finding, rules
from verldoctor.installed import distributions, torch_build
from verldoctor.report import as_text
from verldoctor.stackfile import Image
from verldoctor.versions import table

if TYPE_CHECKING:
    from collections.abc import Callable

PINS = {"torch": "2.3.1", "transformers": "4.41.2", "verl": "0.2.0.post2"}
IMAGE = Image(name="cu121", cuda="12.1", python="", pins={**PINS, "flash-attn": "2.5.9.post1"})
WITHOUT = replace(IMAGE, left_out=frozenset({"flash-attn"}))
UNPINNED = replace(IMAGE, pins=PINS)
ROOT = Path(__file__).parents[2]
STACK = ("torch-2.3.1", "transformers-4.41.2", "verl-0.2.0.post2", "flash_attn-2.5.9.post1")
PYTHON = (sys.version_info.major, sys.version_info.minor)
OLD = b"_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"
NEW = b"_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"


def site(
    folder: Path, *names: str, version_py: str = "__version__ = '2.3.1+cu121'\ncuda: Optional[str] = '12.1'\n"
) -> Path:
    for name in names or STACK:
        (folder / f"{name}.dist-info").mkdir(parents=True, exist_ok=True)
    (folder / "torch" / "lib").mkdir(parents=True, exist_ok=True)
    (folder / "torch" / "version.py").write_text(version_py)
    return folder


def codes(findings: Any) -> list[str]:
    return [finding.code for finding in findings]


def check(path: Path, **context: Any) -> list[str]:
    return codes(env.check([path], Context(env={}, **context)))


def shared_object(defined: list[bytes], wanted: list[bytes], needed: list[bytes] = (), notes: bytes = b"") -> bytes:  # type: ignore[assignment]
    """The smallest ELF file with a dynamic section: old hash table of one bucket, no sections, no code."""
    strings = b"\0" + b"\0".join([*defined, *wanted, *needed, notes]) + b"\0"
    at = {name: strings.index(b"\0" + name + b"\0") + 1 for name in (*defined, *wanted, *needed)}
    symbols = [(0, 0, 0, 0), *((at[n], 0x12, 0, 1) for n in defined), *((at[n], 0x12, 0, 0) for n in wanted)]
    table = b"".join(struct.pack("<IBBHQQ", *row, 0, 0) for row in symbols)
    hashes = struct.pack(f"<III{len(symbols)}I", 1, len(symbols), len(symbols) - 1, 0, *range(len(symbols) - 1))
    places = [0x1000 + 2 * 56]
    for blob in (table, hashes, strings):
        places.append((places[-1] + len(blob) + 7) & ~7)
    tags = [(1, at[name]) for name in needed]
    tags += [(6, places[0]), (4, places[1]), (5, places[2]), (10, len(strings)), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in tags)
    size = places[3] + len(dynamic)
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    programs = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, size, size, 4096)
    programs += struct.pack("<IIQQQQQQ", 2, 4, places[3], places[3], 0, len(dynamic), len(dynamic), 8)
    data = bytearray(size)
    data[: len(header) + len(programs)] = header + programs
    for place, blob in zip(places, (table, hashes, strings, dynamic), strict=True):
        data[place : place + len(blob)] = blob
    return bytes(data)


def with_extension(folder: Path, module: bytes, name: str = "flash_attn_2_cuda.so") -> Path:
    place = site(folder)
    (place / "torch" / "lib" / "libc10.so").write_bytes(shared_object([OLD, b"_ZN3c105thereEv"], [b"_ZN3c105askedEv"]))
    (place / name).write_bytes(module)
    return place


def test_a_whole_stack_as_the_image_says_is_silent(tmp_path: Path) -> None:
    assert check(site(tmp_path), image=IMAGE) == []
    assert check(site(tmp_path)) == []


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (("torch-2.3.1", "verl-0.2.0.post2"), "ENV-MISSING"),
        (("torch-2.3.1", "transformers-4.42.0", "verl-0.2.0.post2"), "ENV-PIN"),
        ((*STACK, "transformers-4.41.0"), "ENV-TWICE"),
        ((*STACK[:3], "flash_attn-2.7.0.post2"), "ENV-PAIR"),
        (("torch-2.3.1", "transformers-4.41.2", "verl-0.3.0.post1"), "ENV-VERL-TORCH"),
        ((*STACK, "vllm-0.2.2"), "ENV-VLLM-OLD"),
        ((*STACK, "nvidia_nvjitlink_cu12-12.9.86"), "ENV-NVJITLINK"),
        ((*STACK, "carla-0.9.15"), "ENV-SIMULATOR"),
    ],
)
def test_distributions_that_do_not_belong_are_said(names: tuple[str, ...], code: str, tmp_path: Path) -> None:
    assert code in check(site(tmp_path, *names), image=IMAGE)


def test_verl_needs_flash_attn_unless_the_image_says_that_it_is_left_out(tmp_path: Path) -> None:
    place = site(tmp_path, *STACK[:3])
    assert check(place) == ["ENV-FLASH-ATTN"]
    assert check(place, image=IMAGE) == ["ENV-MISSING"]
    assert check(place, image=WITHOUT) == ["ENV-FLASH-LEFT-OUT"]
    assert check(place, image=UNPINNED) == ["ENV-FLASH-LEFT-OUT"]
    assert check(place, image=Image(problem="not JSON")) == ["ENV-FLASH-ATTN"]
    assert check(site(tmp_path / "later", "torch-2.11.0", "verl-0.9.1")) == []


def test_the_release_of_flash_attn_that_is_named_is_the_pins(tmp_path: Path) -> None:
    """The image's own, else cu121's, and nothing that is told names a third; of an image no pip install mends it."""
    pinned = tomllib.loads((ROOT / "constraints" / "stacks.toml").read_text())["stack"]["cu121"]["flash_attn"][
        "version"
    ]
    place, other = site(tmp_path, *STACK[:3]), replace(WITHOUT, pins={**PINS, "flash-attn": "2.6.1"})
    for image, right in ((None, pinned), (UNPINNED, pinned), (WITHOUT, "2.5.9.post1"), (other, "2.6.1")):
        (finding,) = env.check([place], Context(env={}, image=image))
        assert (finding.right, right in finding.fix) == (right, True)
        assert ("pip" in finding.fix) == (image is None)
    pairs = [row[5] for row in table("packages")["pairs"] if row[1] == "flash-attn"]
    told = " ".join([*pairs, *(s.fix for s in signatures.signatures())])
    assert set(re.findall(r"flash-attn(?:==| )([0-9.]+[a-z0-9.]*)", told)) == {pinned}


def test_what_the_image_lacks_is_not_said_to_go(tmp_path: Path) -> None:
    """Verl's trainers do not start there, and the verdict must not say that all goes."""
    (finding,) = env.check([site(tmp_path, *STACK[:3])], Context(env={}, image=WITHOUT))
    assert "do not start" in finding.message
    verdict = as_text([finding]).splitlines()[-1]
    assert verdict == "verldoctor: 0 fail, 1 warn, 0 unknown: goes, except for what the warnings name"


def test_the_switch_of_torch_compile_is_what_the_image_sets() -> None:
    off = replace(IMAGE, environment={"TORCH_COMPILE_DISABLE": "1"})
    for image, torch, expected in ((off, "2.11.0", ["ENV-COMPILE"]), (IMAGE, "2.3.1", []), (None, "2.11.0", [])):
        assert codes(envpaths.judge({}, torch, here=False, image=image)) == expected


SAID = {"format": 1, "stack": "cu121", "cuda": "12.1", "pins": {**PINS, "Flash_Attn": "2.5.9.post1"}}
SAID |= {"left_out": ["apex"], "environment": {"TORCH_COMPILE_DISABLE": "1"}}


@pytest.fixture(params=["in the variable", "in a file"])
def live(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], list[str]]:
    """A function: the codes of `env` on this Python, where the image says such a text of itself."""
    place, file = site(tmp_path / "site"), tmp_path / "stack.json"
    monkeypatch.setattr(env, "search_path", lambda: [place])

    def judged(text: str) -> list[str]:
        file.write_text(text)
        said = text if request.param == "in the variable" and text.startswith("{") else str(file)
        variables = {"VERLSTACK_STACK": said, "TORCH_COMPILE_DISABLE": "1"}
        found = env.check([], Context(env=variables, image=stackfile.read(variables)))
        assert all(f.subject in (str(file), "VERLSTACK_STACK") for f in found if f.code == "ENV-STACK-FILE")
        return codes(found)

    return judged


def test_what_the_image_says_of_itself_is_compared(live: Callable[[str], list[str]]) -> None:
    assert live(json.dumps(SAID)) == []
    assert live(json.dumps({**SAID, "pins": {**PINS, "Flash_Attn": "2.6.3"}})) == ["ENV-PIN"]
    assert live(json.dumps({**SAID, "pins": {**PINS, "apex": "1.0"}})) == []  # left out
    assert live(json.dumps({**SAID, "pins": {**PINS, "numpy": "1.0"}})) == ["ENV-MISSING"]


@pytest.mark.parametrize(
    "broken", ["", "[]", "{}", '{"format": 2}', "[" * 100_000, '{"a":' * 30_000, "{", '{"format": '],
    ids=lambda text: repr(text[:12]),
)  # fmt: skip
def test_what_it_says_in_no_form_that_is_known_is_a_finding(live: Callable[[str], list[str]], broken: str) -> None:
    assert live(broken) == ["ENV-STACK-FILE"]


def test_parts_of_another_type_count_as_absent(live: Callable[[str], list[str]]) -> None:
    assert live('{"format": 1, "pins": [], "left_out": 7, "environment": {"A": 1}, "cuda": 12}') == []


def test_an_image_that_says_nothing_or_names_no_file(tmp_path: Path) -> None:
    assert stackfile.read({}) is None
    assert stackfile.read({"VERLSTACK_STACK": ""}) is None
    for name in (str(tmp_path / "none"), str(tmp_path), "a\0b"):
        read = stackfile.read({"VERLSTACK_STACK": name})
        assert read is not None
        assert read.problem
        assert stackfile.subject({"VERLSTACK_STACK": name}) == name.replace("\0", "\\x00")


def test_an_environment_that_is_no_utf8_is_no_traceback() -> None:
    bad = b'{"format": 1, "stack": "\xff", "pins": {"torch\xff": "\xff"}}'.decode(errors="surrogateescape")
    read = stackfile.read({"VERLSTACK_STACK": bad})
    assert read is not None
    assert [f.code for f in envdists.judge([], read)] == ["ENV-MISSING"]
    assert all(f.subject.isascii() and f.right.isascii() for f in envdists.judge([], read))


def test_pairs_that_work_are_silent(tmp_path: Path) -> None:
    good = ("peft-0.13.2", "click-8.5.1", "ray-2.44.1", "datasets-2.19.2", "pyarrow-25.0.1")
    assert check(site(tmp_path, *STACK, *good)) == []
    versions = {
        "peft": "0.21.2",
        "transformers": "4.41.2",
        "click": "8.3.0",
        "ray": "2.10.0",
        "datasets": "2.14.4",
        "pyarrow": "21.0.0",
    }
    found = list(envdists.judge_versions(versions, ""))
    assert [finding.subject for finding in found] == ["peft", "datasets", "click"]
    assert "EncoderDecoderCache" in found[0].message


def test_a_second_place_in_front_shadows(tmp_path: Path) -> None:
    front, behind = site(tmp_path / ".local" / "site-packages", "torch-2.9.0"), site(tmp_path / "venv", "torch-2.3.1")
    dists = distributions([front, behind])
    found = list(envdists.judge(dists, None))
    assert codes(found) == ["ENV-SHADOW"]
    assert found[0].fix == "export PYTHONNOUSERSITE=1"
    assert codes(envdists.judge(distributions([behind]), None)) == []
    assert codes(envpaths.user_site(dists, {})) == ["ENV-USER-SITE"]
    assert codes(envpaths.user_site(dists, {"PYTHONNOUSERSITE": "1"})) == []
    assert codes(envpaths.user_site(distributions([behind]), {})) == []


def test_torch_is_judged_by_its_own_word(tmp_path: Path) -> None:
    assert torch_build(site(tmp_path)) == {"__version__": "2.3.1+cu121", "cuda": "12.1"}
    assert check(site(tmp_path, version_py="__version__ = '2.3.1+cpu'\ncuda: Optional[str] = None\n")) == [
        "ENV-TORCH-CPU"
    ]
    site(tmp_path, version_py="__version__ = '2.3.1+cu118'\ncuda: Optional[str] = '11.8'\n")
    assert check(tmp_path, image=IMAGE) == ["ENV-CUDA"]


@pytest.mark.parametrize(
    ("name", "form"),
    [("freeze.txt", "torch=={}\nverl==0.2.0.post2\n"), ("e.json", '{{"packages": {{"torch": "{}"}}}}')],
)
def test_a_listed_torch_tells_by_its_local_part_that_it_has_no_cuda(tmp_path: Path, name: str, form: str) -> None:
    for version, said in (("2.3.1+cpu", ["ENV-TORCH-CPU"]), ("2.3.1+cu121", []), ("2.3.1", [])):
        (tmp_path / name).write_text(form.format(version))
        assert [code for code in check(tmp_path / name) if code != "ENV-COMPILE"] == said
    (tmp_path / "none.json").write_text('{"packages": {}}')
    assert "ENV-FILE" in check(tmp_path / "none.json")


def test_python_is_judged_by_the_image_and_by_torchs_wheels(tmp_path: Path) -> None:
    venv = site(tmp_path / "lib" / "python3.10" / "site-packages").parents[2]
    assert check(venv, image=replace(IMAGE, python="3.10")) == []
    assert check(venv, image=replace(IMAGE, python="3.11")) == ["ENV-PYTHON"]
    newer = site(tmp_path / "new" / "lib" / "python3.13" / "site-packages").parents[2]
    assert check(newer) == ["ENV-PYTHON"]


def test_a_package_in_the_current_directory_is_said(tmp_path: Path) -> None:
    taken = envdists.first_of(distributions([site(tmp_path / "site")]))
    (tmp_path / "verl" / "version").mkdir(parents=True)
    (tmp_path / "verl" / "__init__.py").touch()
    (tmp_path / "verl" / "version" / "version").write_text("0.4.0\n")
    assert codes(envpaths.current_directory(taken, tmp_path)) == ["ENV-CWD"]
    (tmp_path / "verl" / "version" / "version").write_text("0.2.0.post2\n")
    assert codes(envpaths.current_directory(taken, tmp_path)) == []


@pytest.mark.parametrize(
    ("variables", "torch", "expected"),
    [
        ({}, "2.3.1", ["ENV-COMPILE"]),
        ({"TORCH_COMPILE_DISABLE": "1"}, "2.3.1", []),
        ({"TORCH_COMPILE_DISABLE": "0"}, "2.3.1", ["ENV-COMPILE-VALUE"]),
        ({}, "2.4.0", []),
        ({"TORCH_COMPILE_DISABLE": "0"}, "2.4.0", ["ENV-COMPILE-VALUE"]),
        ({}, "", []),
        ({"LD_LIBRARY_PATH": "/usr/local/cuda/lib64/stubs:/lib"}, "", ["ENV-STUBS"]),
        ({"LD_LIBRARY_PATH": "/usr/local/cuda-12.1/compat"}, "", ["ENV-COMPAT"]),
        ({"LD_LIBRARY_PATH": "/usr/lib:/opt/compat"}, "", []),
    ],
)
def test_variables(variables: dict[str, str], torch: str, expected: list[str]) -> None:
    assert codes(envpaths.judge(variables, torch, here=False, image=None)) == expected


def test_library_paths_of_this_machine_are_looked_at(tmp_path: Path) -> None:
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    variables = {"LD_LIBRARY_PATH": f"{stubs}:{tmp_path}"}
    assert codes(envpaths.judge(variables, "", here=True, image=None)) == ["ENV-STUBS-PATH"]
    (stubs / "libcuda.so.1").touch()
    found = list(envpaths.judge(variables, "", here=True, image=None))
    assert codes(found) == ["ENV-STUBS"]
    assert found[0].fix == f"export LD_LIBRARY_PATH={tmp_path}"
    (tmp_path / "libcudnn.so.8").touch()
    assert codes(envpaths.judge(variables, "", here=True, image=None)) == ["ENV-STUBS", "ENV-LDPATH-CUDA"]


@pytest.mark.parametrize(
    ("wanted", "needed", "expected"),
    [
        ([OLD], [b"libc10.so"], []),
        ([b"_ZN3c105thereEv", b"printf"], [b"libc10.so"], []),
        ([NEW], [b"libc10.so"], ["ENV-ABI"]),
        ([b"_ZN3c105askedEv"], [b"libc10.so"], ["ENV-SYMBOL"]),  # libc10 asks for it too, which is no definition
        ([b"_ZN3c104goneEv"], [b"libc10.so"], ["ENV-SYMBOL"]),
        ([OLD], [b"libtorch_cuda.so"], ["ENV-LIB"]),
    ],
)
def test_compiled_modules_against_torch(
    wanted: list[bytes], needed: list[bytes], expected: list[str], tmp_path: Path
) -> None:
    assert check(with_extension(tmp_path, shared_object([], wanted, needed))) == expected


def test_compiled_modules_for_another_python_or_a_newer_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = with_extension(tmp_path, shared_object([], [], notes=b"GLIBC_2.34"), "ext.cpython-310-x86_64-linux-gnu.so")
    monkeypatch.setattr(envabi, "system_glibc", lambda: 31)
    assert codes(envabi.judge(place, "2.3.1", (3, 11))) == ["ENV-EXT-PYTHON"]
    assert codes(envabi.judge(place, "2.3.1", (3, 10))) == ["ENV-GLIBC"]
    monkeypatch.setattr(envabi, "system_glibc", lambda: 34)
    assert codes(envabi.judge(place, "2.3.1", (3, 10))) == []


def test_the_hash_table_of_a_real_library_is_read() -> None:
    real = next(
        (path for path in map(Path, ("/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6")) if path.exists()), None
    )
    if real is None:
        pytest.skip("no glibc at the usual places")
    library = elf.load(real)
    assert elf.defines(library, b"printf")
    assert elf.defines(library, b"malloc")
    assert not elf.defines(library, b"printf_that_nobody_wrote")
    assert elf.newest_glibc(library) > 2


@given(st.binary(max_size=400), st.integers(0, 900), st.integers(0, 255))
def test_no_shared_object_breaks_the_reader(tmp_path: Path, junk: bytes, at: int, byte: int) -> None:
    whole = bytearray(shared_object([OLD], [NEW], [b"libc10.so"]))
    whole[min(at, len(whole) - 1)] = byte
    file = tmp_path / "x.so"
    for data in (junk, b"\x7fELF\x02\x01" + junk, bytes(whole), bytes(whole[: at * 5])):
        file.write_bytes(data)
        try:
            library = elf.load(file)
        except (ValueError, OSError):
            continue
        assert isinstance(elf.undefined(library), list)
        assert elf.defines(library, b"x") in (True, False)
        assert elf.newest_glibc(library) >= 0


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from verl import RLTrainer", "RLTrainer"),
        ("from verl.trainer import (\n    DataProto,\n    RLTrainer)", "RLTrainer"),
        ("import verl.trainer.fsdp_trainer as t", "verl.trainer.fsdp_trainer"),
        ("python -m verl.trainer.fsdp_trainer", "verl.trainer.fsdp_trainer"),
        ("pip install -e .[fsdp]", "[fsdp]"),
        ("pip install 'verl[gpu,fsdp]'", "[fsdp]"),
        ("from verl.utils.hf_loader import load", "verl.utils.hf_loader"),
        ("from verl.workers import FSDPConfig", "FSDPConfig"),
        ("from verl.data import get_batch", "get_batch"),
        ("git clone https://github.com/verl-org/verl", "verl-org/verl"),
        ("pip install verl==0.2.3", "v0.2.3"),
        ("pip install git+https://github.com/verl-project/verl.git@v0.2.3", "v0.2.3"),
        ("git clone -b v0.2.3 https://github.com/volcengine/verl", "v0.2.3"),
        ("from verl.workers.fsdp_wrokers import X", "verl.workers.fsdp_wrokers"),
    ],
)
def test_names_that_verl_never_had_are_said_with_the_real_ones(text: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / "guide.sh"
    file.write_text(f"# a guide\n{text}\n")
    found = [finding for finding in env.check([file], Context(env={})) if finding.measured == name]
    assert [finding.code for finding in found] == ["ENV-MODULE" if "wrokers" in text else "ENV-NAME"]
    assert found[0].right
    assert found[0].subject.endswith(":2")


@pytest.mark.parametrize(
    "text",
    [
        "from verl.trainer.ppo.ray_trainer import RayPPOTrainer",
        "from verl import DataProto\nclass RLTrainer: ...",
        "import verl.utils.fs",
        "python -m verl.trainer.main_ppo",
        "pip install -e .[gpu]",
        "pip install verl==0.2.0.post2 other==0.2.3",
        "FSDPConfig = 1; get_batch()",
        "overl[fsdp",
    ],
)
def test_real_names_are_silent(text: str, tmp_path: Path) -> None:
    file = tmp_path / "guide.py"
    file.write_text(text)
    assert check(file) == []


def test_requirement_files_are_judged_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("torch==2.3.1\nTensorDict==0.5.0 # x\ngym[box2d]==0.26\n-r other.txt\n")
    found = env.check([file], Context(env={}))
    assert [finding.code for finding in found] == ["ENV-PAIR", "ENV-SIMULATOR", "ENV-SIMULATOR"]
    assert "box2d" in found[1].message
    file.write_text("torch==2.3.1\ntensordict==0.4.0\n")
    assert check(file) == []


def test_env_dumps(tmp_path: Path) -> None:
    file = tmp_path / "env.json"
    dump: dict[str, Any] = {"python": "3.13.1", "packages": {"torch": "2.3.1"}, "env": {"TORCH_COMPILE_DISABLE": "1"}}
    file.write_text(json.dumps(dump))
    assert check(file) == ["ENV-PYTHON"]
    file.write_text(json.dumps({**dump, "python": "3.10.13"}))
    assert check(file) == []


def test_a_python_without_torch_and_verl_cannot_be_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(env, "search_path", lambda: [tmp_path])
    assert codes(env.check([], Context(env={}))) == ["ENV-ABSENT"]
    assert codes(env.check([], Context(env={}, image=IMAGE))).count("ENV-MISSING") == 4
    monkeypatch.setattr(env, "search_path", lambda: [site(tmp_path)])
    if PYTHON <= (3, 12):
        assert codes(env.check([], Context(env={"TORCH_COMPILE_DISABLE": "1"}))) == []


@pytest.mark.parametrize("content", [b"", b"\0binary", b"\0" * 100, b"x" * 5_000_000])
def test_nonsense_is_an_unknown_finding(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "x.txt"
    file.write_bytes(content)
    assert check(file) == ["ENV-FILE"]
    assert check(tmp_path) == ["ENV-FILE"]
    (tmp_path / "x.json").write_text("{" * 100_000)
    assert check(tmp_path / "x.json") == ["ENV-FILE"]


def test_every_rule_is_tested_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [code for code in rules("env") if f'"{code}"' not in text] == []


@given(st.text(alphabet="verl.[]fsdp=0123 @\n'(),importfrom-\x1b", max_size=300) | st.binary(max_size=300))
def test_no_text_breaks_the_check(tmp_path: Path, text: str | bytes) -> None:
    for name in ("x.txt", "x.json", "x.py"):
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        found = env.check([tmp_path / name], Context(env={}))
        assert all(isinstance(finding, Finding) and "\x1b" not in f"{finding}" for finding in found)


def test_long_lines_take_linear_time() -> None:
    hostile = "from verl import " + "a, " * 300_000 + "verl " * 100_000 + "-b " * 100_000
    assert list(envnames.judge(hostile, "x", Context().stack)) == []
    assert envnames.requirements(hostile) is not None
