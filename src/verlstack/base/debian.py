"""A base from the machine's own Debian mirror: bootstrapped by mmdebstrap, made canonical, kept in the cache."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from verlstack import layer, shell, tar
from verlstack.base import aptsources, debs, dpkg, mmdebstrap, rootfs
from verlstack.base.basestore import load, save
from verlstack.cache import storage_errors
from verlstack.content import Inline
from verlstack.errors import BaseImageError, FetchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from verlstack.cache import Cache
    from verlstack.progress import Progress

# Part of the cache key: raise it when what is left out of the tree or put into it, or how it is written, changes.
_RECIPE = 2  # 2: the list of the packages' hashes (debs.PATH)
_TIMEOUT = 1800.0  # seconds; 25 are usual, a slow mirror gives 90 MB in ten minutes


@dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """A finished Debian base: one layer, and the packages in it."""

    layer: layer.Blob
    packages: tuple[tuple[str, str], ...]
    release: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that decides the bootstrapped bytes, but for the mirror's state."""

    release: aptsources.Release
    packages: tuple[str, ...]
    epoch: int
    compression: layer.Compression
    architecture: str = "amd64"
    apt: aptsources.Given | None = None

    @property
    def key(self) -> str:
        """Name of the cache entry: a hash over all fields and the recipe's number."""
        facts = {"recipe": _RECIPE, **asdict(replace(self, apt=None)), "apt": self.apt and self.apt.key}
        if self.apt is None:
            del facts["apt"]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def plan(
    packages: Sequence[str],
    *,
    epoch: int,
    compression: layer.Compression,
    os_release: str,
    apt: aptsources.Given | None = None,
) -> Plan:
    """Decide what to bootstrap on a machine with this os-release text.

    Raises:
        BaseImageError: the machine is no Debian or relative.
        UsageError: a name is no package's.
    """
    release = aptsources.parse_release(os_release)
    if not release.codename:
        raise BaseImageError(
            f"`--base debian` needs a Debian or Ubuntu machine; this is {release.name}",
            todo="use `--base registry:REF@sha256:…`",
        )
    dpkg.check_names(packages, "[debian.packages] of constraints/stacks.toml, or --package")
    wanted = tuple(sorted(set(packages)))
    return Plan(release=release, packages=wanted, epoch=epoch, compression=compression, apt=apt)


def bootstrap(
    wanted: Plan,
    *,
    cache: Cache,
    env: Mapping[str, str],
    progress: Progress,
    offline: bool,
    fresh: bool = False,
    run: Callable[..., shell.Result] = shell.run,
) -> Bootstrap:
    """The base for a plan, from the cache, or from the mirror in about half a minute.

    Args:
        wanted: the plan.
        cache: where it is kept.
        env: environment of the command.
        progress: where to tell.
        offline: the cache alone.
        fresh: bootstrap anew and replace what the cache has, for the mirror may have changed; not when offline.
        run: starts programs.

    Raises:
        BaseImageError: mmdebstrap is missing or failed, the mirror is unreachable or lacks a package.
        FetchError: offline, and not in the cache.
        StorageError: the disk is full, read-only or forbidden.
    """
    with cache.lock(f"base-{wanted.key[:32]}"):
        folder = cache.bases / wanted.key
        known = None if fresh and not offline else load(folder)
        if known is None:
            if offline:
                raise FetchError("the Debian base is not in the cache", where=str(folder), todo="run without --offline")
            known = _build(wanted, folder, cache=cache, env=env, progress=progress, run=run)
    blobs, facts = known
    packages = tuple((name, version) for name, version in facts["packages"])
    return Bootstrap(layer=blobs[0], packages=packages, release=wanted.release.name)


def _build(
    wanted: Plan, folder: Path, *, cache: Cache, env: Mapping[str, str], progress: Progress,
    run: Callable[..., shell.Result],
) -> tuple[tuple[layer.Blob, ...], dict[str, list[list[str]]]]:  # fmt: skip
    task = f"base {wanted.release.id} {wanted.release.codename}"
    progress.start(task)
    with _workshop(cache) as shop:
        archive = shop / "root.tar"
        command, environment = mmdebstrap.prepare(
            wanted, shop, archive, tools=cache.root / "host-tools" / "bin", env=env, run=run
        )
        result = run(command, env=environment, timeout=_TIMEOUT)
        if result.returncode != 0:
            raise mmdebstrap.failure(result, wanted)
        installed = rootfs.packages(archive)
        hashes = _hashes(shop / mmdebstrap.INDEX, installed)
        entries = layer.arrange((*rootfs.entries(archive, epoch=wanted.epoch), hashes))
        packed = shop / "layer"
        with storage_errors(packed), packed.open("wb") as out:
            diff_id, digest, size, raw_size = layer.write(
                entries, out, wanted.compression, epoch=wanted.epoch, progress=lambda n: progress.advance(task, n)
            )
        blob = layer.Blob(
            path=packed, digest=digest, diff_id=diff_id, size=size, raw_size=raw_size,
            media_type=layer.MEDIA_TYPES["zstd"],
        )  # fmt: skip
        packages = [[one.name, one.version] for one in installed]
        blobs, facts = save(folder, (blob,), {"packages": packages})
    progress.finish(task, f"{len(packages)} packages, {raw_size / 1e6:.0f} MB, {size / 1e6:.0f} MB compressed")
    return blobs, facts


def _hashes(index: Path, installed: Sequence[dpkg.Package]) -> tar.Entry:
    with index.open(encoding="utf-8", errors="replace") as lines:
        text = debs.listed(lines, installed)
    return tar.Entry(path=debs.PATH, kind="file", mode=0o644, content=Inline(data=text.encode()))


@contextlib.contextmanager
def _workshop(cache: Cache) -> Iterator[Path]:
    with storage_errors(cache.tmp):
        cache.tmp.mkdir(parents=True, exist_ok=True)
        shop = Path(tempfile.mkdtemp(prefix="debian-", dir=cache.tmp))
    try:
        yield shop
    finally:
        shutil.rmtree(shop, ignore_errors=True)
