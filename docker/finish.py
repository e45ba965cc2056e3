"""Gives what uv installed the form that docs/image-format.md describes: scripts, RECORD, bytecode, modes.

    PYTHONHASHSEED=0 python -S -s -B finish.py ROOT X.Y REQUIREMENTS

ROOT holds one layer's files, as they will lie below /. REQUIREMENTS are those of the layer; here only their lines
`# leave out: PACKAGE/GLOB` count: files of a wheel, named as in site-packages, that are removed and stand in no RECORD.
Runs inside the Dockerfile's `layer-…` stages with the stack's own Python and its standard library. It shares no code
with the composer but the bytecode compiler (pyc_worker.py), which lies beside it: two builders that agree must not be
one.
"""

import base64
import configparser
import csv
import fnmatch
import hashlib
import re
import shutil
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType

PREFIX = "/opt/verl"  # the venv in the image
INSTALLERS_OWN = {"INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "RECORD.jws", "RECORD.p7s"}
LEAVE_OUT = "# leave out: "
MAX_SOURCE = 16 << 20  # bytes; more is data
MAX_NAME = 255  # bytes of a file name (Linux limits.h)
SCRIPT = """\
#!{prefix}/bin/python
# -*- coding: utf-8 -*-
import re
import sys
from {module} import {name}
if __name__ == "__main__":
    sys.argv[0] = re.sub(r"(-script\\.pyw|\\.exe)?$", "", sys.argv[0])
    sys.exit({call}())
"""


def entry_points(info: Path) -> Iterator[tuple[str, str]]:
    """(name, `module:attribute`) of the scripts that a distribution declares."""
    parser = configparser.ConfigParser(delimiters="=", interpolation=None, strict=False)
    setattr(parser, "optionxform", str)  # noqa: B010 - names keep their case
    path = info / "entry_points.txt"
    if path.is_file():
        parser.read_string(path.read_text(encoding="utf-8"))
    for section in ("console_scripts", "gui_scripts"):
        if parser.has_section(section):
            for name, target in parser.items(section):
                yield name, target.split("[")[0].strip()


def write_scripts(info: Path, venv: Path) -> set[Path]:
    """Write the declared scripts from the one template that both builders use."""
    made = set()
    for name, target in entry_points(info):
        module, _, attribute = (part.strip() for part in target.partition(":"))
        text = SCRIPT.format(prefix=PREFIX, module=module, name=attribute.split(".")[0], call=attribute)
        (venv / "bin" / name).write_text(text, encoding="utf-8")
        made.add(venv / "bin" / name)
    return made


def fix_shebang(path: Path) -> None:
    """Let a wheel's own script, whose first line uv has filled in, start with the image's Python."""
    data = path.read_bytes()
    first, end, rest = data.partition(b"\n")
    if re.fullmatch(rb"#!(/\S*/)?python[0-9.]*w?", first):
        path.write_bytes(f"#!{PREFIX}/bin/python".encode() + end + rest)


def installed(info: Path) -> list[Path]:
    """Files that RECORD names, without bytecode and what an installer writes for itself."""
    site = info.parent
    with (info / "RECORD").open(encoding="utf-8", newline="") as record:
        paths = [(site / row[0]).resolve() for row in csv.reader(record) if row]
    kept = []
    for path in paths:
        if "__pycache__" in path.parts or (path.parent == info and path.name in INSTALLERS_OWN):
            path.unlink(missing_ok=True)
        elif path != info / "RECORD":
            kept.append(path)
    return kept


def project(info: Path) -> str:
    """Name of the package of a dist-info, as the lock writes it (PyPA "name normalization")."""
    return re.sub(r"[-_.]+", "-", info.name.partition("-")[0]).lower()


def left_out(requirements: str) -> dict[str, list[str]]:
    """Package → globs of its files that are not wanted."""
    found: dict[str, list[str]] = {}
    for line in requirements.splitlines():
        if line.startswith(LEAVE_OUT):
            package, _, glob = line[len(LEAVE_OUT) :].partition("/")
            found.setdefault(package, []).append(glob)
    return found


def without(files: list[Path], site: Path, globs: Iterable[str]) -> list[Path]:
    """Remove the files that match, named as in site-packages; returns the others."""
    names = {path.relative_to(site).as_posix(): path for path in files if path.is_relative_to(site)}
    gone: set[Path] = set()
    for glob in globs:
        found = [path for name, path in names.items() if fnmatch.fnmatchcase(name, glob)]
        if not found:
            raise SystemExit(f"finish.py: there is no {glob} that could be left out; mend leave_out in stacks.toml")
        gone.update(found)
    for path in gone:
        path.unlink()
    return [path for path in files if path not in gone]


def bytecode(sources: list[Path], root: Path, tag: str, compile_source: Callable[[bytes, str], bytes]) -> list[Path]:
    """Compile for the final path; returns the files written."""
    made = []
    for source in sources:
        target = source.parent / "__pycache__" / f"{source.stem}.{tag}.pyc"
        if source.suffix != ".py" or source.stat().st_size > MAX_SOURCE or len(target.name.encode()) > MAX_NAME:
            continue
        if data := compile_source(source.read_bytes(), f"/{source.relative_to(root)}"):
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(data)
            made.append(target)
    return made


def write_record(info: Path, files: list[Path], venv: Path) -> None:
    """RECORD: sorted, complete, every line true."""
    site = info.parent
    rows = [((info / "RECORD").relative_to(site).as_posix(), "", "")]
    for path in files:
        inside = path.is_relative_to(site)
        name = path.relative_to(site).as_posix() if inside else f"../../../{path.relative_to(venv).as_posix()}"
        data = path.read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append((name, f"sha256={digest}", str(len(data))))
    (info / "RECORD").unlink()  # uv links files into its cache: never write through a link
    with (info / "RECORD").open("w", encoding="utf-8", newline="") as record:
        csv.writer(record, lineterminator="\n").writerows(sorted(rows))


def set_modes(root: Path, scripts: set[Path]) -> None:
    """0755 for folders and what may be executed, 0644 for the rest."""
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path in scripts or path.stat().st_mode & 0o111 else 0o644)


def finish_distribution(
    info: Path, own: list[Path], venv: Path, compiled: Callable[[list[Path]], list[Path]]
) -> set[Path]:
    """Scripts, bytecode and RECORD of one distribution, whose `own` files are kept; returns its scripts."""
    generated = write_scripts(info, venv)
    files = sorted({*own, *generated})
    scripts = {path for path in files if path.parent == venv / "bin"}
    for path in scripts - generated:
        fix_shebang(path)
    write_record(info, files + compiled(files), venv)
    return scripts


def finish(root: Path, python: str, compiler: ModuleType, requirements: str = "") -> None:
    """Finish everything below `root`, without what the requirements leave out."""
    venv = root / PREFIX.lstrip("/")

    def compiled(sources: list[Path]) -> list[Path]:
        return bytecode(sources, root, f"cpython-{python.replace('.', '')}", compiler.compile_source)

    for pycache in list(root.rglob("__pycache__")):
        shutil.rmtree(pycache)
    site, globs = venv / "lib" / f"python{python}" / "site-packages", left_out(requirements)
    infos = {info: project(info) for info in sorted(site.glob("*.dist-info"))}
    if strays := globs.keys() - infos.values():
        raise SystemExit(f"finish.py: there is no package {min(strays)} of which files could be left out")
    # All of it before the first RECORD: one that names a file which another package left out then fails.
    own = {info: without(installed(info), site, globs.get(name, ())) for info, name in infos.items()}
    scripts: set[Path] = set()
    for info, files in own.items():
        scripts |= finish_distribution(info, files, venv, compiled)
    compiled([path for path in sorted(root.rglob("*.py")) if not path.is_relative_to(venv)])
    for name in (".lock", "CACHEDIR.TAG", ".gitignore"):  # uv's own, at the top of a venv
        (venv / name).unlink(missing_ok=True)
    drop_empty_folders(root)
    set_modes(root, scripts)


def drop_empty_folders(root: Path) -> None:
    """Folders that hold nothing: uv makes those of a wheel's zip, RECORD knows only files."""
    for path in sorted((p for p in root.rglob("*") if p.is_dir() and not p.is_symlink()), reverse=True):
        if not any(path.iterdir()):
            path.rmdir()


def main() -> None:
    """Finish the folder that the command line names."""
    import pyc_worker  # type: ignore[import-not-found]  # noqa: PLC0415 - lies beside this file

    warnings.simplefilter("ignore")  # SyntaxWarnings about other people's code
    sys.setrecursionlimit(10_000)
    finish(Path(sys.argv[1]).resolve(), sys.argv[2], pyc_worker, sys.argv[3])


if __name__ == "__main__":
    threading.stack_size(512 << 20)  # as pyc_worker: the user's `ulimit -s` must not decide whether there is bytecode
    failures: list[BaseException] = []
    threading.excepthook = lambda hook: failures.append(hook.exc_value or SystemExit(1))
    worker = threading.Thread(target=main)
    worker.start()
    worker.join()
    if failures:
        raise failures[0]
