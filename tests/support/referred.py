"""An image in a registry, and documents that refer to it."""

from __future__ import annotations

import json

from support.fake_registry import OCI_MANIFEST, sha
from support.published import image
from verlstack import publish, upload
from verlstack.base import reference


def writer(place):
    return upload.Writer(reference.place(place, insecure=True))


def statement(subject, number, kind="application/vnd.test"):
    """A manifest that refers to a digest, and its one blob."""
    blob = f"statement {number}".encode()
    layers = [{"digest": sha(blob), "mediaType": "text/plain", "size": len(blob)}]
    document = {
        "schemaVersion": 2, "mediaType": OCI_MANIFEST, "artifactType": kind, "layers": layers,
        "config": {"digest": sha(b"{}"), "mediaType": "application/vnd.oci.empty.v1+json", "size": 2},
        "subject": {"digest": subject, "mediaType": OCI_MANIFEST, "size": 1},
    }  # fmt: skip
    return json.dumps(document).encode(), blob


def refer(place, subject, numbers, folder):
    """Attach statements to a subject; their digests."""
    made = []
    with writer(place) as client:
        client.push_bytes(b"{}", folder)
        for number in numbers:
            manifest, blob = statement(subject, number)
            client.push_bytes(blob, folder)
            made.append(client.attach(manifest))
    return made


def source(place, tmp_path, shop):
    """An image with a signature in cosign's way, two statements, and one that refers to a statement; its digest."""
    folder = image(tmp_path / "image")
    digest = publish.publish(folder, place, shop, insecure=True, record=False).digest
    (tmp_path / "blobs").mkdir()
    first, _ = refer(place, digest, (1, 2), tmp_path / "blobs")
    refer(place, first, (3,), tmp_path / "blobs")
    manifest, blob = statement(digest, 4)
    document = json.loads(manifest)
    del document["subject"]
    with writer(place) as client:
        client.push_bytes(blob, tmp_path / "blobs")
        client.push_manifest(json.dumps(document).encode(), OCI_MANIFEST, f"{digest.replace(':', '-')}.sig")
    return digest
