"""Pulling a base over HTTP from a registry that behaves, and from one that does not."""

from __future__ import annotations

import pytest

from support.fake_registry import DOCKER_GZIP, OCI_ZSTD, Fake, sha, tarball
from verlstack import layer
from verlstack.base import bases, pull, reference, registry
from verlstack.cache import Cache
from verlstack.errors import BaseImageError, FetchError, HashMismatchError
from verlstack.progress import Silent

FAST = layer.Compression(level=1, window_log=20, long_distance=False, library="1.5.7")


@pytest.fixture
def fake():
    with Fake() as one:
        yield one


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
            return pull.pull(client, wanted_python="3.10", cache=cache, progress=Silent(), offline=offline)

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
        "/usr/bin/gcc",
        "/usr/bin",
        "3.10.12",
        True,
    )
    assert (facts.os_id, facts.os_version, facts.libraries) == ("ubuntu", "22.04", ("libz.so.1",))
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
    assert (facts.python_home, facts.compiler, facts.python_version) == ("/opt/conda/bin", "/usr/local/bin/cc", None)


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
    other.close()


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
        request = bases.Request(
            wanted_python="3.10", debian_packages=(), registry_default=None, compression=FAST, epoch=1, cache=cache,
            interpreter=None, env={"HOME": str(tmp_path)}, progress=Silent(), offline=False,
        )  # fmt: skip
        base = bases.obtain(f"registry:{ref}", request)
    assert (base.kind, base.python_home, base.local, len(base.layers)) == ("registry", "/usr/bin", False, 2)
