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
http: {{addr: "127.0.0.1:{port}"}}
"""


@contextlib.contextmanager
def running(program: Path, folder: Path):
    """Address `127.0.0.1:PORT` of an empty registry that keeps its files below a folder."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "registry.yml").write_text(CONFIG.format(folder=folder / "registry", port=port))
    words = [program, "serve", folder / "registry.yml"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as server:
        try:
            for line in server.stderr:  # it says so once it listens
                if "listening on" in line:
                    break
            else:
                pytest.fail("docker-registry ended before it listened")
            threading.Thread(target=server.stderr.read, daemon=True).start()  # a full pipe would stop it
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()


@dataclass
class Line:
    """Forwards connections to a server, and counts what comes back.

    Attributes:
        address: where to connect to instead.
        received: bytes that the server sent, HTTP headers too.
    """

    to: str
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    received: int = 0
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
            back = threading.Thread(target=self._pump, args=(server, client), kwargs={"counted": True}, daemon=True)
            back.start()
            self._pump(client, server, counted=False)
            back.join()

    def _pump(self, source, target, *, counted):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if counted:
                    with self.guard:
                        self.received += len(data)
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
