"""A compiled wheel into the cache: looked at before anything is fetched, and kept as it was when it passed."""

import hashlib
from types import SimpleNamespace

import pytest

from support.wheels import Wheel
from verlstack.cache import Cache
from verlstack.errors import WheelError
from verlstack.extension import add, gate, key
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
