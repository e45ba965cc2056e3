"""OCI layouts of a few small files, as somebody else's tool might have written them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile

GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
STATUS = """Package: gcc
Status: install ok installed
Version: 4:12.2.0-3
Architecture: amd64
Source: gcc-defaults (1.203)
Installed-Size: 50

Package: gone
Status: deinstall ok config-files
Version: 1
Architecture: amd64

Package: libc6
Status: install ok installed
Version: 2.36-9
Architecture: amd64
Source: glibc
Installed-Size: 13000
"""
FIT = {
    "usr/bin/python3.10": b"elf",
    "usr/bin/gcc": b"elf",
    "usr/include/python3.10/Python.h": b"",
    "usr/include/python3.10/patchlevel.h": b'#define PY_VERSION  "3.10.12"\n',
    "etc/os-release": b'ID=ubuntu\nVERSION_ID="22.04"\nPRETTY_NAME="Ubuntu 22.04"\n',
    "var/lib/dpkg/status": STATUS.encode(),
    "usr/share/doc/libc6/copyright": b"LGPL",
    "usr/lib/x86_64-linux-gnu/libc.so.6": b"\x7fELF GNU C Library (Debian) stable release version 2.36.\n",
    "usr/lib/x86_64-linux-gnu/libstdc++.so.6": "-> libstdc++.so.6.0.30",
    "usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30": b"\x7fELF\0GLIBCXX_3.4.9\0GLIBCXX_3.4.30\0GLIBCXX_3.4\0",
}


def sha(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def tarball(files):
    """A tar of name → bytes, or "-> target"."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as out:
        for name, what in files.items():
            info = tarfile.TarInfo(name)
            if isinstance(what, str):
                info.type, info.linkname = tarfile.SYMTYPE, what.removeprefix("-> ")
            else:
                info.size = len(what)
                info.mode = 0o755 if what.startswith((b"\x7fELF", b"#!")) else 0o644
            out.addfile(info, io.BytesIO(what) if isinstance(what, bytes) else None)
    return buffer.getvalue()


def write(folder, *layers, labels=None, architecture="amd64", manifest=None, config=None, index=None):
    """A layout of these layers; the three dicts replace fields of the documents."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)

    def put(data):
        data = data if isinstance(data, bytes) else json.dumps(data).encode()
        (blobs / sha(data).removeprefix("sha256:")).write_bytes(data)
        return {"digest": sha(data), "size": len(data)}

    raws = [tarball(files) for files in layers]
    described = [{"mediaType": GZIP, **put(gzip.compress(raw, mtime=0))} for raw in raws]
    document = {
        "os": "linux", "architecture": architecture, "config": {"Env": ["PATH=/usr/bin"], "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [sha(raw) for raw in raws]},
    }  # fmt: skip
    described_config = {"mediaType": CONFIG, **put(document | (config or {}))}
    own = put({"schemaVersion": 2, "mediaType": MANIFEST, "config": described_config,
               "layers": described} | (manifest or {}))  # fmt: skip
    (folder / "index.json").write_text(json.dumps({"manifests": [{"mediaType": MANIFEST, **own}]} | (index or {})))
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    return folder


def change(folder, edit):
    """Let `edit(manifest, config)` change both documents of a layout, and write them under their new digests."""

    def load(digest):
        return json.loads((folder / "blobs/sha256" / digest.removeprefix("sha256:")).read_bytes())

    def put(document):
        data = json.dumps(document).encode()
        (folder / "blobs/sha256" / sha(data).removeprefix("sha256:")).write_bytes(data)
        return {"digest": sha(data), "size": len(data)}

    index = json.loads((folder / "index.json").read_bytes())
    manifest = load(index["manifests"][0]["digest"])
    config = load(manifest["config"]["digest"])
    own = dict(manifest["config"])
    edit(manifest, config)
    if manifest["config"] == own:
        manifest["config"].update(put(config))
    index["manifests"][0].update(put(manifest))
    (folder / "index.json").write_text(json.dumps(index))
