"""A compiled wheel into the cache: looked at before anything is fetched, and kept as it was when it passed."""

import errno
import hashlib
import json
import os
from types import SimpleNamespace

import pytest

from support.wheels import Wheel
from verlstack.cache import Cache
from verlstack.errors import UsageError, WheelError
from verlstack.extension import add, gate, key, shelf, supply
from verlstack.progress import Silent
from verlstack.workshop import Workshop

STACK = SimpleNamespace(name="demo", platform="x86_64-manylinux_2_35")
SOURCE = SimpleNamespace(project="demo", version="1.0")
LOCK = SimpleNamespace(python="3.10", wheels=(), extension=SimpleNamespace(source=SOURCE, cuda_archs=(), wheel=None))
FACTS = key.Facts(
    source_sha256="a" * 64, torch="2", cuda="12.1", python="3.10", cxx11_abi=False, cuda_archs=(), flags=(), compiler=""
)


@pytest.fixture
def shop(tmp_path, monkeypatch):
    monkeypatch.setattr(key, "facts", lambda *_: FACTS)
    with Cache(tmp_path / "cache").use() as cache:
        yield Workshop(
            constraints=tmp_path, smoke_tests=tmp_path, cache=cache, env={}, progress=Silent(), workers=1, offline=True
        )


@pytest.mark.parametrize("data", [b"", b"an HTML page", b"PK\x05\x06" + bytes(18)], ids=["empty", "page", "no-file"])
def test_what_is_no_wheel_is_refused_before_anything_is_fetched(shop, tmp_path, monkeypatch, data):
    def fetch(*_):
        raise AssertionError("2.6 GB were fetched")

    monkeypatch.setattr(Workshop, "fetch", fetch)
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    path.write_bytes(data)
    with pytest.raises(WheelError) as e:
        add.add(path, STACK, LOCK, shop)
    assert e.value.where == str(path)
    assert not list(shop.cache.tmp.iterdir())


def test_what_was_gated_is_what_is_kept(shop, tmp_path, monkeypatch):
    """Somebody puts other bytes into the wheel's place while it is gated."""
    path = Wheel(name="demo", version="1.0").write(tmp_path)
    good = path.read_bytes()

    def require(wheel, _):
        assert wheel.read_bytes() == good
        path.write_bytes(b"other")

    monkeypatch.setattr(gate, "require", require)
    note = add.add(path, STACK, LOCK, shop)
    assert (note.sha256, note.size) == (hashlib.sha256(good).hexdigest(), len(good))
    assert shop.cache.file(note.sha256, note.wheel).read_bytes() == good


@pytest.fixture
def passes(monkeypatch):
    """The gate lets everything through, and facts hold the compiler."""
    monkeypatch.setattr(supply, "require", lambda *_: None)
    monkeypatch.setattr(key, "facts", lambda *words: key.Facts(**{**vars_of(FACTS), "compiler": words[2]}))


def vars_of(facts):
    return {name: getattr(facts, name) for name in facts.__dataclass_fields__}


def told(wheel, **more):
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    table = {"sha256": sha256, "compiler": "nvcc 12.4.131, g++ 12.2.0", "seconds": 9, "peak_mib": 5, "jobs": 2} | more
    wheel.with_name("compile.json").write_text(json.dumps(table))


@pytest.mark.parametrize(
    ("more", "compiler"),
    [
        ({}, "nvcc 12.4.131, g++ 12.2.0"),
        ({"sha256": "0" * 64}, "unknown"),
        ({"sha256": None}, "unknown"),
        ({"compiler": "nvcc\n[stack]"}, "unknown"),
        ({"compiler": "n" * 101}, "unknown"),
    ],
    ids=["its own", "of another wheel", "of no wheel", "no label", "too long"],
)
def test_a_compiler_is_claimed_for_the_wheel_it_is_told_of_alone(shop, tmp_path, passes, more, compiler):
    wheel = Wheel(name="demo", version="1.0").write(tmp_path)
    told(wheel, **more)
    note = add.add(wheel, STACK, LOCK, shop)
    assert note.facts.compiler == compiler
    assert note.cost.jobs == (2 if compiler != "unknown" else None)


def test_of_two_notes_on_one_wheel_the_one_that_knows_counts(shop, tmp_path, passes):
    wheel = Wheel(name="demo", version="1.0").write(tmp_path)
    first = add.add(wheel, STACK, LOCK, shop)
    told(wheel)
    add.add(wheel, STACK, LOCK, shop)
    assert len(shelf.all_of(shop.cache)) == 2
    assert add.named(first.sha256[:12], STACK, LOCK, shop).facts.compiler.startswith("nvcc")


def test_a_wheel_that_may_not_be_read_is_no_fault_of_the_disk(shop, tmp_path, monkeypatch):
    wheel = Wheel(name="demo", version="1.0").write(tmp_path)
    real = os.open

    def refuse(path, *words, **more):
        if path == wheel:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *words, **more)

    monkeypatch.setattr("verlstack.reading.os.open", refuse)
    with pytest.raises(UsageError, match="cannot be read: Permission denied") as e:
        add.add(wheel, STACK, LOCK, shop)
    assert e.value.where == str(wheel)
