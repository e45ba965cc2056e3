"""Bytecode for a layer's sources, compiled by the stack's own interpreter and the same on every machine."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Self

from verlstack import shell, tar
from verlstack.cache import sha256_file
from verlstack.content import Inline, Reader
from verlstack.errors import BaseImageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_WORKER = Path(__file__).with_name("pyc_worker.py")
_NUMBER = struct.Struct("<I")
_NAME_MAX = 255  # bytes a file name may have (Linux limits.h)
_MAX_SOURCE = 16 << 20  # bytes; more is data, and would cost gigabytes to compile
VERSION = sha256_file(_WORKER)  # part of the key of whatever holds bytecode: another worker may compile otherwise
# The whole environment of the worker: string hashes must not differ, and nothing of the user's may reach it.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"}


class Compiler:
    """One worker process; use as a context manager."""

    def __init__(self, interpreter: Path, cache_tag: str) -> None:
        """Start the worker.

        Args:
            interpreter: the stack's Python.
            cache_tag: as in `sys.implementation.cache_tag`, "cpython-310".

        Raises:
            ProgramMissingError: the interpreter cannot be run.
        """
        # -S and not -I: -I would ignore PYTHONHASHSEED
        self._pipe = shell.Pipe([interpreter, "-S", "-s", "-B", _WORKER], env=_ENVIRONMENT)
        self._interpreter = interpreter
        self._cache_tag = cache_tag

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.__exit__()

    def compile(self, path: str, source: bytes) -> bytes:
        """The .pyc of a source file that will lie at absolute `path`; b"" where there can be none.

        Raises:
            BaseImageError: the worker died.
        """
        name = path.encode()
        try:
            self._pipe.stdin.write(_NUMBER.pack(len(name)) + name + _NUMBER.pack(len(source)) + source)
            self._pipe.stdin.flush()
            head = self._pipe.stdout.read(_NUMBER.size)
            (length,) = _NUMBER.unpack(head)
            data = self._pipe.stdout.read(length)
            if len(data) != length:
                raise struct.error("the answer is cut short")  # noqa: TRY301 - the same as a missing length
        except (BrokenPipeError, struct.error) as e:
            raise BaseImageError(
                f"the stack's interpreter died while compiling {path}",
                where=str(self._interpreter),
                todo="run that interpreter by hand; if it starts, report this with its version",
            ) from e
        return data

    def entries(self, sources: Iterable[tar.Entry], progress: Callable[[int], None]) -> list[tar.Entry]:
        """A `__pycache__` entry for every `.py` among `sources` that has bytecode."""
        made = []
        with Reader() as reader:
            for entry in sources:
                if entry.content is None or not entry.path.endswith(".py") or entry.size > _MAX_SOURCE:
                    continue
                data = self.compile("/" + entry.path, reader.read(entry.content))
                if data and len(self.location(entry.path).rpartition("/")[2].encode()) <= _NAME_MAX:
                    made.append(tar.file(self.location(entry.path), Inline(data=data)))
                progress(entry.size)
        return made

    def location(self, path: str) -> str:
        """Where the bytecode of a source belongs (PEP 3147)."""
        folder, _, name = path.rpartition("/")
        return f"{folder}/__pycache__/{name.removesuffix('.py')}.{self._cache_tag}.pyc"
