"""An image without an engine: its layers unpacked in a folder, and programs run in it in namespaces of their own."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verlstack import canonical, oci, unpack
from verlstack.cache import sha256_file, storage_errors
from verlstack.errors import LockError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from verlstack.cache import Cache
    from verlstack.progress import Progress

STRANGER = 54321  # a uid without passwd entry in any base
# Environment of the program outside that leads into the image.
OUTSIDE = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
_WORKER = Path(__file__).with_name("enter_worker.py")


@dataclass(frozen=True, kw_only=True)
class Root:
    """An unpacked image.

    Attributes:
        folder: where it lies.
        environment: what its config sets.
    """

    folder: Path
    environment: Mapping[str, str]

    def command(self, words: Sequence[str], *, user: int, environment: Mapping[str, str] | None = None) -> list[str]:
        """What to run, with OUTSIDE as environment, so that `words` run inside: see `enter_worker`.

        They have no rights, no network but for loopback, and of the machine's files and devices only the image and
        six harmless devices; they end when this process ends, however it does.

        Args:
            words: program and arguments, as in the image.
            user: uid and gid inside; as an ordinary user outside, it is only a name for ourselves.
            environment: besides the image's own.
        """
        order = {
            "environment": {**self.environment, **(environment or {})},
            "parent": os.getpid(),
            "root": str(self.folder),
            "user": user,
            "words": list(words),
        }
        return [sys.executable, "-IS", str(_WORKER), canonical.dumps(order).decode()]


@contextlib.contextmanager
def unpacked(layout: Path, cache: Cache, progress: Progress) -> Iterator[Root]:
    """Unpack an image below the cache's `tmp` so that programs can run in it, and remove it afterwards.

    Args, raises: as `laid`.
    """
    with laid(layout, cache, progress) as (root, config):
        with storage_errors(root):
            _make_places(root)
            _name_hosts(root)
        environment = dict(pair.split("=", 1) for pair in config["config"].get("Env") or [])
        yield Root(folder=root, environment=environment)


@contextlib.contextmanager
def laid(layout: Path, cache: Cache, progress: Progress) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The root folder of an image unpacked below the cache's `tmp`, and its config; removed afterwards.

    Args:
        layout: folder of the OCI layout.
        cache: where to unpack; needs the image's unpacked size, about 6 GB for cu121.
        progress: where progress is shown.

    Raises:
        LockError: a layer is not what its digest says.
        ProofError: a layer cannot be unpacked.
        StorageError: the disk is full or refuses us.
        UsageError: there is no image in the layout.
    """
    _, manifest, config = oci.read_layout(layout)
    with (
        tempfile.TemporaryDirectory(prefix="root-", dir=cache.tmp, ignore_cleanup_errors=True) as name,
        _removable(root := Path(name), progress),
    ):
        root.chmod(0o755)
        progress.start("unpack", sum(x["size"] for x in manifest["layers"]))
        with storage_errors(root):
            for entry in manifest["layers"]:
                path = layout / oci.blob_path(entry["digest"])
                if not path.is_file() or f"sha256:{sha256_file(path)}" != entry["digest"]:
                    raise LockError(
                        "a layer is not what its digest says", where=str(path), todo="build the image again"
                    )
                unpack.lay(path, entry["mediaType"], root)
                progress.advance("unpack", entry["size"])
        progress.finish("unpack", f"{len(manifest['layers'])} layers")
        yield root, config


@contextlib.contextmanager
def _removable(root: Path, progress: Progress) -> Iterator[None]:
    """Make what lies below `root` removable in the end, and tell who interrupts why it takes its time."""
    try:
        yield
    except KeyboardInterrupt:
        progress.say("stopping; removing the unpacked image")
        raise
    finally:
        _make_removable(root)


def _make_places(root: Path) -> None:
    """Have plain folders where something is mounted: a link there would lead out of the image."""
    for name in ("dev", "proc"):
        place = root / name
        if place.is_symlink() or not place.is_dir():
            place.unlink(missing_ok=True)
            place.mkdir()


def _name_hosts(root: Path) -> None:
    """Write /etc/hosts as an engine does; without it neither torchrun nor Ray finds this machine by name."""
    hosts = unpack.resolve(root, "etc/hosts")  # where the image's own links lead, but never out of it
    hosts.parent.mkdir(parents=True, exist_ok=True)
    hosts.write_text(f"127.0.0.1 localhost {socket.gethostname()}\n::1 localhost\n", encoding="ascii")


def _make_removable(root: Path) -> None:
    """Give ourselves every permission on the folders, before they are looked into, so that all of it can be removed.

    What `tempfile` cannot remove it gives permissions itself, and before Python 3.11.8 it follows links in that.
    """
    root.chmod(0o755)
    for at, folders, _ in os.walk(root):
        for path in (Path(at, name) for name in folders):
            if not path.is_symlink():
                path.chmod(0o755)
