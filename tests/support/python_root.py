"""A root folder with this interpreter in it and little else: an image in which a test can run Python."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

PYTHON = "/opt/verl/bin/python"
_LEFT_OUT = shutil.ignore_patterns(
    *("site-packages", "dist-packages", "test", "tests", "__pycache__", "idlelib", "tkinter", "lib2to3", "ensurepip"),
    *("config-*", "_test*", "_tkinter*", "turtledemo"),
)


def make(root: Path) -> Path:
    """Fill `root`: interpreter at PYTHON, its libraries and standard library where they are outside, /tmp."""
    interpreter = Path(sys.executable).resolve()
    stdlib = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(stdlib, root / stdlib.relative_to("/"), ignore=_LEFT_OUT, symlinks=True)
    extensions = (root / stdlib.relative_to("/") / "lib-dynload").glob("*.so")
    said = subprocess.run(["ldd", interpreter, *extensions], capture_output=True, text=True, check=True).stdout
    for library in sorted(set(re.findall(r"(/\S+) \(0x", said))):
        place = root / library.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, place)
    at = root / PYTHON.lstrip("/")
    at.parent.mkdir(parents=True)
    shutil.copy(interpreter, at)
    for name in ("dev", "proc", "tmp", "etc"):
        (root / name).mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
    return root


def environment() -> dict[str, str]:
    """What that interpreter needs to find its standard library."""
    return {"PATH": "/opt/verl/bin", "PYTHONHOME": f"{sys.base_prefix}:{sys.base_exec_prefix}"}
