"""A web server on this machine that misbehaves on demand: each path has a list of replies, the last one repeats."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import struct
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer and its fault.

    Attributes:
        send: bytes of the body really sent; None sends all.
        length: Content-Length announced; None announces the true one.
        ranges: honour a Range header.
        shift: lie about the start in Content-Range by so many bytes.
        silent: after the bytes sent, hold the connection open without a word.
        reset: after the bytes sent, reset the connection.
        endless: announce no length; the end of the connection is the end of the body.
        login: user:password to insist on.
        trickle: send byte by byte, one every 10 ms.
    """

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    send: int | None = None
    length: int | None = None
    ranges: bool = True
    shift: int = 0
    silent: bool = False
    reset: bool = False
    endless: bool = False
    login: str | None = None
    trickle: bool = False


@dataclass(frozen=True)
class Seen:
    """A request as it came in."""

    path: str
    headers: dict[str, str]


class BadServer:
    """Context manager; `replies` may be changed while it runs, `seen` lists what was asked."""

    def __init__(self) -> None:
        """Bind to a free port at once, so that the address is known."""
        self.replies: dict[str, list[Reply]] = {}
        self.seen: list[Seen] = []
        self.release = threading.Event()
        self._served: dict[str, int] = defaultdict(int)
        self._lock = threading.Lock()
        self._httpd = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"bad": self}))
        self._httpd.daemon_threads = True
        self._thread = threading.Thread(target=self._httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def port(self) -> int:
        return self._httpd.server_address[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self._httpd.shutdown()
        self._thread.join()
        self._httpd.server_close()

    def asked(self, path: str) -> list[Seen]:
        """Requests for one path, oldest first."""
        return [s for s in self.seen if s.path == path]

    def next_reply(self, seen: Seen) -> Reply:
        """Note the request and choose its reply."""
        with self._lock:
            self.seen.append(seen)
            at = self._served[seen.path]
            self._served[seen.path] += 1
        replies = self.replies.get(seen.path) or [Reply(status=404)]
        return replies[min(at, len(replies) - 1)]


def html_page(files: dict[str, str | None], base: str = "../../files/") -> Reply:
    """A project page (PEP 503) of names and their sha256; None lists no hash."""
    links = "".join(f'<a href="{base}{n}{f"#sha256={h}" if h else ""}">{n}</a>\n' for n, h in files.items())
    return Reply(
        body=f"<!DOCTYPE html><html><body>{links}</body></html>".encode(), headers={"Content-Type": "text/html"}
    )


def json_page(project: str, files: dict[str, str], base: str = "../../files/", *, yanked: bool = False) -> Reply:
    """A project page (PEP 691)."""
    rows = [{"filename": n, "url": base + n, "hashes": {"sha256": h}, "yanked": yanked} for n, h in files.items()]
    page = {"meta": {"api-version": "1.0"}, "name": project, "files": rows}
    return Reply(body=json.dumps(page).encode(), headers={"Content-Type": "application/vnd.pypi.simple.v1+json"})


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bad: BadServer

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""

    def do_HEAD(self) -> None:
        """As uv asks before it reads a wheel's metadata; not counted, and no fault applies."""
        replies = self.bad.replies.get(self.path)
        self.send_response(200 if replies else 404)
        self.send_header("Content-Length", str(len(replies[0].body) if replies else 0))
        self.end_headers()

    def do_GET(self) -> None:
        reply = self.bad.next_reply(Seen(self.path, dict(self.headers.items())))
        wanted = f"Basic {base64.b64encode(reply.login.encode()).decode()}" if reply.login else None
        if wanted and self.headers.get("Authorization") != wanted:
            reply = Reply(status=401)
        begin, body = self._head(reply)
        self._body(reply, body if reply.send is None else body[: max(0, reply.send - begin)])
        if reply.silent:
            self.bad.release.wait()
        if reply.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if reply.silent or reply.reset or reply.endless or reply.send is not None or reply.length is not None:
            self.close_connection = True

    def _head(self, reply: Reply) -> tuple[int, bytes]:
        """Send status and headers; return where in the file the body begins, and the body."""
        body, status, headers = reply.body, reply.status, dict(reply.headers)
        begin = int(self.headers.get("Range", "bytes=0-")[6:-1]) if reply.ranges and status == 200 else 0
        if begin and begin >= len(body):
            body, status = b"", 416
        elif begin:
            headers["Content-Range"] = f"bytes {begin + reply.shift}-{len(body) - 1}/{len(body)}"
            body, status = body[begin:], 206
        self.send_response(status)
        if not reply.endless:
            self.send_header("Content-Length", str(len(body) if reply.length is None else reply.length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        return begin, body

    def _body(self, reply: Reply, body: bytes) -> None:
        step = 1 if reply.trickle else len(body) or 1
        try:
            for i in range(0, len(body), step):
                self.wfile.write(body[i : i + step])
                if reply.trickle and self.bad.release.wait(0.01):
                    break
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client has had enough, as some tests want it
