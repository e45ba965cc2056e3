"""Pulling a base over HTTP from a registry that behaves, and from one that does not."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
import zstandard

from verlstack import bases, layer, pull, reference, registry
from verlstack.cache import Cache
from verlstack.errors import BaseImageError, FetchError, HashMismatchError
from verlstack.progress import Silent

DOCKER_GZIP = "application/vnd.docker.image.rootfs.diff.tar.gzip"
OCI_ZSTD = "application/vnd.oci.image.layer.v1.tar+zstd"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
FAST = layer.Compression(level=1, window_log=20, long_distance=False, library="1.5.7")


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

    def do_GET(self):  # noqa: PLR0911 - one answer each
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

    def __init__(self):
        self.blobs, self.faults, self.requests = {}, {}, []
        self.token, self.token_key, self.user, self.basic, self.elsewhere = False, "token", None, None, None
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.fake = self
        self.host = f"127.0.0.1:{self.server.server_port}"
        self.url = f"http://{self.host}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

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


@pytest.fixture
def fake():
    one = Fake()
    yield one
    one.server.shutdown()
    one.server.server_close()


GOOD = [
    (DOCKER_GZIP, tarball(**{
        "usr/bin/python3.10": b"elf", "usr/bin/gcc": b"elf", "usr/include/python3.10/Python.h": b"",
        "usr/include/python3.10/patchlevel.h": b'#define PY_VERSION  "3.10.12"\n',
        "etc/os-release": b'ID=ubuntu\nVERSION_ID="22.04"\n', "usr/lib/x86_64-linux-gnu/libz.so.1": b"x" * 300_000,
    })),
    (OCI_ZSTD, tarball(**{"opt/x": b"y"})),
]  # fmt: skip


@pytest.fixture
def naps():
    return []


@pytest.fixture
def get(tmp_path, naps):
    def pulled(ref, *, stored=None, offline=False, attempts=3):
        cache = Cache(tmp_path / "cache")
        client = registry.Client(ref, stored=stored, sleep=naps.append, attempts=attempts, timeout=(2.0, 5.0))
        with client, cache.use():
            return pull.pull(ref, wanted_python="3.10", client=client, cache=cache, progress=Silent(), offline=offline)

    return pulled


def test_an_image_is_pulled_verified_and_known(fake, get, tmp_path):
    ref = fake.image(GOOD)
    blobs, facts = get(ref)
    assert [blob.diff_id for blob in blobs] == [sha(raw) for _, raw in GOOD]
    assert [blob.media_type.rpartition("+")[2] for blob in blobs] == ["gzip", "zstd"]
    assert [blob.raw_size for blob in blobs] == [len(raw) for _, raw in GOOD]
    assert all(sha(blob.path.read_bytes()) == blob.digest for blob in blobs)
    assert facts.env == (("PATH", "/usr/bin"), ("A", "b=c"))
    assert (facts.compiler, facts.python_home, facts.python_version, facts.headers) == (
        True,
        "/usr/bin",
        "3.10.12",
        True,
    )
    assert (facts.os_id, facts.os_version, facts.libraries) == ("ubuntu", "22.04", {"libz.so.1"})
    assert list((tmp_path / "cache" / "parts").iterdir()) == []
    fake.requests.clear()
    assert get(ref, offline=True) == (blobs, facts)
    assert fake.requests == []


def test_offline_without_cache(fake, get):
    with pytest.raises(FetchError, match="not in the cache"):
        get(fake.image(GOOD), offline=True)


def test_a_plain_manifest_and_a_python_below_opt(fake, get):
    tree = {"opt/conda/bin/python3.10": b"", "usr/local/bin/cc": b""}
    _, facts = get(fake.image([(DOCKER_GZIP, tarball(**tree))], index=False))
    assert (facts.python_home, facts.compiler, facts.python_version) == ("/opt/conda/bin", True, None)


def test_a_layer_that_occurs_twice_is_kept_once(fake, get):
    blobs, _ = get(fake.image([GOOD[1], GOOD[1]]))
    assert blobs[0] == blobs[1]


@pytest.mark.parametrize("key", ["token", "access_token"])
def test_an_anonymous_token_is_fetched_once(fake, get, key):
    fake.token, fake.token_key = True, key
    get(fake.image(GOOD))
    assert sum(path.startswith("/token") for path, _ in fake.requests) == 1


def test_stored_credentials_go_to_the_token_service(fake, get):
    fake.token, fake.user = True, "dTpw"
    ref = fake.image(GOOD)
    with pytest.raises(FetchError, match="an anonymous pull") as caught:
        get(ref)
    assert "docker login" in caught.value.todo
    get(ref, stored="dTpw")


def test_basic_authentication(fake, get):
    fake.basic = "dTpw"
    ref = fake.image(GOOD)
    with pytest.raises(FetchError, match="401"):
        get(ref)
    with pytest.raises(FetchError, match="the stored credentials") as caught:
        get(ref, stored="c2VjcmV0")
    assert "c2VjcmV0" not in str(caught.value)
    get(ref, stored="dTpw")


def test_another_host_gets_no_authorization(fake, get):
    other = Fake()
    fake.token = True
    ref = fake.image(GOOD)
    other.blobs = fake.blobs
    # The same address under another name: for requests and for us, another host.
    fake.elsewhere = other.url.replace("127.0.0.1", "localhost")
    get(ref)
    assert other.requests
    assert not any("Authorization" in headers for _, headers in other.requests)
    other.server.shutdown()
    other.server.server_close()


def test_a_registry_that_recovers(fake, get, naps):
    ref = fake.image(GOOD)
    fake.faults[f"/v2/team/base/manifests/{ref.digest}"] = [(500, b"", None), (503, b"", None)]
    get(ref)
    assert naps == [0.5, 1.0]


def test_a_registry_that_does_not(fake, get):
    ref = fake.image(GOOD)
    fake.faults[f"/v2/team/base/manifests/{ref.digest}"] = [(500, b"", None)] * 3
    with pytest.raises(FetchError, match="answered 500"):
        get(ref)


def test_a_token_service_in_trouble(fake, get):
    fake.token = True
    ref = fake.image(GOOD)
    query = "/token?service=fake&scope=repository%3Ateam%2Fbase%3Apull"
    fake.faults[query] = [(500, b"", None)]
    get(ref)


@pytest.mark.parametrize(("status", "text"), [(404, "no such image"), (403, "refuses"), (418, "418")])
def test_refusals(fake, get, status, text):
    ref = fake.image(GOOD)
    fake.faults[f"/v2/team/base/manifests/{ref.digest}"] = [(status, b"", None)]
    with pytest.raises(FetchError, match=text) as caught:
        get(ref)
    assert caught.value.where.startswith(fake.url)


def test_nobody_there(get):
    ref = reference.parse("127.0.0.1:1/team/base@sha256:" + "0" * 64)
    with pytest.raises(FetchError, match="cannot be reached"):
        get(ref, attempts=2)


def first_blob(fake):
    return next(f"/v2/team/base/blobs/{digest}" for digest, data in fake.blobs.items() if data[:2] == b"\x1f\x8b")


def test_a_blob_cut_off_is_resumed(fake, get):
    ref = fake.image(GOOD)
    path = first_blob(fake)
    fake.faults[path] = [(200, fake.blobs[path.rpartition("/")[2]], 100)]
    get(ref)
    asked = [headers.get("Range") for one, headers in fake.requests if one == path]
    assert asked[0] is None
    assert len(asked) == 2


def test_a_blob_shorter_than_described_is_an_error(fake, get):
    ref = fake.image(GOOD)
    path = first_blob(fake)
    fake.faults[path] = [(200, b"short", None)] + [(206, b"", None)] * 9
    with pytest.raises(FetchError, match="cut after 5 of"):
        get(ref)


def test_a_wrong_blob_is_deleted(fake, get, tmp_path):
    ref = fake.image(GOOD)
    path = first_blob(fake)
    digest = path.rpartition("/")[2]
    fake.faults[path] = [(200, b"x" * len(fake.blobs[digest]), None)]
    with pytest.raises(HashMismatchError) as caught:
        get(ref)
    assert digest in str(caught.value)
    assert not (tmp_path / "cache" / "parts" / f"{digest.removeprefix('sha256:')}.part").exists()
    get(ref)


def test_too_much_left_from_an_earlier_attempt_is_started_anew(fake, get, tmp_path):
    ref = fake.image(GOOD)
    digest = first_blob(fake).rpartition("/")[2]
    parts = tmp_path / "cache" / "parts"
    parts.mkdir(parents=True)
    (parts / f"{digest.removeprefix('sha256:')}.part").write_bytes(b"x" * 1_000_000)
    get(ref)


def test_a_wrong_manifest(fake, get):
    ref = fake.image(GOOD)
    fake.faults[f"/v2/team/base/manifests/{ref.digest}"] = [(200, b"{}", None)]
    with pytest.raises(HashMismatchError, match=ref.digest):
        get(ref)


def test_a_manifest_without_end(fake, get):
    ref = fake.image(GOOD)
    fake.faults[f"/v2/team/base/manifests/{ref.digest}"] = [(200, b" " * (5 << 20), None)]
    with pytest.raises(FetchError, match="more than"):
        get(ref)


def test_json_that_is_no_manifest(fake, get):
    for document, error, text in (([1], FetchError, "no object"), ({"a": 1}, BaseImageError, "not an image manifest")):
        ref = reference.parse(f"{fake.host}/team/base@{fake.put(document)}")
        with pytest.raises(error, match=text):
            get(ref)


def test_images_for_other_machines(fake, get):
    with pytest.raises(BaseImageError, match="linux/arm64"):
        get(fake.image(GOOD, platforms=("arm64",)))
    with pytest.raises(BaseImageError, match="for linux/arm64"):
        get(fake.image(GOOD, architecture="arm64", index=False))


def test_a_config_that_lies_about_its_layers(fake, get):
    with pytest.raises(HashMismatchError, match="its config says"):
        get(fake.image(GOOD, diff_ids=[sha(b"1"), sha(b"2")]))
    with pytest.raises(BaseImageError, match="1 diff_ids"):
        get(fake.image(GOOD, diff_ids=[sha(b"1")]))


def test_a_layer_of_unknown_kind(fake, get):
    with pytest.raises(BaseImageError, match="foreign"):
        get(fake.image([("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", GOOD[0][1])]))


def test_obtain_end_to_end(fake, tmp_path):
    ref = fake.image(GOOD)
    with Cache(tmp_path / "cache").use() as cache:
        base = bases.obtain(
            f"registry:{ref}", wanted_python="3.10", debian_packages=(), registry_default=None, compression=FAST,
            epoch=1, cache=cache, interpreter=None, env={"HOME": str(tmp_path)}, progress=Silent(), offline=False,
        )  # fmt: skip
    assert (base.kind, base.python_home, base.local, len(base.layers)) == ("registry", "/usr/bin", False, 2)
