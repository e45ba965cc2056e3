"""A registry on loopback that takes and resumes uploads, expires tokens, and misbehaves where a test plants a fault."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from support import fake_registry
from support.fake_registry import sha


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to the next request that fits, instead of what should.

    Attributes:
        method: of the request.
        path: pattern in its path.
        take: bytes of its body that are read (and kept, of an upload) before the rest happens; None: all.
        status: of the answer; None hangs up without one.
        headers: of the answer.
        body: of the answer.
        swap: the request is served, and what came is changed to this.
    """

    method: str
    path: str
    take: int | None = None
    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    swap: bytes | None = None


class Handler(fake_registry.Handler):
    def handle_one(self, method, serve):
        fake = self.server.fake
        self.body = None
        fault = next((x for x in fake.planted if x.method == method and re.search(x.path, self.path)), None)
        if method != "GET":
            fake.requests.append((f"{method} {self.path}", dict(self.headers)))
        if fault is None:
            return serve()
        fake.planted.remove(fault)
        if fault.swap is not None:
            self.taken()
            self.body = fault.swap
            return serve()
        length = int(self.headers.get("Content-Length", 0))
        got = self.rfile.read(length if fault.take is None else min(fault.take, length))
        if method == "PATCH" and (upload := self.upload()) is not None:
            upload.extend(got)
        self.close_connection = True
        if fault.status is not None:
            self.send(fault.status, fault.body, {"Connection": "close", **dict(fault.headers)})
        return None

    def taken(self):
        if self.body is None:
            self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return self.body

    def upload(self):
        return self.server.fake.uploads.get(urlsplit(self.path).path.rpartition("/")[2])

    def allowed(self, *, write):
        """Answer 401 unless the token has every right that is needed, and was not used up."""
        fake = self.server.fake
        if not fake.token:
            return True
        word = self.headers.get("Authorization", "").removeprefix("Bearer ")
        left = fake.tokens.get(word, 0)
        if left and (not write or "push" in word):
            fake.tokens[word] = left - 1
            return True
        self.taken()
        scope = f"repository:team/base:{'pull,push' if write else 'pull'}"
        self.send(401, b"", {"WWW-Authenticate": f'Bearer realm="{fake.url}/token",service="fake",scope="{scope}"'})
        return False

    def do_GET(self):  # noqa: N802 - the standard library calls it so
        self.handle_one("GET", self.get)

    def get(self):  # noqa: PLR0911 - one line a kind of address
        fake, url = self.server.fake, urlsplit(self.path)
        if url.path == "/token":
            if fake.user and self.headers.get("Authorization") != f"Basic {fake.user}":
                return self.send(401, b"")
            return self.send_token(parse_qs(url.query)["scope"])
        if not self.allowed(write=False):
            return None
        if "/blobs/uploads/" in url.path:
            upload = self.upload()
            if upload is None:
                return self.send(404, b'{"errors":[{"code":"BLOB_UPLOAD_UNKNOWN","message":"gone"}]}')
            return self.send(204, b"", {"Location": url.path, "Range": f"0-{max(0, len(upload) - 1)}"})
        if "/referrers/" in url.path:
            fake.requests.append((self.path, dict(self.headers)))
            if not fake.has_referrers:
                return self.send(404, b"404 page not found")
            rows = fake.referring.get(url.path.rpartition("/")[2], [])
            start = int(parse_qs(url.query).get("from", ["0"])[0])
            page, more = rows[start : start + fake.page], start + fake.page < len(rows)
            link = {"Link": f'<{url.path}?from={start + fake.page}>; rel="next"'} if more else {}
            return self.send(200, json.dumps({"schemaVersion": 2, "manifests": page}).encode(), link)
        token, fake.token = fake.token, False  # seen to above
        name = url.path.rpartition("/")[2]
        self.path = self.path.replace(name, fake.tags.get(name, name)) if "/manifests/" in url.path else self.path
        fake_registry.Handler.do_GET(self)
        fake.token = token
        return None

    def send_token(self, scopes):
        fake = self.server.fake
        fake.scopes.append(scopes)
        word = f"T{len(fake.scopes)}-{'+'.join(scopes)}"
        fake.tokens[word] = fake.uses
        return self.send(200, json.dumps({"token": word}).encode())

    def do_HEAD(self):  # noqa: N802 - the standard library calls it so
        self.handle_one("HEAD", self.head)

    def head(self):
        if not self.allowed(write=False):
            return
        data = self.server.fake.blobs.get(self.path.rpartition("/")[2])
        self.send_response(404 if data is None else 200)
        self.send_header("Content-Length", str(len(data or b"")))
        self.end_headers()

    def do_POST(self):  # noqa: N802 - the standard library calls it so
        self.handle_one("POST", self.post)

    def post(self):
        fake, url = self.server.fake, urlsplit(self.path)
        form = self.taken()
        if url.path == "/token":
            if fake.token_moved:
                return self.send(307, b"", {"Location": fake.token_moved})
            fields = parse_qs(form.decode())
            if fields["refresh_token"] != [fake.identity]:
                return self.send(401, b"")
            return self.send_token(fields["scope"][0].split())
        if not self.allowed(write=True):
            return None
        query = parse_qs(url.query)
        if "mount" in query and query["mount"][0] in fake.elsewhere_in.get(query["from"][0], {}):
            fake.blobs[query["mount"][0]] = fake.elsewhere_in[query["from"][0]][query["mount"][0]]
            return self.send(201, b"")
        name = f"u{next(fake.numbers)}"  # no two threads may get the same
        fake.uploads[name] = bytearray()
        return self.send(202, b"", {"Location": fake.location.format(name=name)})

    def do_PATCH(self):  # noqa: N802 - the standard library calls it so
        self.handle_one("PATCH", self.patch)

    def patch(self):
        data = self.taken()
        if not self.allowed(write=True):
            return None
        upload = self.upload()
        if upload is None:
            return self.send(404, b"")
        begin = int((self.headers.get("Content-Range") or "0-").partition("-")[0])
        if begin != len(upload):
            return self.send(416, b"", {"Range": f"0-{len(upload)}"})
        upload.extend(data)
        return self.send(202, b"", {"Location": urlsplit(self.path).path})

    def do_PUT(self):  # noqa: N802 - the standard library calls it so
        self.handle_one("PUT", self.put)

    def put(self):
        fake, url = self.server.fake, urlsplit(self.path)
        data = self.taken()
        if not self.allowed(write=True):
            return None
        name = url.path.rpartition("/")[2]
        if "/manifests/" in url.path:
            digest = fake.put(data)
            fake.order.append(name)
            if not name.startswith("sha256:"):
                fake.tags[name] = digest
            subject = json.loads(data).get("subject")
            headers = {}
            if subject and fake.has_referrers:
                kind = json.loads(data).get("artifactType")
                row = {"mediaType": fake_registry.OCI_MANIFEST, "digest": digest, "size": len(data)}
                fake.referring.setdefault(subject["digest"], []).append(row | {"artifactType": kind})
                headers["OCI-Subject"] = subject["digest"]
            return self.send(201, b"", headers)
        digest = parse_qs(url.query)["digest"][0]
        upload = fake.uploads.pop(name)
        if sha(bytes(upload)) != digest:
            return self.send(400, b'{"errors":[{"code":"DIGEST_INVALID","message":"did not match"}]}')
        fake.blobs[digest] = bytes(upload)
        fake.order.append(digest)
        return self.send(201, b"", {"Docker-Content-Digest": digest})


class Writable(fake_registry.Fake):
    """The registry.

    Attributes:
        planted: faults to come, each for one request.
        order: digests of blobs and names of manifests, as they arrived.
        token_moved: where a POST to the token service is sent on to.
        uses: how many requests a token serves.
    """

    handler = Handler

    def __init__(self):
        super().__init__()
        self.planted, self.order, self.uploads, self.tags = [], [], {}, {}
        self.numbers = itertools.count(1)
        self.has_referrers, self.referring, self.page = True, {}, 100
        self.tokens, self.scopes, self.uses, self.identity, self.token_moved = {}, [], 1000, None, None
        self.elsewhere_in = {}
        self.location = "/v2/team/base/blobs/uploads/{name}"

    def asked(self, method):
        """Paths that were asked for by a method."""
        return [path.partition(" ")[2] for path, _ in self.requests if path.startswith(f"{method} ")]
