"""A registry on loopback that pulls can be tried against, well-behaved but for the faults that a test plants."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import zstandard

from verlstack.base import reference

DOCKER_GZIP = "application/vnd.docker.image.rootfs.diff.tar.gzip"
OCI_ZSTD = "application/vnd.oci.image.layer.v1.tar+zstd"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def sha(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def tarball(**files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as out:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):  # noqa: PLR0911 - one line a fault
        fake = self.server.fake
        url = urlsplit(self.path)
        fake.requests.append((self.path, dict(self.headers)))
        fault = fake.faults.get(self.path, [])
        if fault:
            status, body, cut = fault.pop(0)
            return self.send(status, body, cut=cut)
        if url.path == "/token":
            if fake.user and self.headers.get("Authorization") != f"Basic {fake.user}":
                return self.send(401, b"")
            scope = parse_qs(url.query)["scope"][0]
            return self.send(200, json.dumps({fake.token_key: f"T-{scope}"}).encode())
        if fake.token and self.headers.get("Authorization") != "Bearer T-repository:team/base:pull":
            where = f'Bearer realm="{fake.url}/token",service="fake",scope="repository:team/base:pull"'
            return self.send(401, b"", {"WWW-Authenticate": where})
        if fake.basic and self.headers.get("Authorization") != f"Basic {fake.basic}":
            return self.send(401, b"", {"WWW-Authenticate": 'Basic realm="x"'})
        digest = url.path.rpartition("/")[2]
        data = fake.blobs.get(digest)
        if data is None:
            return self.send(404, b"{}")
        if fake.elsewhere and "/blobs/" in self.path:
            return self.send(307, b"", {"Location": f"{fake.elsewhere}{self.path}?signature=secret"})
        start = 0
        if asked := self.headers.get("Range"):
            start = int(asked.removeprefix("bytes=").rstrip("-"))
        return self.send(206 if asked else 200, data[start:])

    def send(self, status, body, headers=(), cut=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A client that hung up is part of the game."""


class Fake:
    """A registry on loopback with one repository, `team/base`."""

    handler = Handler

    def __init__(self):
        self.blobs, self.faults, self.requests = {}, {}, []
        self.token, self.token_key, self.user, self.basic, self.elsewhere = False, "token", None, None, None
        self.server = Server(("127.0.0.1", 0), self.handler)
        self.server.fake = self
        self.host = f"127.0.0.1:{self.server.server_port}"
        self.url = f"http://{self.host}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def put(self, data):
        data = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.blobs[sha(data)] = data
        return sha(data)

    def image(self, layers, *, architecture="amd64", diff_ids=None, index=True, platforms=("amd64", "arm64")):
        """`layers`: (media type, raw tar); returns the reference."""
        described = []
        for media_type, raw in layers:
            packed = zstandard.compress(raw) if "zstd" in media_type else gzip.compress(raw, mtime=0)
            described.append({"mediaType": media_type, "digest": self.put(packed), "size": len(packed)})
        config = {
            "os": "linux", "architecture": architecture, "config": {"Env": ["PATH=/usr/bin", "A=b=c"]},
            "rootfs": {"type": "layers", "diff_ids": diff_ids or [sha(raw) for _, raw in layers]},
        }  # fmt: skip
        manifest = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": {"digest": self.put(config)},
                    "layers": described}  # fmt: skip
        digest = self.put(manifest)
        if index:
            entries = [{"digest": digest if arch == "amd64" else sha(arch.encode()), "mediaType": OCI_MANIFEST,
                        "platform": {"os": "linux", "architecture": arch}} for arch in platforms]  # fmt: skip
            digest = self.put({"schemaVersion": 2, "manifests": entries})
        return reference.parse(f"{self.host}/team/base:1@{digest}")
