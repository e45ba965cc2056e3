"""The tiny stack for every integration test: locked once a session, forked for each test."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

from support import debian_programs
from support.bad_server import BadServer
from support.fake_registry import OCI_ZSTD, Fake, tarball
from support.real_registry import Real
from support.synthetic import CONSTRAINTS, PYTHON, VERL, WHEELS, Tiny, project, sdist, serve
from support.writable_registry import Writable
from verlstack import lockfile, pins, upload
from verlstack.cache import Cache
from verlstack.errors import FetchError
from verlstack.fetch import fetch
from verlstack.index import configured
from verlstack.progress import Silent
from verlstack.workshop import Workshop

VERSION_HEADER = f'#define PY_VERSION  "{sys.version.split()[0]}"\n'.encode()


@pytest.fixture(scope="session")
def build_tools(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The real pip, setuptools and wheel of the default stack, from the configured index."""
    stack = pins.load(CONSTRAINTS / "stacks.toml", "cu121")
    tools = lockfile.load(CONSTRAINTS, stack).build_tools
    with Cache(tmp_path_factory.mktemp("tools")).use() as cache:
        try:
            index = configured(os.environ)
            files = fetch(tools, cache=cache, index=index, offline=False, progress=Silent(), env=os.environ)
        except FetchError as e:
            pytest.skip(f"the package index does not give the build tools: {e.what}")
    return {tool.project: files[tool.sha256] for tool in tools}


@pytest.fixture(scope="session")
def origin(tmp_path_factory: pytest.TempPathFactory, build_tools: dict[str, Path]):
    """The tiny stack, with its index and registry running, and locked."""
    registry = Fake()
    base = registry.image(
        [(OCI_ZSTD, tarball(**{
            f"usr/local/bin/python{PYTHON}": b"elf",
            f"usr/local/include/python{PYTHON}/Python.h": b"",
            f"usr/local/include/python{PYTHON}/patchlevel.h": VERSION_HEADER,
            "usr/bin/gcc": b"elf",
            "etc/os-release": b'ID=debian\nVERSION_ID="12"\n',
        }))]
    )  # fmt: skip
    source = sdist(VERL)
    root = tmp_path_factory.mktemp("origin")
    versions = {name: path.name.split("-")[1] for name, path in build_tools.items()}
    project(root, sdist_sha256=hashlib.sha256(source).hexdigest(), tools=versions)
    with BadServer() as index:
        serve(index, {w.name: {w.filename: w.to_bytes()} for w in WHEELS})
        serve(index, {"verl": {"verl-0.2.0.post2.tar.gz": source}})
        serve(index, {name: {path.name: path.read_bytes()} for name, path in build_tools.items()})
        stack = Tiny(root=root, cache=root / "cache", base=f"registry:{base}", index=index)
        stack.run("lock")
        yield stack
    registry.close()


@pytest.fixture
def tiny(origin: Tiny, tmp_path: Path) -> Tiny:
    """A fresh checkout of the tiny stack with an empty cache; changes to the index are undone afterwards."""
    replies = {path: list(rows) for path, rows in origin.index.replies.items()}
    yield origin.fork(tmp_path / "checkout")
    origin.index.replies.clear()
    origin.index.replies.update(replies)


@pytest.fixture
def fakes():
    """Two registries in this process."""
    made = [Writable(), Writable()]
    yield made
    for one in made:
        one.close()


@pytest.fixture
def real(tmp_path):
    """Debian's docker-registry."""
    program = debian_programs.program("docker-registry", tmp_path)
    (tmp_path / "real").mkdir()
    with Real(program, tmp_path / "real") as one:
        yield one


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Surroundings without pins, that wait for no registry."""
    means = upload.means
    monkeypatch.setattr(upload, "means", lambda *a: {**means(*a), "sleep": lambda _: None})
    with Cache(tmp_path / "cache").use() as cache:
        env = {"HOME": str(tmp_path)}
        yield Workshop(
            constraints=tmp_path, smoke_tests=tmp_path, cache=cache, env=env, progress=Silent(), workers=1
        )  # fmt: skip
