"""A real Apptainer for tests: Debian's, in a root of its own, for no release of Debian that we stand on has one."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from support import debian_programs

# The tree becomes the root of a mount namespace: Apptainer wants a root that is mounted, and its own libraries.
_ENTER = """set -e
mount --bind "$1" "$1"
for name in dev proc sys; do mount --rbind /$name "$1/$name"; done
mount -t tmpfs tmpfs "$1/tmp"
mount --bind "$2" "$1/mnt"
cd "$1"
mkdir -p old
pivot_root . old
umount -l /old
shift 2
exec "$@"
"""
_ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/home/user"}
_USER = ("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups")


@dataclass(frozen=True)
class Apptainer:
    """One that runs what lies in `files`, which it sees as /mnt, as an ordinary user."""

    root: Path
    files: Path

    def run(self, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """`apptainer WORDS`; its warnings of an image without /etc/passwd are on stderr."""
        enter = ("unshare", "--mount", "sh", "-c", _ENTER, "sh", self.root, self.files)
        return subprocess.run(
            [*enter, *_USER, "apptainer", *words],
            env=_ENV | (env or {}),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )


def made(folder: Path, files: Path) -> Apptainer:
    """Unpack it; skips where it cannot be had."""
    names = ("base-files", "coreutils", "dash", "mount", "squashfuse", "util-linux")
    root = debian_programs.tree("apptainer", *names, suite=debian_programs.NEWEST, folder=folder)
    for name, line in (("passwd", "user:x:1000:1000::/home/user:/bin/sh\n"), ("group", "user:x:1000:\n")):
        (root / "etc" / name).write_text(f"{'root:x:0:0::/:/bin/sh' if name == 'passwd' else 'root:x:0:'}\n{line}")
    for name in ("mnt", "home/user"):
        (root / name).mkdir(parents=True, exist_ok=True)
    os.chown(root / "home" / "user", 1000, 1000)
    (root / "etc" / "hosts").touch()
    shutil.copyfile("/usr/share/zoneinfo/UTC", root / "etc" / "localtime")
    files.chmod(0o755)
    return Apptainer(root, files)
