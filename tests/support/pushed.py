"""An image of the tiny stack in a registry, and what `attest` needs around it."""

from __future__ import annotations

from types import SimpleNamespace

from support import imagelayers
from verlstack import oci, upload
from verlstack.base import reference


def image(host, folder, test):
    """In a repository named after the test: its layout, its reference, its digest."""
    layout = imagelayers.image(folder / "image")
    name = f"{host}/team/{test.partition('[')[0].replace('_', '-')}"
    digest, manifest, _ = oci.read_layout(layout)
    ref = reference.place(name, insecure=True)
    with upload.writer(ref, {}) as writer:
        for entry in (manifest["config"], *manifest["layers"]):
            writer.push_blob(entry["digest"], layout / oci.blob_path(entry["digest"]))
        writer.push_manifest((layout / oci.blob_path(digest)).read_bytes(), oci.MANIFEST, "one")
    return SimpleNamespace(folder=layout, name=name, digest=digest, ref=ref, at=f"{name}@{digest}")


def surroundings(folder):
    """A workshop's worth, with the lock of the image to come."""
    found = imagelayers.surroundings(folder)
    found.cache.parts.mkdir(parents=True, exist_ok=True)
    (folder / "tiny.txt").touch()
    (folder / "tiny.lock.toml").touch()
    return SimpleNamespace(**vars(found), env={"HOME": str(folder)}, constraints=folder)
