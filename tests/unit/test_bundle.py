"""The wheels that the tool itself runs on, for a bundle: had once through pip, then kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from verlstack import bundle, shell
from verlstack.cache import Cache
from verlstack.errors import FetchError
from verlstack.progress import Silent
from verlstack.workshop import Workshop


class Pip:
    """Stands for `pip download`, and counts its calls."""

    def __init__(self, returncode=0):
        self.returncode, self.calls = returncode, []

    def __call__(self, args, *, env):
        self.calls.append(list(args))
        if not self.returncode:
            folder = Path(args[-1])
            folder.mkdir()
            (folder / "rich-1-py3-none-any.whl").write_bytes(b"wheel")
        stderr = "ERROR: http://user:secret@index.example/simple/ says no" if self.returncode else ""
        return shell.Result(args=tuple(map(str, args)), returncode=self.returncode, stdout="", stderr=stderr)


@pytest.fixture
def shop(tmp_path):
    with Cache(tmp_path / "cache").use() as cache:
        (tmp_path / "constraints").mkdir()
        (tmp_path / "constraints" / "tools.txt").write_text("rich==1 --hash=sha256:0\n")
        yield Workshop(
            constraints=tmp_path / "constraints", smoke_tests=tmp_path, cache=cache, env={"PIP_INDEX_URL": "x"},
            progress=Silent(), workers=1,
        )  # fmt: skip


def offline(shop):
    import dataclasses

    return dataclasses.replace(shop, offline=True)


def test_they_are_fetched_once_by_hash_as_wheels_alone(shop):
    pip = Pip()
    for _ in range(2):
        assert [path.name for path in bundle._tool_wheels(shop, pip)] == ["rich-1-py3-none-any.whl"]
    (words,) = pip.calls
    assert {"--require-hashes", "--no-deps", "--only-binary"} <= set(words)
    assert bundle._tool_wheels(offline(shop), Pip(1))


def test_other_tools_are_fetched_again(shop):
    bundle._tool_wheels(shop, Pip())
    (shop.constraints / "tools.txt").write_text("rich==2 --hash=sha256:0\n")
    pip = Pip()
    bundle._tool_wheels(shop, pip)
    assert len(pip.calls) == 1


def test_they_cannot_be_had(shop):
    with pytest.raises(FetchError, match="says no") as caught:
        bundle._tool_wheels(shop, Pip(1))
    assert "secret" not in caught.value.what
    with pytest.raises(FetchError, match="not in the cache"):
        bundle._tool_wheels(offline(shop), Pip())


def test_a_checkout_without_pinned_tools(shop):
    (shop.constraints / "tools.txt").unlink()
    assert bundle._tool_wheels(shop, Pip()) == []
