"""`verlstack sign` with a key: a signature or attestation more in cosign's place beside an image in a registry."""

from __future__ import annotations

import base64
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verlstack import canonical, oci
from verlstack.base import registry
from verlstack.errors import HashMismatchError, SignatureError
from verlstack.signing import claims
from verlstack.signing.signer import Signed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from verlstack.signing.keys import PrivateKey
    from verlstack.upload import Writer

_TRIES = 3  # as often somebody else may write to the same tag meanwhile
_MOST = 500  # signatures in one manifest
_THEN = "0001-01-01T00:00:00Z"  # cosign's time of no time


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A signed thing for a registry: its bytes, media type, and annotations."""

    data: bytes
    media_type: str
    notes: dict[str, str]

    @property
    def descriptor(self) -> dict[str, Any]:
        """As a manifest lists it."""
        size, digest = len(self.data), oci.digest(self.data)
        return {"annotations": self.notes, "digest": digest, "mediaType": self.media_type, "size": size}


@dataclass(frozen=True)
class Keyed:
    """Who has a key."""

    key: PrivateKey

    def image(self, writer: Writer) -> Signed:
        """As of `signer.Signer`."""
        digest, name = writer.reference.digest, f"{writer.reference.host}/{writer.reference.repository}"
        writer.raw("manifests", digest)  # there must be something to sign
        data = claims.claim(name, digest)
        note = {claims.NOTE: base64.b64encode(self.key.sign(data)).decode()}
        layer = Layer(data=data, media_type=claims.SIMPLE, notes=note)
        return Signed(by=self.key.public.id, new=_append(writer, "sig", [layer], self.key))

    def attest(self, writer: Writer, predicates: dict[str, Any]) -> Signed:
        """As of `signer.Signer`."""
        digest, name = writer.reference.digest, f"{writer.reference.host}/{writer.reference.repository}"
        layers = []
        for kind, predicate in predicates.items():
            data = claims.envelope(claims.statement(name, digest, kind, predicate), self.key)
            layers.append(Layer(data=data, media_type=claims.DSSE, notes={claims.NOTE: "", claims.PREDICATE: kind}))
        return Signed(by=self.key.public.id, new=_append(writer, "att", layers, self.key))


def _append(writer: Writer, suffix: str, layers: Sequence[Layer], key: PrivateKey) -> bool:
    tag = f"{registry.fallback_tag(writer.reference.digest)}.{suffix}"
    with tempfile.TemporaryDirectory(prefix="verlstack-") as name:
        for attempt in range(_TRIES):
            known = _present(writer, tag)
            new = [x for x in layers if not _is_known(writer, x, known, key)]
            if not new:
                return False
            for one in new:
                writer.push_bytes(one.data, Path(name))
            rows = [*known, *(x.descriptor for x in new)]
            config = _config([x["digest"] for x in rows])
            writer.push_bytes(config, Path(name))
            described = {"digest": oci.digest(config), "mediaType": oci.CONFIG, "size": len(config)}
            table = {"config": described, "layers": rows, "mediaType": oci.MANIFEST, "schemaVersion": 2}
            try:
                writer.push_manifest(canonical.dumps(table), oci.MANIFEST, tag)
            except HashMismatchError:
                if attempt + 1 == _TRIES:
                    raise
            else:
                return True
    return True


def _present(writer: Writer, tag: str) -> list[dict[str, Any]]:
    """What the tag's manifest lists.

    Raises:
        SignatureError: it is nothing that could be added to.
    """
    digest = writer.resolve(tag)
    if digest is None:
        return []
    rows = writer.manifest(digest).get("layers")
    if not isinstance(rows, list) or not all(map(oci.is_descriptor, rows)) or len(rows) >= _MOST:
        what = "what lies in the place of the signatures is no list of them, or has no end"
        todo = "see who wrote it, and delete the tag"
        raise SignatureError(what, where=f"{writer.reference.api}/manifests/{tag}", todo=todo)
    return rows


def _is_known(writer: Writer, one: Layer, known: Sequence[dict[str, Any]], key: PrivateKey) -> bool:
    """Whether this key has signed the same before: ECDSA gives other bytes each time, so the bytes do not tell."""
    digest, keys = writer.reference.digest, (key.public,)
    for row in known:
        if row["mediaType"] != one.media_type:
            continue
        if one.media_type == claims.SIMPLE:
            notes = row.get("annotations") or {}
            same = row["digest"] == oci.digest(one.data)
            if same and claims.judge_claim(one.data, str(notes.get(claims.NOTE)), keys, digest).signers:
                return True
        elif (row.get("annotations") or {}).get(claims.PREDICATE) == one.notes[claims.PREDICATE]:
            data = writer.raw("blobs", row["digest"])
            same = claims.payload_of(data) == claims.payload_of(one.data)
            if same and claims.judge_envelope(data, keys, digest).signers:
                return True
    return False


def _config(digests: Sequence[str]) -> bytes:
    """The config that cosign writes: nothing but the layers' digests."""
    history = [{"created": _THEN} for _ in digests]
    root = {"diff_ids": list(digests), "type": "layers"}
    table = {"architecture": "", "config": {}, "created": _THEN, "history": history, "os": "", "rootfs": root}
    return canonical.dumps(table)
