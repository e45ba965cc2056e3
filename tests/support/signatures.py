"""Keys made for a test, and images with signatures in memory, as a registry or a layout might give them."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from verlstack import oci
from verlstack.errors import FetchError
from verlstack.signing import claims, keys
from verlstack.signing import verify as verifying

NAME = "reg.invalid/team/verl"
DIGEST = f"sha256:{'a' * 64}"
OTHER = f"sha256:{'b' * 64}"


def pair(folder, name, curve=None, password=None):
    """(private, public) files of a fresh key."""
    key = ec.generate_private_key(curve or ec.SECP256R1())
    sealed = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, sealed))
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


def loaded(folder, name):
    """(private, public) keys."""
    private, public = pair(folder, name)
    return keys.private(private, lambda: b""), keys.public(public)


def verify(store, known, **how):
    """What `verlstack verify` finds with these keys."""
    return verifying.verify(store, verifying.Wanted(keys=tuple(known)), **how)


@dataclass
class Memory:
    """A `stores.Store` whose manifests and blobs a test puts together."""

    name: str = NAME
    digest: str = DIGEST
    blobs: dict = field(default_factory=dict)
    entries: list = field(default_factory=list)
    checked: int = 0

    def manifest(self, digest):
        return json.loads(self.blob(digest))

    def blob(self, digest):
        if digest not in self.blobs:
            raise FetchError(f"no {digest[:12]} here")
        return self.blobs[digest]

    def about(self):
        yield from self.entries

    def check(self):
        self.checked += 1

    def put(self, *layers, size=None):
        """A manifest about the image that lists (bytes, media type, annotations)."""
        rows = []
        for data, kind, notes in layers:
            self.blobs[oci.digest(data)] = data
            row = {"digest": oci.digest(data), "size": size or len(data), "mediaType": kind, "annotations": notes}
            rows.append(row)
        data = json.dumps({"layers": rows, "config": {}}).encode()
        self.blobs[oci.digest(data)] = data
        self.entries.append({"digest": oci.digest(data), "size": len(data)})

    def sign(self, key, digest=DIGEST, name=NAME, data=None):
        """A signature of the image by a key."""
        data = claims.claim(name, digest) if data is None else data
        note = {claims.NOTE: base64.b64encode(key.sign(data)).decode()}
        self.put((data, claims.SIMPLE, note))

    def attest(self, key, kind="https://cyclonedx.org/bom", digest=DIGEST, statement=None):
        """A signed attestation about the image."""
        payload = claims.statement(NAME, digest, kind, {"a": 1}) if statement is None else statement
        self.put((claims.envelope(payload, key), claims.DSSE, {claims.NOTE: ""}))
