"""An interpreter as layer entries below /usr/local, the venv skeleton, and the libraries both need from the base."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from verlstack import tar
from verlstack.base import elf
from verlstack.content import Inline, OnDisk
from verlstack.errors import BaseImageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from verlstack import shell
    from verlstack.base.interpreter import Interpreter
    from verlstack.content import Source

HOME = "/usr/local/bin"  # where the tree's interpreter stands in the image
VENV = "/opt/verl"
MULTIARCH = "x86_64-linux-gnu"  # Debian's and Ubuntu's library folder for the one architecture of our wheels

_TARGET = "/usr/local"
_BUILD_DIR_TARGET = "/usr/src"
# Nothing is rewritten in a tree that already lies in a place every image has: the text "/usr" is everywhere.
_STANDARD_PREFIXES = frozenset({"/", "/usr", "/usr/local"})

# Folders of the standard library, relative to lib/python3.10, that no program needs at run time.
_LEFT_OUT_DIRS = frozenset(
    {
        "ensurepip",  # half of it is two bundled wheels; the image's packages are composed, not installed
        "idlelib",
        "lib2to3/tests",
        "ctypes/test",
        "distutils/tests",
        "site-packages",  # belongs to the machine, not to the interpreter
        "sqlite3/test",
        "test",
        "tkinter",  # see _tkinter below
        "turtledemo",
        "unittest/test",
    }
)
_LEFT_OUT_FILES = frozenset({"turtle.py"})  # imports tkinter
# Extension modules, by the part of their file name before the first dot.
_LEFT_OUT_MODULES = frozenset(
    {
        "_tkinter",  # needs Tcl, Tk and X11, 20 MB of libraries, and a display
        "nis",  # needs libnsl and libtirpc; Sun's yellow pages, gone from Python 3.13
        "ossaudiodev",
        "_ctypes_test",
        "_testbuffer",
        "_testcapi",
        "_testclinic",
        "_testimportmultiple",
        "_testinternalcapi",
        "_testmultiphase",
        "_xxtestfuzz",
        "xxlimited",
        "xxlimited_35",
    }
)
_LEFT_OUT_SUFFIXES = (".pyc", ".a", ".o", ".exe")  # bytecode is compiled anew; static libraries; Windows launchers


def layer_entries(interp: Interpreter, wanted: str) -> list[tar.Entry]:
    """The interpreter layer: binary, standard library, headers, libpython, all below /usr/local; modes are canonical.

    Every trace of the machine is rewritten, build prefix and build folder, in text and in binaries (`_relocated`).

    Args:
        interp: from `interpreter.find`.
        wanted: "3.10".

    Raises:
        BaseImageError: the tree lacks its standard library.
    """
    library = interp.prefix / "lib" / f"python{wanted}"
    if not (library / "os.py").is_file():
        raise BaseImageError(f"no standard library of Python {wanted}", where=str(library), todo="give another tree")
    entries = [
        tar.symlink("usr/local/bin/python3", f"python{wanted}"),
        tar.symlink("usr/local/bin/python", "python3"),
        tar.directory(f"usr/local/lib/python{wanted}/site-packages"),
    ]
    entries += [_entry(path, interp) for path in _files(interp, wanted)]
    if (interp.prefix / "lib" / f"libpython{wanted}.so.1.0").exists():
        # The loader looks here without ldconfig and without a RUNPATH.
        name = f"libpython{wanted}.so.1.0"
        entries.append(tar.symlink(f"usr/lib/{MULTIARCH}/{name}", f"{_TARGET}/lib/{name}"))
    return entries


def venv_entries(home: str, version: str) -> list[tar.Entry]:
    """The skeleton of the virtual environment, as `python -m venv` lays it out, without pip and activation scripts.

    Args:
        home: folder of the base's `python3.10`.
        version: written into `pyvenv.cfg`; all three numbers where they are known.
    """
    short = ".".join(version.split(".")[:2])
    root = VENV.lstrip("/")
    config = f"home = {home}\ninclude-system-site-packages = false\nversion = {version}\n"
    return [
        tar.file(f"{root}/pyvenv.cfg", Inline(data=config.encode())),
        tar.symlink(f"{root}/bin/python", f"{home}/python{short}"),
        tar.symlink(f"{root}/bin/python3", "python"),
        tar.symlink(f"{root}/bin/python{short}", "python"),
        tar.directory(f"{root}/lib/python{short}/site-packages"),
        tar.symlink(f"{root}/lib64", "lib"),
    ]


def shared_libraries(interp: Interpreter, wanted: str) -> frozenset[str]:
    """Sonames that the tree's binaries need and do not bring along."""
    own: set[str | None] = set()
    asked: set[str] = set()
    for path in _files(interp, wanted):
        if path.suffix == ".py" or path.is_symlink():
            continue
        data = path.read_bytes()
        own.update({path.name, elf.soname(data)})
        asked.update(elf.needed(data))
    return frozenset(name for name in asked - own if not name.startswith("ld-linux"))


def debian_packages(sonames: Iterable[str], run: Callable[..., shell.Result]) -> list[str]:
    """Debian packages that hold these libraries on this machine, sorted; the base is of the same release.

    Raises:
        BaseImageError: a library lies on this machine, but no package owns it.
        ProgramMissingError: this is not a Debian machine.
    """
    owners: dict[str, str] = {}
    wanted = sorted(sonames)
    # dpkg knows libraries by the path they were packed under: /lib/… in Debian 12, /usr/lib/… in Debian 13.
    for line in run(("dpkg-query", "--search", *(f"*/{name}" for name in wanted))).stdout.splitlines():
        package, _, path = line.partition(": ")
        folder, _, name = path.rpartition("/")
        if folder.removeprefix("/usr") == f"/lib/{MULTIARCH}" and "," not in package:
            owners.setdefault(name, package.partition(":")[0])
    if orphans := [name for name in wanted if name not in owners]:
        raise BaseImageError(
            f"Python's tree needs {', '.join(orphans)}, which no Debian package on this machine holds",
            todo="rebuild that Python against the distribution's libraries, or give another with --python-tree",
        )
    return sorted(set(owners.values()))


def _files(interp: Interpreter, wanted: str) -> Iterator[Path]:
    """Files and links of the tree that go into the layer, in no particular order."""
    for name in (f"python{wanted}", f"python{wanted}-config"):
        if (interp.prefix / "bin" / name).exists():
            yield interp.prefix / "bin" / name
    yield from sorted((interp.prefix / "lib").glob(f"libpython{wanted}*.so*"))
    yield from (path for path in _walk(interp.prefix / "include" / f"python{wanted}") if path.suffix != ".pyc")
    library = interp.prefix / "lib" / f"python{wanted}"
    yield from (path for path in _walk(library) if _is_kept(path.relative_to(library), wanted))


def _walk(folder: Path) -> Iterator[Path]:
    for root, _, names in os.walk(folder):
        yield from (Path(root) / name for name in names)


def _is_kept(path: Path, wanted: str) -> bool:
    """Whether a file of the standard library is wanted; `path` is relative to lib/python3.10."""
    folders = {"/".join(path.parts[:n]) for n in range(1, len(path.parts))}
    return not (
        folders & _LEFT_OUT_DIRS
        or path.parts[0].startswith(f"config-{wanted}")  # Makefile, libpython.a; sysconfig reads _sysconfigdata alone
        or "__pycache__" in path.parts
        or path.suffix in _LEFT_OUT_SUFFIXES
        or str(path) in _LEFT_OUT_FILES
        or (path.suffix == ".so" and path.name.partition(".")[0] in _LEFT_OUT_MODULES)
    )


def _entry(path: Path, interp: Interpreter) -> tar.Entry:
    target = "usr/local/" + path.relative_to(interp.prefix).as_posix()
    if path.is_symlink() and not path.readlink().is_absolute():
        return tar.symlink(target, str(path.readlink()))
    content, executable = _content(path, interp)
    return tar.file(target, content, executable=executable)


def _content(path: Path, interp: Interpreter) -> tuple[Source, bool]:
    """A file's relocated bytes, and whether it is to be executable: binaries and scripts in bin/, shared objects."""
    data = path.read_bytes()
    changed = _relocated(data, interp)
    executable = path.parent == interp.prefix / "bin" or changed.startswith(elf.MAGIC)
    if changed != data:
        return Inline(data=changed), executable
    return OnDisk(path=path, size=len(data), sha256=hashlib.sha256(data).hexdigest()), executable


def _relocated(data: bytes, interp: Interpreter) -> bytes:
    """`data` with the machine's paths replaced: in text by the new path, in a binary without moving a byte."""
    if data.startswith(elf.MAGIC):
        return _relocated_binary(data, interp)
    for old, new in _replacements(interp):
        data = data.replace(old, new)
    return data


def _relocated_binary(data: bytes, interp: Interpreter) -> bytes:
    """The run path leads to /usr/local/lib; other mentions of the machine keep their last part alone.

    Linkers let one string be the tail of another: CPython's version "3.10.13" may be nothing but the end of its prefix
    "…/versions/3.10.13". So strings keep their length and what stands behind their last slash, and are filled with
    slashes, which mean nothing in a path. What is shorter than its replacement stays as it is.
    """
    changed = bytearray(data)
    for at, text in elf.run_paths(data):
        for old, new in _replacements(interp):
            text = text.replace(old, new.ljust(len(old), b"/")) if len(old) >= len(new) else text  # noqa: PLW2901
        changed[at : at + len(text)] = text
    data = bytes(changed)
    for old, new in _replacements(interp):
        folder = old[: old.rindex(b"/")]
        if len(folder) >= len(new):
            data = data.replace(folder + b"/", new.ljust(len(folder), b"/") + b"/")
    return data


def _replacements(interp: Interpreter) -> list[tuple[bytes, bytes]]:
    pairs = ((str(interp.prefix), _TARGET), (interp.build_dir, _BUILD_DIR_TARGET))
    useful = [(old, new) for old, new in pairs if old.startswith("/") and old not in _STANDARD_PREFIXES]
    return [(old.encode(), new.encode()) for old, new in sorted(useful, key=lambda pair: -len(pair[0]))]
