"""Unit tests touch no network and start no program: whoever tries is told so."""

import socket
import subprocess

import pytest

from verlstack import bytecode, pyc_worker


@pytest.fixture(autouse=True)
def _nothing_outside(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError(f"a unit test reached outside: {args[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)


class InProcess(bytecode.Compiler):
    """The bytecode compiler with this interpreter as the stack's: same protocol above, no program started."""

    def __init__(self, interpreter, cache_tag):
        self._interpreter, self._cache_tag = interpreter, cache_tag

    def __exit__(self, *_):
        pass

    def compile(self, path, source):
        return pyc_worker.compile_source(source, path)


@pytest.fixture
def in_process():
    """A compiler that starts no program."""
    return InProcess
