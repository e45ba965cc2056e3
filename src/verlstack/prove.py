"""`verlstack prove`: start the composed image and import verl in it, as root and as a uid nobody knows."""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verlstack import engine, layer, oci, shell
from verlstack.cache import storage_errors
from verlstack.compose import SMOKE_ROOT
from verlstack.errors import ProofError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from verlstack.cache import Cache
    from verlstack.progress import Progress

STRANGER = 54321  # a uid without passwd entry in any base
_CHECK = ("/opt/verl/bin/python", f"/{SMOKE_ROOT}/versions.py")
# Proc and dev as a container has them; then into the image. $0 is its root.
_ENTER = 'mount --rbind /proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$@"'
_PATIENCE = 300.0  # seconds; the imports take about 10 on two busy cores


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
                _unpack(layout / oci.blob_path(entry["digest"]), entry["mediaType"], root)
                progress.advance("unpack", entry["size"])
        progress.finish("unpack", f"{len(manifest['layers'])} layers")
        env = dict(pair.split("=", 1) for pair in config["config"]["Env"])
        try:
            return [f"uid {uid}: {_run(root, uid, env, layout)}" for uid in (0, STRANGER)]
        finally:
            _make_removable(root)


def _run(root: Path, uid: int, env: Mapping[str, str], layout: Path) -> str:
    """Run the check inside `root` with namespaces, as real root or as whoever we are."""
    if os.geteuid() == 0:
        enter: list[str | Path] = ["unshare", "--mount", "sh", "-c", _ENTER, root, f"--userspec={uid}:{uid}", root]
    else:
        # --keep-caps: mount and chroot need capabilities that a mapped uid other than 0 loses at exec
        enter = ["unshare", "--user", f"--map-user={uid}", f"--map-group={uid}", "--keep-caps", "--mount"]
        enter += ["sh", "-c", _ENTER, root, root]
    done = shell.run([*enter, *_CHECK], env=env, timeout=_PATIENCE)
    if done.returncode:
        raise ProofError(
            f"the import check fails inside the image as uid {uid} (exit status {done.returncode}):\n{done.tail}",
            where=str(layout),
            todo="an import error names the pin to change; `unshare: … Operation not permitted` means that this "
            "machine forbids user namespaces: run as root, or load the image into an engine",
        )
    return done.stdout.strip()


def _unpack(blob: Path, media_type: str, root: Path) -> None:
    """Lay one layer over `root`; its whiteouts concern the layers below alone (image-spec, "Whiteouts")."""
    added: set[Path] = set()
    with contextlib.ExitStack() as stack:
        raw: Any = stack.enter_context(layer.opened(blob, media_type.rpartition("+")[2]))  # typeshed wants more of it
        archive = stack.enter_context(tarfile.open(fileobj=raw, mode="r|"))
        for member in archive:
            target = root / member.name
            if target.name == ".wh..wh..opq":
                _remove({*target.parent.iterdir()} - added)
            elif target.name.startswith(".wh."):
                _remove({target.with_name(target.name.removeprefix(".wh."))} - added)
            else:
                if not member.isdir():
                    _remove({target})
                archive.extract(member, root, filter=_inside, numeric_owner=True)
                added.add(target)


def _inside(member: tarfile.TarInfo, root: str) -> tarfile.TarInfo:
    """Refuse what leaves `root`, as tarfile's own filter does, but keep /tmp's sticky bit and the like."""
    return tarfile.tar_filter(member, root).replace(mode=member.mode, deep=False)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _make_removable(root: Path) -> None:
    """Give ourselves write permission on unpacked folders, so that an ordinary user can remove them."""
    for folder, _, _ in os.walk(root):
        Path(folder).chmod(0o755)
