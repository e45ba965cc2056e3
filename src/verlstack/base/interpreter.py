"""The stack's own Python: found on this machine, and verified by running it; `python_tree` turns it into a layer."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from verlstack import shell
from verlstack.errors import BaseImageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# Modules that torch, Ray and verl import at start-up; a Python built without one of their libraries lacks the module.
_MUST_IMPORT = ("ssl", "ctypes", "sqlite3", "zlib", "bz2", "lzma")
_PROBE_SECONDS = 20.0  # a pyenv shim takes 0.1 s, a cold start from a slow disk a few seconds
_PROBE = f"""
import importlib, json, sys, sysconfig
lacks = []
for name in {_MUST_IMPORT!r}:
    try:
        importlib.import_module(name)
    except ImportError:
        lacks.append(name)
print(json.dumps({{
    "implementation": sys.implementation.name, "release": sys.version_info[3],
    "version": list(sys.version_info[:3]), "prefix": sys.base_prefix, "lacks": lacks,
    "shared": bool(sysconfig.get_config_var("Py_ENABLE_SHARED")),
    "build_dir": sysconfig.get_config_var("abs_builddir") or "",
}}))
"""


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A Python that was run and found whole.

    Attributes:
        executable: its real binary, never a shim or a virtual environment's link.
        prefix: the folder that holds `bin/`, `lib/` and `include/`.
        version: all three numbers, "3.10.13".
        shared: whether it loads libpython from its own `lib/`.
        build_dir: where it was compiled; the sysconfig data repeat that path, so it must be rewritten. May be empty.
    """

    executable: Path
    prefix: Path
    version: str
    shared: bool
    build_dir: str = ""


@dataclass
class _Search:
    """Candidates seen so far, and for the error message what became of each."""

    wanted: str
    run: Callable[..., shell.Result]
    found: list[Interpreter] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seen: set[Path] = field(default_factory=set)

    def consider(self, executable: Path) -> None:
        """Run one candidate and keep it if it is whole; a shim that leads to a known one costs nothing."""
        if executable in self.seen:
            return
        self.seen.add(executable)
        verdict = _verify(executable, self.wanted, self.run)
        if isinstance(verdict, str):
            self.notes.append(f"{executable}: {verdict}")
        elif verdict.executable not in {known.executable for known in self.found}:
            self.found.append(verdict)


def find(
    wanted: str, *, tree: Path | None, env: Mapping[str, str], run: Callable[..., shell.Result] = shell.run
) -> Interpreter:
    """The newest patch release of Python `wanted` ("3.10") on this machine.

    Args:
        wanted: major and minor number.
        tree: `--python-tree`, a prefix with `bin/python3.10`; then nothing else is looked at.
        env: PATH, HOME, PYENV_ROOT are read from it.
        run: starts programs.

    Raises:
        BaseImageError: there is none, or the given tree is not one.
    """
    search = _Search(wanted=wanted, run=run)
    if tree is not None:
        search.consider(tree.absolute() / "bin" / f"python{wanted}")
        if not search.found:
            raise BaseImageError(
                f"--python-tree is not a usable Python {wanted}: {search.notes[0]}",
                where=str(tree),
                todo=f"give the prefix folder that holds bin/python{wanted}, with its lib/ and include/",
            )
        return search.found[0]
    for candidate in _candidates(wanted, env, run):
        search.consider(candidate)
    if not search.found:
        raise _not_found(wanted, search.notes)
    return max(search.found, key=lambda one: int(one.version.rpartition(".")[2]))  # max keeps the first of equals


def _not_found(wanted: str, notes: list[str]) -> BaseImageError:
    looked = "; ".join(notes) if notes else "no candidate"
    return BaseImageError(
        f"no usable Python {wanted} on this machine",
        where=f"uv's interpreters, pyenv's versions, python{wanted} on PATH ({looked})",
        todo=f"install one (`pyenv install {wanted}`, `uv python install {wanted}`, or the system's python{wanted} and"
        " its headers), or name a tree with --python-tree PREFIX",
    )


def _candidates(wanted: str, env: Mapping[str, str], run: Callable[..., shell.Result]) -> Iterator[Path]:
    """Executables worth a try: uv's, pyenv's, those on PATH."""
    plain = _without_shims(env)
    uv = Path(sys.executable).parent / "uv"
    words = (uv, "python", "find", "--no-python-downloads", "--no-project", "--no-config", "--system", wanted)
    yield from _answer(words, plain, run)
    for versions in _pyenv_folders(env, run):
        yield from sorted(versions.glob(f"{wanted}.*/bin/python{wanted}"))
    for folder in plain.get("PATH", "").split(":"):
        executable = Path(folder) / f"python{wanted}"
        if folder and executable.is_file():
            yield executable


def _pyenv_folders(env: Mapping[str, str], run: Callable[..., shell.Result]) -> Iterator[Path]:
    if root := env.get("PYENV_ROOT"):
        yield Path(root) / "versions"
    if home := env.get("HOME"):
        yield Path(home) / ".pyenv" / "versions"
    for root_folder in _answer(("pyenv", "root"), env, run):
        yield root_folder / "versions"


def _answer(words: tuple[str | Path, ...], env: Mapping[str, str], run: Callable[..., shell.Result]) -> Iterator[Path]:
    """The path a program prints, if it is there and succeeds."""
    try:
        result = run(words, env=env, timeout=_PROBE_SECONDS)
    except shell.ProgramMissingError:
        return
    if result.returncode == 0 and result.stdout.strip():
        yield Path(result.stdout.strip().splitlines()[-1])


def _without_shims(env: Mapping[str, str]) -> dict[str, str]:
    """`env` without pyenv's shims, over which `uv python find` stumbles, and without an active virtual environment."""
    left_out = {"VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONHOME", "PYTHONPATH"}
    plain = {key: value for key, value in env.items() if key not in left_out}
    folders = (folder for folder in plain.get("PATH", "").split(":") if Path(folder).name != "shims")
    return plain | {"PATH": ":".join(folders)}


def _verify(executable: Path, wanted: str, run: Callable[..., shell.Result]) -> Interpreter | str:
    """The interpreter behind a candidate, or the reason why it is none."""
    try:
        result = run((executable, "-I", "-c", _PROBE), env={"PATH": "/usr/bin:/bin"}, timeout=_PROBE_SECONDS)
        facts = json.loads(result.stdout) if result.returncode == 0 else None
    except (shell.ProgramMissingError, ValueError):
        facts = None
    if not isinstance(facts, dict):
        return "does not run"
    major, minor, patch = facts["version"]
    if f"{major}.{minor}" != wanted or facts["release"] != "final":
        return f"is {major}.{minor}.{patch} {facts['release']}"
    if facts["implementation"] != "cpython":
        return f"is {facts['implementation']}; the wheels are made for CPython"
    if facts["lacks"]:
        return f"lacks the modules {', '.join(facts['lacks'])}"
    prefix = Path(facts["prefix"])
    if not (prefix / "include" / f"python{wanted}" / "Python.h").is_file():
        return "has no include/Python.h, which Triton compiles against"
    return Interpreter(
        executable=prefix / "bin" / f"python{wanted}",
        prefix=prefix,
        version=f"{major}.{minor}.{patch}",
        shared=facts["shared"],
        build_dir=facts["build_dir"],
    )
