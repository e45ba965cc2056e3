"""Debian's docker-registry on loopback, and a line through which a client's bytes are counted."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

CONFIG = """
version: 0.1
storage:
  filesystem: {{rootdirectory: {folder}}}
  delete: {{enabled: true}}
http: {{addr: "127.0.0.1:{port}"{tls}}}
{auth}
"""
LOGIN = ("user", "s3cret")
HTPASSWD = "user:$2b$04$abcdefghijklmnopqrstuuLZYjhNQAOdpbzt4WxWlUHjv1wsyH5DG\n"


@dataclass
class Real:
    """Debian's docker-registry; use as a context manager.

    Attributes:
        program: its path.
        folder: for its config and files.
        secure: TLS with an authority of its own, and a password.
    """

    program: Path
    folder: Path
    secure: bool = False

    def __post_init__(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        auth = tls = ""
        if self.secure:
            make_certificate(self.folder)
            (self.folder / "htpasswd").write_text(HTPASSWD)
            tls = f", tls: {{certificate: {self.folder}/cert.pem, key: {self.folder}/key.pem}}"
            auth = f"auth: {{htpasswd: {{realm: test, path: {self.folder}/htpasswd}}}}"
        text = CONFIG.format(folder=self.folder / "registry", port=self.port, tls=tls, auth=auth)
        (self.folder / "registry.yml").write_text(text)

    @property
    def host(self):
        return f"127.0.0.1:{self.port}"

    @property
    def authority(self):
        """The certificate to trust."""
        return self.folder / "cert.pem"

    def start(self):
        words = [self.program, "serve", self.folder / "registry.yml"]
        self.server = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for line in self.server.stderr:  # it says so once it listens
            if "listening on" in line:
                break
        else:
            pytest.fail("docker-registry ended before it listened")
        self.reader = threading.Thread(target=self.server.stderr.read, daemon=True)  # a full pipe would stop it
        self.reader.start()
        return self

    def kill(self):
        self.server.kill()
        self.server.wait()
        self.reader.join()
        self.server.stderr.close()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        if not self.server.stderr.closed:
            self.kill()


@contextlib.contextmanager
def running(program: Path, folder: Path):
    """Address `127.0.0.1:PORT` of an empty registry that keeps its files below a folder."""
    with Real(program, folder) as one:
        yield one.host


def make_certificate(folder: Path):
    """An authority that is its own server's certificate, for 127.0.0.1."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip


@dataclass
class Line:
    """Forwards connections to a server, and counts what comes back.

    Attributes:
        address: where to connect to instead.
        received: bytes that the server sent, HTTP headers too.
        cuts: for the next connections, after how many bytes of the client's each is cut.
        back_cuts: likewise, of the server's.
    """

    to: str
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    received: int = 0
    cuts: list[int] = field(default_factory=list)
    back_cuts: list[int] = field(default_factory=list)
    guard: threading.Lock = field(default_factory=threading.Lock)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listener.getsockname()[1]}"

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self.listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client):
        host, _, port = self.to.partition(":")
        with client, socket.create_connection((host, int(port))) as server:
            how = {"counted": True, "most": self.back_cuts.pop(0) if self.back_cuts else None}
            back = threading.Thread(target=self._pump, args=(server, client), kwargs=how, daemon=True)
            back.start()
            self._pump(client, server, counted=False, most=self.cuts.pop(0) if self.cuts else None)
            back.join()

    def _pump(self, source, target, *, counted, most=None):
        with contextlib.suppress(OSError):
            while (most is None or most > 0) and (data := source.recv(1 << 16 if most is None else min(most, 1 << 16))):
                most = None if most is None else most - len(data)
                if counted:
                    with self.guard:
                        self.received += len(data)
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
