"""A small stack of its own, composed for real in a second: local index, local registry, tiny wheels, a tiny verl."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

from support.bad_server import BadServer, Reply, html_page
from support.wheels import EXECUTABLE, Wheel

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
CONSTRAINTS = Path(__file__).parents[2] / "constraints"

STACKS = """
[image]
format = 2
epoch = 1700000000

[image.compression]
level = 3
window_log = 20
long_distance = true
library = "1.5.7"
fast_level = 1

[image.environment]
PATH = {{ value = "/opt/verl/bin:/usr/bin:/bin", why = "test" }}

[layers]
heavy_bytes = 100_000

[[layers.group]]
name = "libs"
packages = ["*"]
why = "test"

[debian.packages]
gcc = "test"

[stack.tiny]
title = "a tiny stack"
python = "{python}"
cuda = "12.1"
platform = "x86_64-manylinux_2_35"

[stack.tiny.requires]
alpha = {{ bound = "==1.0", why = "test" }}

[stack.tiny.verl]
tag = "v0.2.0.post2"
commit = "{commit}"
repository = "{repository}"
sdist = "verl-0.2.0.post2.tar.gz"
sdist_sha256 = "{sdist_sha256}"
strip = ["tests"]
why = "test"

[stack.tiny.build_tools]
pip = {{ bound = "=={pip}", why = "test" }}
setuptools = {{ bound = "=={setuptools}", why = "test" }}
wheel = {{ bound = "=={wheel}", why = "test" }}
"""

# alpha is pinned and so a layer of its own; heavy is one by its size; beta and gamma share one, and a file.
WHEELS = (
    Wheel(
        name="alpha",
        files={
            "alpha/__init__.py": b"import beta\n\nKINDS = {'a', 'b'}\nprint_me = lambda x: x in {'p', 'q', 3}\n",
            "alpha/data.json": b"{}\n",
            "alpha/template.py": b"this is {{ no }} python\n",
            "alpha-1.0.data/scripts/alpha-run": b"#!python\nprint('alpha')\n",
        },
        modes={"alpha-1.0.data/scripts/alpha-run": EXECUTABLE},
        entry_points="[console_scripts]\nalpha = alpha:print_me\n",
        info={
            "METADATA": b"Metadata-Version: 2.1\nName: alpha\nVersion: 1.0\nRequires-Dist: beta\nRequires-Dist: heavy\n"
        },
    ),
    Wheel(
        name="beta",
        files={"beta/__init__.py": b"NONE = {None, 1}\nx = 1 in {None, 1}\n", "shared/__init__.py": b""},
        info={"METADATA": b"Metadata-Version: 2.1\nName: beta\nVersion: 1.0\nRequires-Dist: gamma\n"},
    ),
    Wheel(name="gamma", files={"gamma.py": "GREEK = 'γ'\n".encode(), "shared/__init__.py": b""}),
    Wheel(
        name="heavy", files={"heavy/blob.bin": hashlib.shake_128(b"heavy").digest(400_000), "heavy/__init__.py": b""}
    ),
)

VERL = {
    "setup.py": b"from setuptools import setup, find_packages\n"
    b"setup(name='verl', version='0.2.0.post2', packages=find_packages())\n",
    "pyproject.toml": b'[build-system]\nrequires = ["setuptools", "wheel"]\nbuild-backend = "setuptools.build_meta"\n',
    "verl/__init__.py": b"import alpha\n__version__ = '0.2.0.post2'\n",
    "tests/__init__.py": b"stray = True\n",
}

SMOKE = """import alpha, verl
print(verl.__version__)
"""
DOCTOR = {
    "launcher.py": (CONSTRAINTS.parent / "src" / "verldoctor" / "launcher.py").read_bytes(),
    "cli.py": b"def main():\n    return 0\n",
    "rules/env.json": b"{}\n",
}


def sdist(files: dict[str, bytes], top: str = "verl-0.2.0.post2") -> bytes:
    """A source archive; entries whose name starts with a slash or dots are stored as they are (hostile archives)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name if name.startswith(("/", "..")) else f"{top}/{name}")
            info.size, info.mtime = len(data), 1_600_000_000
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def git_repository(folder: Path, files: dict[str, bytes]) -> tuple[str, str]:
    """(address, commit) of a local repository with the tag v0.2.0.post2."""
    folder.mkdir(parents=True)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    identity = {
        "GIT_AUTHOR_NAME": "t",
        "GIT_AUTHOR_EMAIL": "t@t",
        "GIT_COMMITTER_NAME": "t",
        "GIT_COMMITTER_EMAIL": "t@t",
    }
    git = ["git", "-C", str(folder), "-c", "init.defaultBranch=main"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "release"], ["tag", "v0.2.0.post2"]):
        subprocess.run([*git, *words], check=True, env=os.environ | identity)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return f"file://{folder}", head.stdout.strip()


@dataclass
class Tiny:
    """One checkout of the tiny stack with its servers; every command is the real program in a new process.

    Attributes:
        root: the checkout.
        cache: VERLSTACK_CACHE of its commands.
        base: what `--base` gets.
        index: the package index.
        sets: further environment of every command.
    """

    root: Path
    cache: Path
    base: str
    index: BadServer
    sets: dict[str, str] = field(default_factory=dict)

    def environment(self, **sets: str) -> dict[str, str]:
        """The whole environment of a command: nothing of the developer's own configuration."""
        own = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root),
            "VERLSTACK_CACHE": str(self.cache),
            "UV_DEFAULT_INDEX": f"{self.index.url}/simple/",
            "PIP_CONFIG_FILE": os.devnull,
            "no_proxy": "*",
            "DOCKER_CONFIG": str(self.root),
        }
        own |= {k: v for k, v in os.environ.items() if k.startswith("COVERAGE_")}
        return own | self.sets | sets

    def words(self, *words: str) -> list[str]:
        """The command line of `verlstack WORDS` on this stack."""
        common = ["--constraints", str(self.root / "constraints"), "--python-tree", sys.base_prefix]
        extra = ["--base", self.base] if words[0] == "build" and "--base" not in words else []
        return [sys.executable, "-m", "verlstack", words[0], "tiny", *words[1:], *common, *extra]

    def run(self, *words: str, check: bool = True, umask: int = 0o022, **sets: str) -> subprocess.CompletedProcess[str]:
        """Run `verlstack WORDS`; with `check`, show its output and fail the test where it fails."""
        done = subprocess.run(
            self.words(*words), env=self.environment(**sets), cwd=self.root, capture_output=True, text=True, umask=umask
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def digest(self, name: str = "tiny") -> str:
        """The image's digest, as its layout says."""
        import json

        (entry,) = json.loads((self.root / "dist" / name / "index.json").read_text())["manifests"]
        return str(entry["digest"])

    def fork(self, root: Path, cache: Path | None = None) -> Tiny:
        """The same pins and locks in another checkout, with a cache of its own."""
        root.mkdir(parents=True)
        shutil.copytree(self.root / "constraints", root / "constraints")
        shutil.copytree(self.root / "smoke_tests", root / "smoke_tests")
        shutil.copytree(self.root / "src", root / "src")
        return Tiny(root=root, cache=cache or root / "cache", base=self.base, index=self.index, sets=dict(self.sets))


def serve(index: BadServer, files: dict[str, dict[str, bytes]]) -> None:
    """Offer files on the index: project → name → bytes."""
    for project, offered in files.items():
        index.replies[f"/simple/{project}/"] = [
            html_page({n: hashlib.sha256(d).hexdigest() for n, d in offered.items()})
        ]
        for name, data in offered.items():
            index.replies[f"/files/{name}"] = [Reply(body=data)]


def project(
    root: Path, *, sdist_sha256: str, tools: dict[str, str], repository: str = "file:///nowhere", commit: str = "0" * 40
) -> None:
    """Write a checkout: pins, smoke tests and a small verldoctor."""
    (root / "constraints").mkdir(parents=True)
    (root / "smoke_tests").mkdir()
    (root / "smoke_tests" / "versions.py").write_text(SMOKE)
    for name, data in DOCTOR.items():
        path = root / "src" / "verldoctor" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    text = STACKS.format(python=PYTHON, sdist_sha256=sdist_sha256, repository=repository, commit=commit, **tools)
    (root / "constraints" / "stacks.toml").write_text(text)
