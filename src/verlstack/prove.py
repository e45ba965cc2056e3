"""`verlstack prove`: start the composed image and import verl in it, as root and as a uid nobody knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verlstack import engine, oci, shell, told
from verlstack.compose import SMOKE_ROOT
from verlstack.errors import LockError, ProofError
from verlstack.order import Order
from verlstack.smoke import contained, owner
from verlstack.unpacked import OUTSIDE, STRANGER, unpacked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from verlstack.cache import Cache
    from verlstack.lockfile import Lock
    from verlstack.progress import Progress
    from verlstack.unpacked import Root

_CHECK = ("/opt/verl/bin/python", f"/{SMOKE_ROOT}/versions.py")
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
    contained.sweep(found)
    image = load(layout, found, progress)
    return [f"uid {uid}: {found.ask(order(image, _CHECK, uid), _PATIENCE)}" for uid in (0, STRANGER)]


def order(image: str, command: Sequence[str], uid: int) -> Order:
    """A container for a short command, which a later run removes where this one is killed."""
    label = {owner.LABEL: owner.me()}
    return Order(image=image, name=owner.name(), command=command, user=uid, labels=label)


def load(layout: Path, into: engine.Engine, progress: Progress) -> str:
    """Have a layout's image in the engine, loading it only where it is not there yet; returns its digest there.

    Raises:
        EngineError: the engine refuses it.
        UsageError: there is no image in the layout.
    """
    digest, manifest, _ = oci.read_layout(layout)
    name, ids = f"{oci.NAME}:{oci.engine_tag(layout)}", (digest, manifest["config"]["digest"])
    if have := into.held(name, ids):
        return have
    progress.say(f"loading into {into.name} as {name}")
    return into.load(oci.archive(layout, tag=oci.engine_tag(layout), docker=True), name, ids)


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
    with unpacked(layout, cache, progress) as root:
        return [f"uid {uid}: {_run(root, uid, layout)}" for uid in (0, STRANGER)]


def _run(root: Root, uid: int, layout: Path) -> str:
    """Run the check inside, as real root or as whoever we are."""
    done = shell.run(root.command(_CHECK, user=uid), env=OUTSIDE, timeout=_PATIENCE)
    if done.returncode:
        raise ProofError(
            f"the import check fails inside the image as uid {uid} (exit status {done.returncode}):\n{done.tail}",
            where=str(layout),
            todo="an import error names the pin to change; `unshare: … Operation not permitted` means that this "
            "machine forbids user namespaces: run as root, or load the image into an engine",
        )
    return told.plain(done.stdout).strip()
