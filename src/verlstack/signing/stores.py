"""Where an image and what is signed about it can lie: in a registry, in a folder, or in an archive of one."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import tarfile
from concurrent import futures
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from verlstack import images, oci, told
from verlstack.base import reference, registry
from verlstack.base.transport import MAX_DOCUMENT
from verlstack.errors import SignatureError, UsageError
from verlstack.foreigntar import Bounded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from verlstack.base.registry import Client

# How `cosign save` marks what belongs to an image; a marked thing that has a name besides is not of its making.
_KINDS = {f"dev.cosignproject.cosign/{x}" for x in ("sigs", "atts", "sboms")}
_LOADED = "io.containerd.image.name"  # an engine loads what has this under it, whatever else it is called
_TAGS = ("sig", "att")
_MOST = 500  # manifests that may belong to one image
_MOST_MEMBERS = 20_000  # of an archive
_CHUNK = 1 << 20
_TODO = "copy or export the image again"


class Store(Protocol):
    """One image, and the documents about it."""

    @property
    def name(self) -> str:
        """For messages, and of a registry HOST/REPOSITORY."""

    @property
    def digest(self) -> str:
        """Of the image's manifest."""

    def manifest(self, digest: str) -> dict[str, Any]:
        """A manifest, verified."""

    def blob(self, digest: str) -> bytes:
        """A small blob, verified."""

    def about(self) -> Iterator[dict[str, Any]]:
        """Descriptors of manifests that may be about the image."""

    def check(self) -> None:
        """See that the image is whole."""


@dataclass(frozen=True)
class Remote:
    """In a registry; its layers are not read, for whoever pulls them checks them against the manifest."""

    client: Client

    @property
    def name(self) -> str:
        """HOST/REPOSITORY."""
        return f"{self.client.reference.host}/{self.client.reference.repository}"

    @property
    def digest(self) -> str:
        """What the reference asks for."""
        return self.client.digest

    def manifest(self, digest: str) -> dict[str, Any]:
        """A manifest, verified by the client."""
        return self.client.manifest(digest)

    def blob(self, digest: str) -> bytes:
        """A small blob, verified by the client."""
        return self.client.raw("blobs", digest)

    def about(self) -> Iterator[dict[str, Any]]:
        """What cosign's tags name, and the referrers."""
        for suffix in _TAGS:
            if found := self.client.resolve(f"{registry.fallback_tag(self.digest)}.{suffix}"):
                yield {"digest": found, "size": 0}
        yield from self.client.referrers(self.digest)

    def check(self) -> None:
        """See that the registry has the manifest that is verified."""
        self.client.manifest(self.digest)


@dataclass
class Local:
    """In a folder or archive with an OCI layout; `opened` makes one.

    Attributes:
        path: of it.
        members: where each file begins in an archive, and its size; None of a folder.
    """

    path: Path
    members: dict[str, tuple[int, int]] | None
    digest: str = ""
    _about: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        """Its path."""
        return str(self.path)

    def manifest(self, digest: str) -> dict[str, Any]:
        """A manifest, verified.

        Raises:
            SignatureError: not there, not what its digest says, or no manifest.
        """
        return self._object(self.blob(digest), digest)

    def blob(self, digest: str) -> bytes:
        """A small blob, verified.

        Raises:
            SignatureError: not there, too long, or not what its digest says.
        """
        data = self._small(oci.blob_path(digest)) if oci.DIGEST.fullmatch(digest) else None
        if data is None:
            raise self._damaged(f"it lacks {digest}")
        if oci.digest(data) != digest:
            raise self._damaged(f"a blob is not what its digest says: {digest}")
        return data

    def about(self) -> Iterator[dict[str, Any]]:
        """Every other manifest in the index, and those that it lists where it is an index itself."""
        for entry in self._about:
            with contextlib.suppress(SignatureError):
                rows = self.manifest(entry["digest"]).get("manifests")
                yield from (x for x in rows if oci.is_descriptor(x)) if isinstance(rows, list) else [entry]

    def load(self) -> None:
        """Read the index.

        Raises:
            SignatureError: it is none, or holds not exactly one image.
        """
        index = self._small("index.json")
        if index is None:
            raise UsageError("no OCI layout here", where=self.name, todo="name a layout, an oci-archive or a reference")
        rows = self._object(index, "index.json").get("manifests")
        if not isinstance(rows, list) or not all(map(oci.is_descriptor, rows)):
            raise self._damaged("its index is none")
        found = {str(x["digest"]) for x in rows if not _is_about(x)}
        if len(found) != 1:
            raise self._damaged("it does not hold exactly one image")
        (self.digest,) = found
        self._about = [x for x in rows if x["digest"] != self.digest][:_MOST]

    def check(self) -> None:
        """Hash every blob of the image; a `manifest.json` for older engines must name the same ones.

        Raises:
            SignatureError: naming what is missing or not what its digest says.
        """
        wanted: dict[str, int] = {}
        self._parts(self.digest, wanted, depth=2)
        with futures.ThreadPoolExecutor() as pool:
            list(pool.map(self._hash, wanted, wanted.values()))

    def _parts(self, digest: str, wanted: dict[str, int], depth: int) -> None:
        document = self.manifest(digest)
        members, layers = document.get("manifests"), document.get("layers")
        if isinstance(members, list) and depth and all(map(oci.is_descriptor, members)):
            for one in members:
                self._parts(one["digest"], wanted, depth - 1)
            return
        parts = [document.get("config"), *(layers if isinstance(layers, list) else [None])]
        if not all(map(oci.is_descriptor, parts)):
            raise self._damaged("its manifest describes blobs that no image has")
        wanted |= {str(x["digest"]): int(x["size"]) for x in parts if x}
        self._check_older(document)

    def _check_older(self, manifest: Mapping[str, Any]) -> None:
        """An engine of before OCI reads `manifest.json` instead, which no signature covers."""
        if (data := self._small("manifest.json")) is None:
            if self._find("repositories"):
                raise self._damaged("its repositories, which the oldest engines load, may be another image")
            return
        config = oci.blob_path(manifest["config"]["digest"])
        layers = [oci.blob_path(x["digest"]) for x in manifest["layers"]]
        try:
            rows = [(x["Config"], x["Layers"]) for x in json.loads(data)]
        except (ValueError, KeyError, TypeError, RecursionError):
            rows = []
        if rows != [(config, layers)]:
            raise self._damaged("its manifest.json is for another image than its index")

    def _hash(self, digest: str, size: int) -> None:
        found, have = self._find(oci.blob_path(digest)), hashlib.sha256()
        if found and found[2] == size:
            for piece in _pieces(*found):
                have.update(piece)
        if not found or f"sha256:{have.hexdigest()}" != digest:
            raise self._damaged(f"a blob is missing, or is not what its digest says: {digest}")

    def _small(self, name: str) -> bytes | None:
        """The bytes of a document, or None where there is no such file."""
        found = self._find(name)
        if found and found[2] > MAX_DOCUMENT:
            raise self._damaged(f"{name} is longer than any document")
        return b"".join(_pieces(*found)) if found else None

    def _find(self, name: str) -> tuple[Path, int, int] | None:
        """Where the bytes of a file lie: path, offset, size."""
        if self.members is not None:
            return (self.path, *self.members[name]) if name in self.members else None
        path = self.path / name
        return None if path.is_symlink() or not path.is_file() else (path, 0, path.stat().st_size)

    def _object(self, data: bytes, name: str) -> dict[str, Any]:
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise self._damaged(f"{name} is no document")
        return document

    def _damaged(self, what: str) -> SignatureError:
        return SignatureError(f"this image is damaged, or somebody changed it: {what}", where=self.name, todo=_TODO)


def _notes(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    notes = entry.get("annotations")
    return notes if isinstance(notes, dict) else {}


def _is_about(entry: Mapping[str, Any]) -> bool:
    """Whether an entry of an index is for what refers to the image; what an engine would load by a name is not."""
    notes = _notes(entry)
    if _LOADED in notes:
        return False
    if oci.REF_NAME in notes:
        return oci.is_about(dict(entry))
    return notes.get("kind") in _KINDS


@contextlib.contextmanager
def opened(text: str, path: Path, env: Mapping[str, str], *, insecure: bool) -> Iterator[Store]:
    """The image that a user names: a folder with a layout, an archive of one, or a reference.

    Args:
        text: as the user wrote it.
        path: the same, as a path.
        env: as for `transport.means`.
        insecure: plain http, on loopback only.

    Raises:
        UsageError: it names nothing.
        SignatureError: the layout is damaged.
        FetchError: the registry does not give it.
    """
    if path.exists():
        if not path.is_dir() and not path.is_file():
            raise UsageError(
                "neither a folder nor a file", where=str(path), todo="name a layout, or an archive on disk"
            )
        store = Local(path, None if path.is_dir() else _members(path))
        store.load()
        yield store
    else:
        ref = reference.place(text, insecure=insecure)
        with registry.connect(ref, env) as client:
            if ref.digest == reference.NO_DIGEST:
                if not ref.tag:
                    raise UsageError(f"{text} names no image", todo="write HOST/REPOSITORY:TAG or @sha256:…")
                client.reference = dataclasses.replace(ref, digest=images.named(client))
            yield Remote(client)


def _pieces(path: Path, offset: int, size: int) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        while size and (piece := file.read(min(_CHUNK, size))):
            yield piece
            size -= len(piece)


def _members(path: Path) -> dict[str, tuple[int, int]]:
    """Every file of an uncompressed tar; a name that is there twice means different things to different readers.

    Raises:
        SignatureError: it is no such tar.
    """
    found: dict[str, tuple[int, int]] = {}
    try:
        with tarfile.open(path, "r:", tarinfo=Bounded, encoding="utf-8", errors="backslashreplace") as archive:
            for number, member in enumerate(archive):
                name = member.name.removeprefix("./")
                if number >= _MOST_MEMBERS or name in found:
                    raise tarfile.ReadError(f"{name} is in it twice, or it has more files than any image")
                if member.isreg():
                    found[name] = (member.offset_data, member.size)
    except (tarfile.TarError, EOFError, ValueError, ArithmeticError) as e:
        what = f"this is no archive of an image: {told.escaped(str(e))}"
        raise SignatureError(what, where=str(path), todo="name an uncompressed oci-archive") from e
    return found
