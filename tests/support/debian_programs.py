"""Programs of Debian for tests: the machine's own, else unpacked from its mirror, checked by Debian's signature."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from verlstack.base import aptsources

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
NEWER = "trixie"  # Debian 13; what docker/engine.sh takes its programs from
NEWEST = "sid"  # no release, changes every day: for what no release has


def program(name: str, folder: Path, *, newer: bool = False) -> Path:
    """A program whose package has its name; skips where it cannot be had.

    Args:
        name: of the program and its package.
        folder: where to unpack it.
        newer: from Debian 13 whatever this machine's release is.
    """
    if found := shutil.which(name):
        return Path(found)
    if not KEYRING.is_file() or not shutil.which("apt-get"):
        pytest.skip(f"{name} is not installed, and this is no Debian machine to fetch it on")
    found = next((path for path in unpacked(name, folder, newer=newer).rglob(f"*bin/{name}") if path.is_file()), None)
    if found is None:
        pytest.skip(f"Debian's package {name} holds no program of that name")
    return found


def unpacked(package: str, folder: Path, *, newer: bool = False) -> Path:
    """A folder with a package alone; arguments as of `program`."""
    release = aptsources.parse_release(Path("/etc/os-release").read_text())
    suite = NEWER if newer else release.codename
    return _unpacked(package, folder / suite, _mirror(release.codename), suite)


def tree(package: str, *others: str, suite: str, folder: Path) -> Path:
    """A folder with a package and all that it depends on, unpacked but not configured; skips where it cannot be had."""
    if os.geteuid() or not shutil.which("mmdebstrap") or not KEYRING.is_file():
        pytest.skip("needs root, Debian's keys and mmdebstrap (make host-tools)")
    release = aptsources.parse_release(Path("/etc/os-release").read_text())
    sources = folder / "sources.list"
    sources.touch(mode=0o600)  # the mirror's address may hold a password
    sources.write_text(f"deb [signed-by={KEYRING}] {_mirror(release.codename)} {suite} main\n")
    words = ["mmdebstrap", "--variant=extract", f"--include={','.join((package, *others))}", "--quiet"]
    words += ['--aptopt=Acquire::Check-Valid-Until "false"', suite, folder / "root", sources]  # a mirror may lag behind
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip(f"{package} of Debian {suite} cannot be had from this machine's mirror")
    return folder / "root"


def _mirror(codename: str) -> str:
    words = ["apt-get", "indextargets", "--no-release-info", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)"]
    rows = subprocess.run([*words, "Created-By: Packages"], capture_output=True, text=True, check=False).stdout
    for line in rows.splitlines():
        address, suite, component = line.split()
        if (suite, component) == (codename, "main"):
            return address
    pytest.skip("apt knows no Debian mirror here")


def _unpacked(package: str, folder: Path, mirror: str, suite: str) -> Path:
    for name in ("state/lists/partial", "cache/archives/partial", "debs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    sources = folder / "sources.list"
    sources.touch(mode=0o600)  # the mirror's address may hold a password
    sources.write_text(f"deb [signed-by={KEYRING}] {mirror} {suite} main\n")
    settings = {
        "Dir::Etc::SourceList": sources, "Dir::Etc::SourceParts": "/dev/null", "Dir::State": folder / "state",
        "Dir::State::status": "/dev/null", "Dir::Cache": folder / "cache", "Acquire::Languages": "none",
        "APT::Sandbox::User": "root" if os.geteuid() == 0 else "", "APT::Update::Error-Mode": "any",
    }  # fmt: skip
    apt = ["apt-get", "-qq", *(word for key, value in settings.items() for word in ("-o", f"{key}={value}"))]
    for words in (["update"], ["download", package]):
        done = subprocess.run([*apt, *words], cwd=folder / "debs", capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{package} of Debian {suite} cannot be had from this machine's mirror ({' '.join(words)})")
    (deb,) = (folder / "debs").glob(f"{package}_*.deb")
    subprocess.run(["dpkg-deb", "--extract", deb, folder / "tree"], check=True)
    return folder / "tree"
