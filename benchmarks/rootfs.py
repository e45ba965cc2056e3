"""An image's root tree on disk, and how long Python takes to import the stack in it; needs root."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import time
from typing import TYPE_CHECKING

import zstandard
from measure import FailedError

if TYPE_CHECKING:
    from pathlib import Path

IMPORTS = "import torch, transformers, verl"
# proc and dev as a container has them; $0 is the root tree
_ENTER = 'mount --rbind /proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"'


def unpack(layout: Path, root: Path) -> dict[str, str]:
    """Unpack all layers of a composed image (zstd, no whiteouts) into `root`; returns the image's environment."""
    blobs = layout / "blobs" / "sha256"
    index = json.loads((layout / "index.json").read_text())
    manifest = json.loads((blobs / index["manifests"][0]["digest"][7:]).read_text())
    config = json.loads((blobs / manifest["config"]["digest"][7:]).read_text())
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)  # 128 MB: the widest the format allows
    root.mkdir()
    for layer in manifest["layers"]:
        with (
            (blobs / layer["digest"][7:]).open("rb") as raw,
            decompressor.stream_reader(raw, read_across_frames=True) as plain,
            tarfile.open(fileobj=plain, mode="r|") as archive,
        ):
            archive.extraction_filter = getattr(tarfile, "tar_filter", None)  # `filter=` came with Python 3.11.4
            archive.extractall(root, numeric_owner=True)  # noqa: S202 - an image that this benchmark has built
    return dict(pair.split("=", 1) for pair in config["config"]["Env"])


def import_seconds(root: Path, env: dict[str, str], runs: int) -> list[float]:
    """Seconds of `runs` imports, each in a new process, after one that fills the page cache.

    Raises:
        FailedError: the import fails.
    """
    command = ["unshare", "--mount", "sh", "-c", _ENTER, str(root), "/opt/verl/bin/python", "-c", IMPORTS]
    times = []
    for _ in range(runs + 1):
        start = time.monotonic()
        done = subprocess.run(
            command,
            env=env | {"PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        times.append(time.monotonic() - start)
        if done.returncode:
            raise FailedError(f"{IMPORTS}\n{done.stderr[-2000:]}")
    return times[1:]


def remove_bytecode(root: Path) -> None:
    """Remove every `__pycache__` of the tree, the interpreter's own too."""
    for folder in list(root.rglob("__pycache__")):
        shutil.rmtree(folder)
