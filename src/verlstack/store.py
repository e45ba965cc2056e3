"""The cache of finished layers: one layer built in one process, kept under the key of everything that decides it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from verlstack import canonical, layer, tar, wheel
from verlstack.bytecode import VERSION, Compiler
from verlstack.cache import Cache, atomic, sha256_file, storage_errors
from verlstack.errors import WheelError
from verlstack.layer import MEDIA_TYPES, Blob, Compression

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from packaging.tags import Tag


@dataclass(frozen=True, kw_only=True)
class Job:
    """One layer to have: everything that decides its bytes, and the means to make them.

    Attributes:
        name: layer name.
        wheels: (path, sha256) of each wheel, sorted by file name.
        entries: entries that come from no wheel.
        leave_out: (sha256 of a wheel, glob in site-packages) of files that stay out.
        venv: where wheels are installed.
        format: image format number.
        epoch: mtime of every entry.
        compression: how the blob is compressed.
        interpreter: the stack's Python, to compile bytecode with.
        python: its X.Y.Z; patch releases may compile differently.
        cache_tag: its `sys.implementation.cache_tag`.
        tags: the wheel tags it accepts.
    """

    name: str
    wheels: tuple[tuple[Path, str], ...]
    entries: tuple[tar.Entry, ...]
    venv: wheel.Venv
    format: int
    epoch: int
    compression: Compression
    interpreter: Path
    python: str
    cache_tag: str
    tags: frozenset[Tag]
    leave_out: tuple[tuple[str, str], ...] = ()

    @cached_property
    def key(self) -> str:
        """SHA-256 over what decides the bytes; paths on this machine do not."""
        entries = [(e.path, e.uid, e.gid, e.kind, e.mode, e.link, layer.fingerprint(e)) for e in self.entries]
        wheels = [(path.name, sha256) for path, sha256 in self.wheels]
        parts = [wheels, entries, self.venv, self.format, self.epoch, self.compression, self.python, self.cache_tag]
        parts += [VERSION, sorted(map(str, self.tags)) if wheels else []]
        return canonical.digest([*parts, self.leave_out] if self.leave_out else parts)


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A layer in the cache.

    Attributes:
        name: layer name.
        blob: the layer.
        claims: path → fingerprint of every file and link in it, to find paths that two layers claim.
        cached: it was there already.
        seconds: time this process spent on it.
    """

    name: str
    blob: Blob
    claims: dict[str, str]
    cached: bool
    seconds: float


def is_there(job: Job, cache: Cache) -> bool:
    """Whether the cache seems to have the layer of a job; only `find` knows that it is sound."""
    return (cache.layers / f"{job.key}.json").exists()


def find(job: Job, cache: Cache) -> Finished | None:
    """The finished layer of a job, its bytes verified; one that is damaged is removed and counts as absent."""
    start = time.monotonic()
    path, meta = cache.layers / f"{job.key}.blob", cache.layers / f"{job.key}.json"
    try:
        table: dict[str, Any] = json.loads(meta.read_bytes())
        blob = Blob(path=path, media_type=MEDIA_TYPES["zstd"], **table["blob"])
        claims = dict(table["claims"])
        sound = f"sha256:{sha256_file(path)}" == blob.digest and path.stat().st_size == blob.size
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        sound = False
    if not sound:
        with storage_errors(meta):
            meta.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        return None
    return Finished(name=job.name, blob=blob, claims=claims, cached=True, seconds=time.monotonic() - start)


def build(job: Job, cache: Cache, progress: Callable[[int], None]) -> Finished:
    """Build a layer, or find it: whoever else builds the same one meanwhile is waited for.

    Args:
        job: the layer.
        cache: where it goes.
        progress: called with the uncompressed bytes just done.

    Raises:
        WheelError: a wheel is damaged, hostile or in conflict with another of the same layer.
        StorageError: the disk is full, read-only or forbidden.
    """
    with cache.lock(job.key):
        return find(job, cache) or _build(job, cache, progress)


def _build(job: Job, cache: Cache, progress: Callable[[int], None]) -> Finished:
    start = time.monotonic()
    entries = entries_of(job, progress)
    path = cache.layers / f"{job.key}.blob"
    with atomic(path, tmp=cache.tmp, mode=0o444) as out:
        diff_id, digest, size, raw_size = layer.write(entries, out, job.compression, epoch=job.epoch, progress=progress)
    blob = Blob(path=path, digest=digest, diff_id=diff_id, size=size, raw_size=raw_size, media_type=MEDIA_TYPES["zstd"])
    claims = {e.path: f"{e.mode:o} {layer.fingerprint(e) or e.link}" for e in entries if e.kind != "dir"}
    table = {"digest": digest, "diff_id": diff_id, "size": size, "raw_size": raw_size}
    with atomic(cache.layers / f"{job.key}.json", tmp=cache.tmp) as out:  # its presence makes the layer count
        out.write(canonical.dumps({"blob": table, "claims": claims}))
    return Finished(name=job.name, blob=blob, claims=claims, cached=False, seconds=time.monotonic() - start)


def entries_of(job: Job, progress: Callable[[int], None]) -> list[tar.Entry]:
    """All entries of a layer: wheels, loose files, bytecode for both, and each wheel's RECORD."""
    owners: dict[str, tuple[tar.Entry, str]] = {}
    found: list[tar.Entry] = []
    with Compiler(job.interpreter, job.cache_tag) as compiler:
        for path, sha256 in job.wheels:
            plan = wheel.plan(path, job.venv, job.tags)
            if strays := [stray for owner, stray in job.leave_out if owner == sha256]:
                plan = wheel.without(plan, job.venv, strays)
            bytecode = compiler.entries(plan.entries, progress)
            whole = [*plan.entries, *bytecode, wheel.record_entry(plan, job.venv, bytecode)]
            _check_owners(whole, path.name, owners)
            found += whole
        found += job.entries
        found += compiler.entries(job.entries, progress)
    return layer.arrange(found)


def _check_owners(entries: list[tar.Entry], name: str, owners: dict[str, tuple[tar.Entry, str]]) -> None:
    for entry in entries:
        other, owner = owners.setdefault(entry.path, (entry, name))
        if not layer.same(other, entry):
            raise conflict(entry.path, owner, name)


def conflict(path: str, one: str, other: str) -> WheelError:
    """The error for two wheels (or layers) that put different bytes at one path."""
    return WheelError(
        f"{one} and {other} both own /{path}, with different contents; which one wins would be chance",
        where=f"/{path}",
        todo="leave one of them out, or pin releases that agree",
    )


def check_claims(layers: list[Finished]) -> None:
    """Refuse an image in which two layers put different bytes at one path.

    Raises:
        WheelError: naming both layers and the path.
    """
    owners: dict[str, tuple[str, str]] = {}
    folders: dict[str, str] = {}
    for finished in layers:
        for path, fingerprint in finished.claims.items():
            known, owner = owners.setdefault(path, (fingerprint, finished.name))
            if known != fingerprint:
                raise conflict(path, f"layer {owner}", f"layer {finished.name}")
            folder = path
            while (folder := folder.rpartition("/")[0]) and folder not in folders:
                folders[folder] = finished.name
    for folder in folders.keys() & owners.keys():
        raise conflict(folder, f"layer {owners[folder][1]}", f"layer {folders[folder]} (as a folder)")
