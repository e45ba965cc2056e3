"""`verlstack flash-attn compile`: the Dockerfile's stage in a container engine, its wheel gated and kept."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from verlstack import bakefile, buildinputs, buildkit, oci, shell, told
from verlstack.base import assemble, imagescan
from verlstack.cache import storage_errors
from verlstack.errors import BuildError
from verlstack.extension import add

if TYPE_CHECKING:
    from collections.abc import Callable

    from verlstack.extension.shelf import Shelved
    from verlstack.lockfile import Lock
    from verlstack.pins import Stack
    from verlstack.workshop import Workshop

_TARGET = "flash-attn"
_TOOLCHAIN = "docker/toolchain-debian.sh"
_HOUR = 3600.0  # seconds; 1.1 GB from the mirror take ten on a good line
_STATUS = "var/lib/dpkg/status"


def compile_wheel(
    stack: Stack,
    lock: Lock,
    shop: Workshop,
    *,
    base: str | None,
    jobs: int | None,
    run: Callable[..., shell.Result] = shell.run,
) -> Shelved:
    """Compile a lock's extension, gate the wheel and put it into the cache.

    What was compiled stays in BuildKit's cache, under the facts that decide it: stopped and run again, it goes on.

    Args:
        stack: the pins.
        lock: their lock.
        shop: the surroundings.
        base: None for the images that the pins name; `debian` for a bootstrap with the toolkit of Debian's archive.
        jobs: files compiled at once; None for what memory and cores allow.
        run: starts programs.

    Raises:
        UsageError: the stack has no compiled extension, or the engine may not fetch.
        LockError: the file for bake is not the lock's.
        EngineError: no engine that can build.
        BuildError: a step fails; its last lines are passed on.
        WheelError: the wheel does not pass the gate; rule and symbol are named.
        BaseImageError, FetchError, StorageError: as the parts say.
    """
    extension = lock.extension
    buildinputs.require_online(shop)
    arguments = bakefile.of_lock(shop.constraints, lock)
    builder = buildkit.check(shop.env)
    with tempfile.TemporaryDirectory(prefix="compile-", dir=shop.cache.tmp) as name:
        folder = Path(name)
        contexts = buildinputs.contexts(lock, shop, folder)
        contexts["extension-source"] = _source(lock, shop, folder)
        if base is not None:
            contexts |= _from_debian(stack, shop, base, folder, run)
        (folder / "secrets").mkdir(mode=0o700)
        checkout = shop.constraints.parent
        request = buildkit.Request(
            folder=checkout,
            files=(checkout / buildkit.BAKE, arguments),
            target=_TARGET,
            output=folder / "out",
            form="local",
            arguments={"MAX_JOBS": str(jobs)} if jobs else {},
            contexts=contexts,
            secrets=buildinputs.secrets(shop.env, folder / "secrets"),
            cached=True,
            network=builder.network,
        )
        shop.progress.say(f"{extension.source.project}: compiling for {', '.join(extension.cuda_archs)}; takes hours")
        buildkit.bake(request, env=shop.env, scratch=folder, progress=shop.progress)
        made = sorted((folder / "out").glob("*.whl"))
        if len(made) != 1:
            raise BuildError(f"the compile gave {len(made)} wheels instead of one", where=f"stage {_TARGET}")
        return add.add(made[0], stack, lock, shop)


def _source(lock: Lock, shop: Workshop, folder: Path) -> str:
    """A folder with the extension's sdist."""
    source = lock.extension.source
    files = shop.fetch([source])
    with storage_errors(folder):
        (folder / "source").mkdir()
        shutil.copy(files[source.sha256], folder / "source" / source.filename)
    return str(folder / "source")


def _from_debian(
    stack: Stack, shop: Workshop, base: str, folder: Path, run: Callable[..., shell.Result]
) -> dict[str, str]:
    """Contexts `os`, `cuda` and `debs` that need no registry."""
    made = assemble.assemble(stack, shop, base=base, packages=(), apt=None, dist=folder)
    _, manifest, _ = oci.read_layout(made.layout)
    tree = imagescan.Tree()
    for entry in manifest["layers"]:
        blob = made.layout / oci.blob_path(entry["digest"])
        imagescan.lay(tree, blob, entry["mediaType"].rpartition("+")[2])
    kit = _toolchain(shop, tree.text(_STATUS), folder / "status", run)
    return {
        "os": f"oci-layout://{made.layout}@{made.digest}",
        "cuda": str(kit / "cuda"),
        "debs": str(kit / "debs"),
    }


def _toolchain(shop: Workshop, installed: str, status: Path, run: Callable[..., shell.Result]) -> Path:
    """The folder with toolkit and compiler for a base; another base lacks other packages.

    Args:
        shop: the surroundings.
        installed: dpkg's status of the base.
        status: where to write it for the script.
        run: starts programs.
    """
    data = installed.encode()
    status.write_bytes(data)
    script = shop.constraints.parent / _TOOLCHAIN
    key = hashlib.sha256(script.read_bytes() + data).hexdigest()[:32]  # another script may fetch another compiler
    kit = shop.cache.root / "toolchain" / key
    shop.progress.say("toolchain: nvcc and g++ from the distribution's archive")
    with shop.cache.lock(f"toolchain-{key}"):
        done = run([script, kit, status], env={**shop.env}, timeout=_HOUR)
    if done.returncode:
        raise BuildError(f"the toolchain cannot be had:\n{told.plain(done.tail)}", where=_TOOLCHAIN)
    return kit
