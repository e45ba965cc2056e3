"""An OCI layout on disk as a source of images, read as warily as a registry."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from verlstack import oci
from verlstack.base import registry, transport
from verlstack.cache import sha256_file, storage_errors
from verlstack.errors import BaseImageError, HashMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_TODO = "make or copy the layout again"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One image of a layout; a `pull.Source`.

    Attributes:
        folder: holds `index.json` and `blobs/`.
        digest: of the manifest or index that `index.json` names.
    """

    folder: Path
    digest: str

    @property
    def name(self) -> str:
        """The folder and the digest, for messages."""
        return f"oci:{self.folder}@{self.digest}"

    def manifest(self, digest: str) -> dict[str, Any]:
        """A manifest or index, verified.

        Raises:
            BaseImageError: not there.
            HashMismatchError: not what its digest says.
            FetchError: no JSON object.
        """
        path = self._blob(digest)
        if path.stat().st_size > transport.MAX_DOCUMENT:
            raise BaseImageError("a manifest or config of this size is none", where=str(path), todo=_TODO)
        return transport.document_of(self._verified(digest, path).read_bytes(), str(path))

    def config(self, digest: str) -> dict[str, Any]:
        """An image's config, verified; raises like `manifest`."""
        return self.manifest(digest)

    def blob(self, digest: str, size: int, part: Path, advance: Callable[[int], None]) -> None:
        """Copy a blob to `part`, and verify the copy.

        A link would be free, but the cache sets its files' modes, and the layout is somebody else's.

        Raises:
            BaseImageError: not there, or of another size than the manifest says.
            HashMismatchError: not what its digest says.
            StorageError: the disk is full, read-only or forbidden.
        """
        source = self._blob(digest)
        part.unlink(missing_ok=True)
        with storage_errors(part):
            shutil.copyfile(source, part)
        try:
            self._verified(digest, part, size)
        except (HashMismatchError, BaseImageError):
            part.unlink()
            raise
        advance(size)

    def _blob(self, digest: str) -> Path:
        path = self.folder / oci.blob_path(digest)
        if path.is_symlink() or not path.is_file():
            raise BaseImageError("the layout lacks a blob", where=str(path), todo=_TODO)
        return path

    def _verified(self, digest: str, path: Path, size: int | None = None) -> Path:
        have = f"sha256:{sha256_file(path)}"
        if have != digest:
            raise HashMismatchError(
                f"a blob of the layout {self.folder} is not what its digest says: wanted {digest}, got {have}",
                where=str(self.folder / oci.blob_path(digest)),
                todo=_TODO,
            )
        if size not in {None, there := path.stat().st_size}:
            raise BaseImageError(
                f"a blob has {there} bytes, the manifest says {size}",
                where=str(self.folder / oci.blob_path(digest)),
                todo=_TODO,
            )
        return path


def opened(folder: Path) -> Layout:
    """The one image, or the index of one image for several machines, that a layout holds.

    Raises:
        BaseImageError: no layout, or one with several images.
    """
    index = folder / "index.json"
    named = transport.document_of(_start(index), str(index)).get("manifests")
    digests = {str(one.get("digest")) for one in named if isinstance(one, dict)} if isinstance(named, list) else set()
    if len(digests) != 1 or not registry.DIGEST.fullmatch(digest := digests.pop()):
        raise BaseImageError(
            "the layout does not hold exactly one image",
            where=str(index),
            todo="copy the one you mean to a folder of its own (`skopeo copy oci:DIR:TAG oci:ONE:TAG`)",
        )
    return Layout(folder=folder, digest=digest)


def _start(index: Path) -> bytes:
    """The bytes of `index.json`; it may be anything, a pipe or a device too, so it is looked at before it is opened."""
    try:
        if not index.is_file():
            raise BaseImageError(
                "no OCI layout here: no such file", where=str(index), todo="name the folder that holds index.json"
            )
        with index.open("rb") as file:
            data = file.read(transport.MAX_DOCUMENT + 1)
    except OSError as e:
        raise BaseImageError(f"the layout cannot be read: {e.strerror}", where=str(index), todo=_TODO) from e
    if len(data) > transport.MAX_DOCUMENT:
        raise BaseImageError("an index of this size is none", where=str(index), todo=_TODO)
    return data
