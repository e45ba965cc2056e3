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
    release = aptsources.parse_release(Path("/etc/os-release").read_text())
    suite = NEWER if newer else release.codename
    tree = _unpacked(name, folder / suite, _mirror(release.codename), suite)
    found = next((path for path in tree.rglob(f"*bin/{name}") if path.is_file()), None)
    if found is None:
        pytest.skip(f"Debian's package {name} of {suite} holds no program of that name")
    return found


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
