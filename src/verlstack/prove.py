"""`verlstack prove`: start the composed image and import verl in it, as root and as a uid nobody knows."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verlstack import engine, oci, shell, unpack
from verlstack.cache import sha256_file, storage_errors
from verlstack.compose import SMOKE_ROOT
from verlstack.errors import LockError, ProofError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from verlstack.cache import Cache
    from verlstack.lockfile import Lock
    from verlstack.progress import Progress

STRANGER = 54321  # a uid without passwd entry in any base
_CHECK = ("/opt/verl/bin/python", f"/{SMOKE_ROOT}/versions.py")
# A /proc of its own and devices, then into the image; $0 is its root. Root gets five harmless devices and shared memory
# of its own; an ordinary user cannot open a device that was bound one by one, and has no rights to the others.
_FIVE_DEVICES = (
    'mount -t tmpfs tmpfs "$0/dev" && mkdir -m 1777 "$0/dev/shm" && '
    'for d in null zero full random urandom; do : > "$0/dev/$d" && mount --bind "/dev/$d" "$0/dev/$d" || exit; done'
)
_ALL_DEVICES = 'mount --rbind /dev "$0/dev"'
_ENTER = 'mount -t proc proc "$0/proc" && {devices} && exec chroot "$@"'
_PATIENCE = 300.0  # seconds; the imports take about 10 on two busy cores


def check_lock(config: Mapping[str, Any], lock: Lock, layout: Path) -> None:
    """Refuse to prove an image that is not the present lock's.

    Raises:
        LockError: the image was made from another lock.
    """
    made_from = (config["config"].get("Labels") or {}).get("dev.verlstack.lock")
    if made_from != f"sha256:{lock.digest}":
        todo = f"run `verlstack build {lock.stack}`"
        raise LockError(f"this image was made from lock {made_from}, not the present one", where=str(layout), todo=todo)


def prove(layout: Path, cache: Cache, env: Mapping[str, str], progress: Progress) -> list[str]:
    """Run the import check as root and as a stranger: in an engine where one answers, else in the unpacked layers.

    Args:
        layout: folder of the OCI layout.
        cache: where to unpack.
        env: names the engine (DOCKER_HOST).
        progress: where progress is shown.

    Returns:
        What the check printed, one line per user.

    Raises:
        ProofError: the image does not start, or an import fails; the last lines of its output are passed on.
        EngineError: there is an engine, but it refuses the image.
        UsageError: there is no image in the layout.
    """
    found = engine.Engine.connect(env)
    if found is None:
        return prove_unpacked(layout, cache, progress)
    digest, manifest, _ = oci.read_layout(layout)
    tag = oci.tag_of(layout)
    progress.say(f"loading into {found.name} as {oci.NAME}:{tag}")
    ids = (digest, manifest["config"]["digest"])
    found.load(oci.archive(layout, tag=tag, docker=True), f"{oci.NAME}:{tag}", ids)
    return [f"uid {uid}: {found.run(f'{oci.NAME}:{tag}', _CHECK, user=uid)}" for uid in (0, STRANGER)]


def prove_unpacked(layout: Path, cache: Cache, progress: Progress) -> list[str]:
    """Unpack the image below the cache's `tmp`, run the import check in it as root and as a stranger, and clean up.

    Args:
        layout: folder of the OCI layout.
        cache: where to unpack; needs the image's unpacked size, about 6 GB for cu121.
        progress: where progress is shown.

    Returns:
        What the check printed, one line per user.

    Raises:
        ProofError: it does not start, or an import fails; the last lines of its output are passed on.
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
        env = dict(pair.split("=", 1) for pair in config["config"]["Env"])
        try:
            return [f"uid {uid}: {_run(root, uid, env, layout)}" for uid in (0, STRANGER)]
        finally:
            _make_removable(root)


def _run(root: Path, uid: int, env: Mapping[str, str], layout: Path) -> str:
    """Run the check inside `root` in namespaces of its own (no network), as real root or as whoever we are."""
    apart = ["unshare", "--mount", "--pid", "--fork", "--net", "--ipc"]
    if os.geteuid() == 0:
        script = _ENTER.format(devices=_FIVE_DEVICES)
        enter: list[str | Path] = [*apart, "sh", "-c", script, root, f"--userspec={uid}:{uid}", root]
    else:
        # --keep-caps: mount and chroot need capabilities that a mapped uid other than 0 loses at exec
        enter = [*apart, "--user", f"--map-user={uid}", f"--map-group={uid}", "--keep-caps"]
        enter += ["sh", "-c", _ENTER.format(devices=_ALL_DEVICES), root, root]
    inside = ["env", "-i", *(f"{name}={value}" for name, value in env.items()), *_CHECK]
    done = shell.run([*enter, *inside], env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, timeout=_PATIENCE)
    if done.returncode:
        raise ProofError(
            f"the import check fails inside the image as uid {uid} (exit status {done.returncode}):\n{done.tail}",
            where=str(layout),
            todo="an import error names the pin to change; `unshare: … Operation not permitted` means that this "
            "machine forbids user namespaces: run as root, or load the image into an engine",
        )
    return done.stdout.strip()


def _make_removable(root: Path) -> None:
    """Give ourselves write permission on unpacked folders, so that an ordinary user can remove them."""
    for folder, _, _ in os.walk(root):
        Path(folder).chmod(0o755)
