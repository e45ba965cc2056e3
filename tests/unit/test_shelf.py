"""Keys of compiled wheels, and what the cache knows of them."""

import dataclasses
import json
from pathlib import Path

import pytest

from support.wheels import Wheel
from verlstack.cache import Cache
from verlstack.errors import WheelError
from verlstack.extension import key, shelf, torch_abi
from verlstack.extension.key import Facts
from verlstack.extension.shelf import Cost, Shelved

ROOT = Path(__file__).parents[2]
FACTS = Facts(
    source_sha256="a" * 64,
    torch="2.3.1",
    cuda="12.1",
    python="3.10",
    cxx11_abi=False,
    cuda_archs=("8.0", "9.0"),
    flags=key.FLAGS,
    compiler="nvcc 12.4.131, g++ 13.3.0",
)
NOTE = Shelved(
    wheel="fa-1-py3-none-any.whl",
    sha256="b" * 64,
    size=5,
    facts=FACTS,
    cost=Cost(seconds=7200.0, peak_mib=5500.0, jobs=2),
)
CHANGES = {
    "source_sha256": "b" * 64,
    "torch": "2.3.0",
    "cuda": "12.4",
    "python": "3.11",
    "cxx11_abi": True,
    "cuda_archs": ("8.0",),
    "flags": (),
    "compiler": "nvcc 12.1.105, g++ 13.3.0",
}


def test_every_fact_decides_the_key():
    assert set(CHANGES) == {f.name for f in dataclasses.fields(Facts)}
    keys = {dataclasses.replace(FACTS, **{name: value}).key for name, value in CHANGES.items()}
    assert len(keys | {FACTS.key}) == len(CHANGES) + 1


def test_the_key_is_the_same_tomorrow():
    """Written down: a wheelhouse is full of them."""
    assert FACTS.key == "fc8061c1a9c978869342ab242d4a81d40b3a558ec53d5ba2aed40ff2e73799f5"


def test_the_flags_are_those_of_the_compile_stage():
    scripts = "".join((ROOT / "docker" / name).read_text() for name in ("nvcc.py", "flash-attn.sh"))
    for flag in key.FLAGS:
        assert flag in scripts


def put(cache, note=NOTE):
    path = cache.file(note.sha256, note.wheel)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"wheel")
    shelf.put(note, cache)
    return cache.root / "compiled" / note.facts.key / f"{note.sha256}.json"


def test_what_is_put_is_found(tmp_path):
    cache = Cache(tmp_path)
    assert shelf.all_of(cache) == []
    put(cache)
    assert shelf.all_of(cache) == [NOTE]


def test_two_compiles_of_one_key_are_both_kept(tmp_path):
    """Nvcc does not promise the same bytes."""
    cache, other = Cache(tmp_path), dataclasses.replace(NOTE, sha256="c" * 64)
    put(cache)
    put(cache, other)
    assert shelf.all_of(cache) == [NOTE, other]


def test_any_compiler_fits_other_facts_do_not(tmp_path):
    cache = Cache(tmp_path)
    put(cache)
    for name, value in CHANGES.items():
        fits = shelf.fitting(dataclasses.replace(FACTS, **{name: value}), cache) == [NOTE]
        assert fits is (name in {"flags", "compiler"})


def test_a_note_without_its_wheel_does_not_count(tmp_path):
    cache = Cache(tmp_path)
    put(cache)
    cache.file(NOTE.sha256, NOTE.wheel).unlink()
    assert shelf.all_of(cache) == []


def edited(**fields):
    return lambda table: table | fields


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: None,
        lambda _: [],
        lambda _: "text",
        edited(facts=None),
        edited(facts={}),
        edited(cost=None),
        edited(cost={"hours": 1}),
        edited(more=1),
        edited(wheel="../../x.whl"),
        edited(wheel=3),
        edited(sha256="c" * 64),
        lambda table: table | {"facts": table["facts"] | {"torch": "2.4.0"}},
        lambda table: table | {"facts": table["facts"] | {"cuda_archs": 8}},
        lambda table: table | {"padding": "x" * (1 << 17)},
    ],
)
def test_a_damaged_note_is_removed_and_no_harm_done(tmp_path, damage):
    cache = Cache(tmp_path)
    path = put(cache)
    path.write_text(json.dumps(damage(json.loads(path.read_text()))))
    assert shelf.all_of(cache) == []
    assert not path.exists()
    assert cache.file(NOTE.sha256, NOTE.wheel).exists()


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000])
def test_a_note_that_is_no_json(tmp_path, data):
    path = put(Cache(tmp_path))
    path.write_bytes(data)
    assert shelf.all_of(Cache(tmp_path)) == []


CMAKE = 'if(TRUE)\n  set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI={}")\nendif()\n'
PLACE = "torch/share/cmake/Torch/TorchConfig.cmake"


@pytest.mark.parametrize(("flag", "new"), [("0", False), ("1", True)])
def test_torch_tells_its_abi(tmp_path, flag, new):
    wheel = Wheel(name="torch", files={PLACE: CMAKE.format(flag).encode()}).write(tmp_path)
    assert torch_abi.cxx11(wheel) is new


@pytest.mark.parametrize(
    "files", [{"torch/x": b""}, {PLACE: b""}, {PLACE: CMAKE.format("2").encode()}, {PLACE: b" " * (1 << 21)}]
)
def test_a_torch_that_does_not_tell(tmp_path, files):
    with pytest.raises(WheelError, match="C\\+\\+ ABI"):
        torch_abi.cxx11(Wheel(name="torch", files=files).write(tmp_path))
