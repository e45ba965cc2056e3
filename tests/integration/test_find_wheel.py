"""A compiled wheel is looked for in three places, each of which may fail, lie or hang; and the next one is asked."""

from __future__ import annotations

import dataclasses
import hashlib
import re

import pytest

from support import stacks
from support.bad_server import BadServer, Reply
from support.fake_registry import Fake
from verlstack import pins
from verlstack.cache import Cache
from verlstack.download import Artifact
from verlstack.extension import find as finding

DATA = bytes(range(256)) * 2000
SHA256 = hashlib.sha256(DATA).hexdigest()
WHEEL = Artifact(
    project="flash-attn", version="1", filename="flash_attn-1-py3-none-any.whl", sha256=SHA256, size=len(DATA)
)
BLOB = f"/v2/team/wheels/blobs/sha256:{SHA256}"
WRONG = b"x" * len(DATA)
OTHER = hashlib.sha256(WRONG).hexdigest()


@pytest.fixture
def registry():
    with Fake() as one:
        yield one


@pytest.fixture
def server():
    with BadServer() as one:
        yield one


@pytest.fixture
def cache(tmp_path):
    with Cache(tmp_path / "cache").use() as one:
        yield one


@pytest.fixture
def find(cache, tmp_path):
    """Look the wheel up; an http address may stand for the https one that pins insist on."""
    one = pins.load(stacks.write(tmp_path), "demo").flash_attn

    def found(*, wheelhouse=None, prebuilt=None, offline=False, patience=20.0, wheel=WHEEL):
        places = dataclasses.replace(one, wheelhouse=wheelhouse, prebuilt=prebuilt)
        env = {"DOCKER_CONFIG": str(tmp_path), "no_proxy": "*"}
        return finding.find(wheel, places, cache=cache, env=env, offline=offline, patience=patience)

    return found


def put(cache, data):
    path = cache.file(SHA256, WHEEL.filename)
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


def test_the_cache_comes_first(find, cache, server):
    path = put(cache, DATA)
    found = find(prebuilt=f"{server.url}/w.whl")
    assert (found.path, found.tried) == (path, ("cache: found",))
    assert server.seen == []


def test_nowhere(find):
    assert find() == finding.Found(path=None, tried=("cache: not there",))


def test_a_damaged_file_in_the_cache_is_deleted_and_both_hashes_told(find, cache):
    path = put(cache, WRONG)
    found = find()
    assert found.path is None
    assert found.tried == (f"cache: held sha256 {OTHER} where the lock says {SHA256}; deleted",)
    assert not path.exists()


def test_the_wheelhouse(find, cache, registry):
    registry.put(DATA)
    found = find(wheelhouse=f"{registry.host}/team/wheels")
    assert found.tried == ("cache: not there", f"wheelhouse {registry.host}/team/wheels: found")
    assert found.path == cache.file(SHA256, WHEEL.filename)
    assert found.path.read_bytes() == DATA
    assert [path for path, _ in registry.requests] == [BLOB]  # by its hash, and nothing else asked
    assert list(cache.parts.iterdir()) == []


def test_a_wheelhouse_that_sends_something_else(find, cache, registry):
    registry.blobs[f"sha256:{SHA256}"] = WRONG
    found = find(wheelhouse=f"{registry.host}/team/wheels")
    assert found.path is None
    assert SHA256 in found.tried[1]
    assert OTHER in found.tried[1]
    assert list(cache.parts.iterdir()) == []
    assert not cache.file(SHA256, WHEEL.filename).exists()


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (Reply(status=404), "404"),
        (Reply(status=403), "403"),
        (Reply(status=500), "500"),
        (Reply(status=307, headers={"Location": "nonsense://x"}), "makes no sense"),
        (Reply(status=401, headers={"WWW-Authenticate": 'Bearer realm="/token"'}), "401"),
        (Reply(body=DATA, send=10, reset=True), "hung up|cut|broken|reached"),
        (Reply(body=DATA[:-1]), "cut|416"),
    ],
)
def test_a_wheelhouse_without_it_is_passed_over(find, server, reply, says):
    server.replies = {BLOB: [reply], "/w.whl": [Reply(body=DATA)]}
    house = f"127.0.0.1:{server.port}/team/wheels"
    found = find(wheelhouse=house, prebuilt=f"{server.url}/w.whl")
    assert found.path.read_bytes() == DATA
    assert re.search(says, found.tried[1]), found.tried[1]
    assert found.tried[2].endswith("/w.whl: found")


def test_a_token_that_is_no_json(find, server):
    server.replies = {
        BLOB: [Reply(status=401, headers={"WWW-Authenticate": f'Bearer realm="{server.url}/token"'})],
        "/token?service=&scope=repository%3Ateam%2Fwheels%3Apull": [Reply(body=b"<html>")],
    }
    assert "makes no sense" in find(wheelhouse=f"127.0.0.1:{server.port}/team/wheels").tried[1]


@pytest.mark.parametrize("reply", [Reply(body=DATA, send=0, silent=True), Reply(body=DATA, trickle=True)])
def test_a_wheelhouse_that_hangs_is_left_behind(find, server, reply):
    """Silent, or one byte at a time: after the patience for it, the next place is asked."""
    server.replies = {BLOB: [reply], "/w.whl": [Reply(body=DATA)]}
    found = find(wheelhouse=f"127.0.0.1:{server.port}/team/wheels", prebuilt=f"{server.url}/w.whl", patience=0.5)
    assert "no whole answer within 0.5 s" in found.tried[1]
    assert found.path.read_bytes() == DATA


def test_what_has_arrived_is_kept(find, cache, server):
    """The next run asks for the rest alone."""
    server.replies = {BLOB: [Reply(body=DATA)]}
    (cache.parts / f"{SHA256}-wheelhouse.part").write_bytes(DATA[:1000])
    assert find(wheelhouse=f"127.0.0.1:{server.port}/team/wheels").path.read_bytes() == DATA
    (asked,) = server.asked(BLOB)
    assert asked.headers["Range"] == "bytes=1000-"


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (Reply(body=WRONG), OTHER),
        (Reply(body=DATA + b"more"), f"longer than {len(DATA)} bytes"),
        (Reply(status=404), "HTTP 404"),
        (Reply(status=403), "HTTP 403"),
    ],
)
def test_a_prebuilt_address_that_gives_something_else(find, cache, server, reply, says):
    server.replies = {"/w.whl": [reply]}
    found = find(prebuilt=f"{server.url}/w.whl?token=secret")
    assert found.path is None
    server.replies = {"/w.whl?token=secret": [reply]}
    found = find(prebuilt=f"{server.url}/w.whl?token=secret")
    assert says in found.tried[1]
    assert "secret" not in found.tried[1]
    assert not list(cache.parts.iterdir())


def test_offline_asks_the_cache_alone(find, server):
    found = find(wheelhouse=f"127.0.0.1:{server.port}/team/wheels", prebuilt=f"{server.url}/w.whl", offline=True)
    assert found.tried == ("cache: not there",)
    assert server.seen == []
