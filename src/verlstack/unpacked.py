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

from verlstack import oci, unpack
from verlstack.cache import sha256_file, storage_errors
from verlstack.errors import LockError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from verlstack.cache import Cache
    from verlstack.progress import Progress

STRANGER = 54321  # a uid without passwd entry in any base
# Environment of the programs outside that lead into the image.
OUTSIDE = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
# A /proc of its own, devices and a loopback interface, then into the image; $0 is its root. Root gets five harmless
# devices and shared memory of its own; an ordinary user cannot open a device that was bound one by one, and has no
# rights to the others.
_FIVE_DEVICES = (
    'mount -t tmpfs tmpfs "$0/dev" && mkdir -m 1777 "$0/dev/shm" && '
    'for d in null zero full random urandom; do : > "$0/dev/$d" && mount --bind "/dev/$d" "$0/dev/$d" || exit; done'
)
_ALL_DEVICES = 'mount --rbind /dev "$0/dev"'
_ENTER = 'mount -t proc proc "$0/proc" && {devices} && "$1" -I -c "$2" && shift 2 && exec chroot "$@"'
# SIOCSIFFLAGS with IFF_UP | IFF_LOOPBACK | IFF_RUNNING (netdevice(7)); `ip` is not on every machine
_LOOPBACK = (
    "import fcntl, socket, struct; "
    'fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14x", b"lo", 0x1 | 0x8 | 0x40))'
)


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
        """What to run, with OUTSIDE as environment, so that `words` run inside, without network but for loopback.

        Args:
            words: program and arguments, as in the image.
            user: uid and gid inside; as an ordinary user outside, it is only a name for ourselves.
            environment: besides the image's own.
        """
        apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", "--ipc"]
        loopback = [sys.executable, _LOOPBACK]
        root = str(self.folder)
        if os.geteuid() == 0:
            script = _ENTER.format(devices=_FIVE_DEVICES)
            enter = [*apart, "sh", "-c", script, root, *loopback, f"--userspec={user}:{user}", root]
        else:
            # --keep-caps: mount and chroot need capabilities that a mapped uid other than 0 loses at exec
            enter = [*apart, "--user", f"--map-user={user}", f"--map-group={user}", "--keep-caps"]
            enter += ["sh", "-c", _ENTER.format(devices=_ALL_DEVICES), root, *loopback, root]
        whole = {**self.environment, **(environment or {})}
        return [*enter, "env", "-i", *(f"{name}={value}" for name, value in whole.items()), *words]


@contextlib.contextmanager
def unpacked(layout: Path, cache: Cache, progress: Progress) -> Iterator[Root]:
    """Unpack an image below the cache's `tmp` so that programs can run in it, and remove it afterwards.

    Args, raises: as `laid`.
    """
    with laid(layout, cache, progress) as (root, config):
        with storage_errors(root):
            _name_hosts(root)
        yield Root(folder=root, environment=dict(pair.split("=", 1) for pair in config["config"]["Env"]))


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
    with tempfile.TemporaryDirectory(prefix="root-", dir=cache.tmp, ignore_cleanup_errors=True) as name:
        root = Path(name)
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
        try:
            yield root, config
        finally:
            _make_removable(root)


def _name_hosts(root: Path) -> None:
    """Write /etc/hosts as an engine does; without it neither torchrun nor Ray finds this machine by name."""
    hosts = unpack.resolve(root, "etc/hosts")  # where the image's own links lead, but never out of it
    hosts.parent.mkdir(parents=True, exist_ok=True)
    hosts.write_text(f"127.0.0.1 localhost {socket.gethostname()}\n::1 localhost\n", encoding="ascii")


def _make_removable(root: Path) -> None:
    """Give ourselves write permission on unpacked folders, so that an ordinary user can remove them."""
    for folder, _, _ in os.walk(root):
        Path(folder).chmod(0o755)
