"""An HTTP proxy on loopback that asks for a password, for what apt, pip and uv fetch over plain http."""

from __future__ import annotations

import base64
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PASSWORD = "s3cret-of-the-proxy"
_WANTED = "Basic " + base64.b64encode(f"admin:{PASSWORD}".encode()).decode()
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        if self.headers.get("Proxy-Authorization") != _WANTED:
            return self.answer(407, b"", {"Proxy-Authenticate": 'Basic realm="proxy"'})
        self.server.served.append(self.path)
        try:
            with _DIRECT.open(self.path) as found:
                return self.answer(found.status, found.read(), {"Content-Type": found.headers.get_content_type()})
        except urllib.error.HTTPError as e:
            return self.answer(e.code, b"")

    def do_HEAD(self):
        return self.answer(405, b"")  # uv then asks for the whole file

    def answer(self, status, body, headers=()):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **dict(headers)}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class Proxy:
    """Runs while in use; `served` holds the addresses asked for with the right password."""

    def __enter__(self):
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.served = []
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    @property
    def served(self):
        return self.server.served

    @property
    def host(self):
        return f"127.0.0.1:{self.server.server_port}"

    @property
    def address(self):
        return f"http://admin:{PASSWORD}@{self.host}"
