"""What a build by BuildKit gets of this machine: the base, pip, verl's source, and the index with its credentials."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verlstack import index, oci, reading, source
from verlstack.cache import storage_errors
from verlstack.errors import FetchError, LockError, UsageError
from verlstack.layer import Blob
from verlstack.oci import Image, NamedBlob

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from verlstack.download import Artifact
    from verlstack.index import Index
    from verlstack.lockfile import Lock
    from verlstack.workshop import Workshop

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TAG = "os"


def require_online(shop: Workshop) -> None:
    """Refuse `--offline`, which a build in an engine cannot keep.

    Raises:
        UsageError: the workshop may use the cache alone.
    """
    if shop.offline:
        what = "a build in a container engine fetches from the index: it cannot be had with --offline"
        raise UsageError(what, where="--offline", todo="run it without --offline")


def base_layout(layout: Path, count: int, folder: Path, *, epoch: int) -> str:
    """Write the lowest layers of an image, base and interpreter, as an OCI layout of their own.

    Both builders then stand on the same bytes, and neither asks a registry for them.

    Args:
        layout: the composed image.
        count: how many layers.
        folder: where to write; blobs are hard links where the file system allows.
        epoch: its `created`.

    Returns:
        The named context, `oci-layout://…`.

    Raises:
        StorageError: the disk is full, read-only or forbidden.
    """
    _, manifest, config = oci.read_layout(layout)
    pairs = zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True)
    blobs = [_blob(layout, entry, diff_id) for entry, diff_id in list(pairs)[:count]]
    image = Image(
        layers=tuple(NamedBlob(name=_TAG, blob=blob) for blob in blobs),
        env=(("PATH", _PATH),),
        labels=(),
        epoch=epoch,
        architecture=config["architecture"],
        working_dir="/",
        command=("sh",),
    )
    oci.write_layout(image, folder, tag=_TAG)
    return f"oci-layout://{folder}@{image.digest}"


def _blob(layout: Path, entry: Mapping[str, Any], diff_id: str) -> Blob:
    return Blob(
        path=layout / oci.blob_path(entry["digest"]),
        digest=entry["digest"],
        diff_id=diff_id,
        size=entry["size"],
        raw_size=0,  # nobody asks
        media_type=entry["mediaType"],
    )


def contexts(lock: Lock, shop: Workshop, folder: Path) -> dict[str, str]:
    """Named contexts: the lock's `pip`, and `verl-source`, verl's sdist unpacked.

    Raises:
        LockError: the lock names no such source.
        FetchError, HashMismatchError, StorageError: as `Workshop.fetch`.
        BuildError: the sdist is damaged or hostile.
    """
    pips = [tool for tool in lock.build_tools if tool.project == "pip"]
    verls = [built.source for built in lock.built if built.source.project == "verl"]
    if not pips or not verls:
        raise LockError("the lock names no pip or no source of verl", todo=f"run `verlstack lock {lock.stack}`")
    files = shop.fetch([pips[0], verls[0]])
    with storage_errors(folder):
        (folder / "pip").mkdir()
        shutil.copy(files[pips[0].sha256], folder / "pip" / pips[0].filename)
    verl = source.unpack(files[verls[0].sha256], folder / "verl")
    return {"pip": str(folder / "pip"), "verl-source": str(verl)}


def wheelhouse(wheel: Artifact, shop: Workshop, folder: Path) -> dict[str, str]:
    """The context `wheelhouse`, which holds a pinned compiled wheel; no index has it.

    Raises:
        FetchError: the cache has not got it, though a finished layer may be there.
        StorageError: the disk is full, read-only or forbidden.
    """
    kept = shop.cache.file(wheel.sha256, wheel.filename)
    if not kept.is_file():
        what = f"the pinned wheel {wheel.filename} is not in the cache"
        raise FetchError(what, where=str(kept), todo="run `verlstack fetch`, which looks for it where the pins say")
    with storage_errors(folder):
        (folder / "wheelhouse").mkdir()
        shutil.copy(kept, folder / "wheelhouse" / wheel.filename)
    return {"wheelhouse": str(folder / "wheelhouse")}


def secrets(env: Mapping[str, str], folder: Path) -> dict[str, Path]:
    """Files that tell pip and uv the index that this machine is configured with, and its CA bundle; id → file, 0600.

    Raises:
        FetchError: pip's configuration is damaged, or the CA bundle cannot be read.
        StorageError: the disk is full, read-only or forbidden.
    """
    where = index.configured(env)
    texts = {"pip_conf": "".join(_pip_lines(where)), "uv_toml": "".join(_uv_lines(where))}
    if bundle := index.ca_bundle(where, env):
        texts["ca"] = _read(Path(bundle))
    with storage_errors(folder):
        return {name: _private(folder / name, text) for name, text in texts.items()}


def _pip_lines(where: Index) -> Iterator[str]:
    # pip reads its file with RawConfigParser: a % in an address is a %
    yield f"[global]\nindex-url = {where.primary}\n"
    if where.extras:
        yield f"extra-index-url = {' '.join(where.extras)}\n"


def _uv_lines(where: Index) -> Iterator[str]:
    # Everything is installed by hash, so it does not matter which index has the file.
    yield 'index-strategy = "unsafe-best-match"\n'
    yield from (f"[[index]]\nurl = {_toml(url)}\n" for url in where.extras)
    yield f"[[index]]\nurl = {_toml(where.primary)}\ndefault = true\n"


def _toml(text: str) -> str:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}"'


def _read(bundle: Path) -> str:
    try:
        return reading.text(bundle, errors="replace")
    except OSError as e:
        todo = "correct REQUESTS_CA_BUNDLE, PIP_CERT or pip's `cert`"
        raise FetchError(f"the CA bundle cannot be read: {e.strerror}", where=str(bundle), todo=todo) from e


def _private(path: Path, text: str) -> Path:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write(text)
    return path
