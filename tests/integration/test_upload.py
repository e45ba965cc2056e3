"""Uploads to a registry on loopback that behaves, and to one that does not."""

from __future__ import annotations

import hashlib
import json

import pytest

from support.fake_registry import OCI_MANIFEST, sha
from support.writable_registry import Fault, Writable
from verlstack import oci, upload
from verlstack.base import reference
from verlstack.errors import FetchError, HashMismatchError, LockError

BIG = hashlib.shake_128(b"blob").digest(9 << 20)


@pytest.fixture
def fake():
    with Writable() as one:
        yield one


@pytest.fixture
def naps():
    return []


@pytest.fixture
def writer(fake, naps):
    made = []

    def make(**how):
        ref = reference.place(f"{fake.host}/team/base", insecure=True)
        made.append(upload.Writer(ref, sleep=naps.append, timeout=(2.0, 10.0), **how))
        return made[-1].__enter__()

    yield make
    for one in made:
        one.session.close()


@pytest.fixture
def blob(tmp_path):
    path = tmp_path / "blob"
    path.write_bytes(BIG)
    return path


def test_a_blob_is_sent_once(fake, writer, blob):
    sent = []
    assert writer().push_blob(sha(BIG), blob, sent.append) == "pushed"
    assert fake.blobs[sha(BIG)] == BIG
    assert sum(sent) == len(BIG)
    assert writer().push_blob(sha(BIG), blob, sent.append) == "there"
    assert sum(sent) == len(BIG)


def test_a_blob_of_another_repository_is_mounted(fake, writer, blob):
    fake.elsewhere_in["team/other"] = {sha(BIG): BIG}
    assert writer(mount_from=("team/other",)).push_blob(sha(BIG), blob) == "mounted"
    assert fake.asked("PATCH") == []
    other = blob.with_name("other")
    other.write_bytes(b"other")
    assert writer(mount_from=("team/other",)).push_blob(sha(b"other"), other) == "pushed"
    assert len(fake.asked("POST")) == 2, "a refused mount is an upload that has begun"


def test_an_empty_blob_and_a_small_document(fake, writer, tmp_path):
    assert writer().push_bytes(b"", tmp_path) == sha(b"")
    assert writer().push_bytes(b"{}", tmp_path) == sha(b"{}")
    assert (fake.blobs[sha(b"")], fake.blobs[sha(b"{}")]) == (b"", b"{}")


@pytest.mark.parametrize("taken", [0, 1, 2, 3 << 20, (9 << 20) - 1, 9 << 20])
def test_an_upload_that_was_cut_goes_on_where_the_registry_says(fake, writer, blob, taken, naps):
    fake.planted.append(Fault(method="PATCH", path=".", take=taken))
    assert writer().push_blob(sha(BIG), blob) == "pushed"
    assert fake.blobs[sha(BIG)] == BIG
    begins = [headers["Content-Range"] for _, headers in fake.requests if "Content-Range" in headers]
    assert begins == ([f"{taken}-{len(BIG) - 1}"] if 1 < taken < len(BIG) else [])
    assert naps == [0.5]


def test_any_number_of_cuts_is_survived_as_long_as_bytes_get_through(fake, writer, blob):
    fake.planted += [Fault(method="PATCH", path=".", take=1 << 20)] * 8
    assert writer().push_blob(sha(BIG), blob) == "pushed"
    assert fake.blobs[sha(BIG)] == BIG


def test_a_line_that_lets_nothing_through_is_given_up(fake, writer, blob):
    fake.planted += [Fault(method="PATCH", path=".", take=10)] * 20
    with pytest.raises(FetchError, match="hung up") as caught:
        writer().push_blob(sha(BIG), blob)
    assert "resumes" in caught.value.todo
    assert sha(BIG) not in fake.blobs


@pytest.mark.parametrize("method", ["HEAD", "POST", "PATCH", "PUT"])
@pytest.mark.parametrize("status", [429, 500, 502])
def test_trouble_that_passes(fake, writer, blob, method, status):
    fake.planted.append(Fault(method=method, path=".", status=status))
    assert writer().push_blob(sha(BIG), blob) == "pushed"
    assert fake.blobs[sha(BIG)] == BIG


def test_the_wish_of_a_busy_registry_is_heard(fake, writer, blob, naps):
    fake.planted.append(Fault(method="POST", path=".", status=429, headers=(("Retry-After", "7"),)))
    writer().push_blob(sha(BIG), blob)
    assert naps == [7.0]


def test_trouble_that_stays_is_told_in_the_registrys_own_words(fake, writer, blob):
    said = json.dumps({"errors": [{"code": "UNKNOWN", "message": "disk \x1b[31mfull"}]}).encode()
    fake.planted += [Fault(method="PATCH", path=".", take=0, status=500, body=said)] * 9
    with pytest.raises(FetchError, match=r"500 \(UNKNOWN: disk full\)"):
        writer().push_blob(sha(BIG), blob)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"errors": 1}', b'{"errors": [1]}', b"\xff", b"x" * (5 << 20)])
def test_what_is_no_error_of_the_specification_is_left_out(fake, writer, blob, body):
    fake.planted.append(Fault(method="POST", path=".", status=405, body=body))
    with pytest.raises(FetchError, match=r"answered 405\n"):
        writer().push_blob(sha(BIG), blob)


def test_a_registry_that_forgot_the_upload_gets_it_from_the_start(fake, writer, blob):
    fake.planted.append(Fault(method="PATCH", path=".", take=5 << 20))
    fake.planted.append(Fault(method="GET", path="/uploads/", status=404))
    assert writer().push_blob(sha(BIG), blob) == "pushed"
    assert len(fake.asked("POST")) == 2


def test_bytes_that_changed_on_the_way_are_sent_again(fake, writer, blob):
    fake.planted.append(Fault(method="PATCH", path=".", swap=b"\0" * len(BIG)))
    assert writer().push_blob(sha(BIG), blob) == "pushed"
    fake.blobs.clear()
    fake.planted += [Fault(method="PATCH", path=".", swap=b"\0" * len(BIG))] * 9
    with pytest.raises(FetchError, match="DIGEST_INVALID"):
        writer().push_blob(sha(BIG), blob)
    assert sha(BIG) not in fake.blobs


def test_a_file_that_is_not_what_its_digest_says_is_never_closed(fake, writer, blob):
    blob.write_bytes(BIG[:-1] + b"\0")
    with pytest.raises(LockError, match="not what its digest says"):
        writer().push_blob(sha(BIG), blob)
    assert fake.asked("PUT") == []


def test_a_registry_that_says_it_stored_something_else(fake, writer, blob):
    lie = (("Docker-Content-Digest", sha(b"x")),)
    fake.planted.append(Fault(method="PUT", path=".", status=201, headers=lie))
    with pytest.raises(HashMismatchError, match="stored"):
        writer().push_blob(sha(BIG), blob)


def test_a_registry_with_a_damaged_blob(fake, writer, blob):
    fake.blobs[sha(BIG)] = BIG[:-1]
    with pytest.raises(HashMismatchError, match="bytes"):
        writer().push_blob(sha(BIG), blob)


def test_uploads_do_not_go_where_the_registry_is_not_trusted(fake, writer, blob):
    other = Writable()
    fake.location, fake.token = f"http://localhost:{other.server.server_port}/v2/team/base/blobs/uploads/{{name}}", True
    other.uploads["u1"] = bytearray()
    assert writer().push_blob(sha(BIG), blob) == "pushed"
    assert not any("Authorization" in headers for _, headers in other.requests)
    other.close()


def test_one_token_for_the_whole_push(fake, writer, blob):
    fake.token = True
    assert writer(mount_from=("team/other",)).push_blob(sha(BIG), blob) == "pushed"
    assert fake.scopes == [["repository:team/base:pull,push", "repository:team/other:pull"]]


@pytest.mark.parametrize("uses", [1, 2, 3])
def test_tokens_that_expire_meanwhile(fake, writer, blob, uses):
    fake.token, fake.uses = True, uses
    assert writer().push_blob(sha(BIG), blob) == "pushed"
    assert fake.blobs[sha(BIG)] == BIG
    assert len(fake.scopes) > 1


def test_an_identity_token_buys_the_others(fake, writer, blob):
    fake.token, fake.identity = True, "refresh"
    assert writer(identity="refresh").push_blob(sha(BIG), blob) == "pushed"
    with pytest.raises(FetchError, match="refuses the stored credentials") as caught:
        writer(identity="wrong-s3cret").push_blob(sha(b"x"), blob)
    assert "s3cret" not in str(caught.value)


def test_an_identity_token_is_not_carried_elsewhere(fake, writer, blob):
    with Writable() as other:
        other.identity = "refresh"
        fake.token, fake.token_moved = True, f"{other.url}/token"
        with pytest.raises(FetchError, match="307"):
            writer(identity="refresh").push_blob(sha(BIG), blob)
        assert other.scopes == []


@pytest.mark.parametrize("known", [{"stored": "dTpw"}, {"identity": "refresh"}])
def test_a_login_over_plain_http_is_refused(known):
    ref = reference.place("reg.example.org/team/base", insecure=False)
    silent = upload.Writer(ref, session=None, **known)  # any request would fail
    with pytest.raises(FetchError, match="plain http"):
        silent._answer('Bearer realm="http://tokens.example.org/token",service="x"')


def test_a_wrong_password(fake, writer, blob):
    fake.token, fake.user = True, "dTpw"
    with pytest.raises(FetchError, match="refuses the stored credentials") as caught:
        writer(stored="d3Jvbmc=").push_blob(sha(BIG), blob)
    assert "d3Jvbmc=" not in str(caught.value)
    assert "docker login" in caught.value.todo
    with pytest.raises(FetchError, match="an anonymous push"):
        writer().push_blob(sha(BIG), blob)
    assert writer(stored="dTpw").push_blob(sha(BIG), blob) == "pushed"


def test_a_project_that_does_not_exist(fake, writer, blob):
    fake.planted.append(Fault(method="POST", path=".", status=404))
    with pytest.raises(FetchError, match="no place for"):
        writer().push_blob(sha(BIG), blob)


MANIFEST = json.dumps({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "layers": []}).encode()


def test_a_manifest_and_its_tag(fake, writer):
    assert writer().push_manifest(MANIFEST, OCI_MANIFEST) == sha(MANIFEST)
    assert writer().push_manifest(MANIFEST, OCI_MANIFEST, "one") == sha(MANIFEST)
    assert fake.order == [sha(MANIFEST), "one"]
    assert writer().resolve("one") == sha(MANIFEST)
    assert writer().resolve("two") is None


def test_a_registry_that_keeps_another_manifest(fake, writer):
    fake.planted.append(Fault(method="PUT", path=".", swap=b'{"a": 1}'))
    with pytest.raises(HashMismatchError, match="now has"):
        writer().push_manifest(MANIFEST, OCI_MANIFEST, "one")
    fake.planted.append(Fault(method="PUT", path=".", status=201))
    with pytest.raises(FetchError, match="404"):
        writer().push_manifest(MANIFEST + b" ", OCI_MANIFEST)
    fake.planted.append(Fault(method="GET", path="/manifests/", status=200, body=b"{}"))
    with pytest.raises(HashMismatchError, match="other bytes"):
        writer().push_manifest(MANIFEST, OCI_MANIFEST)


def statement(number, kind="application/x-a"):
    subject = {"digest": sha(MANIFEST), "mediaType": OCI_MANIFEST, "size": len(MANIFEST)}
    empty = {"digest": sha(b"{}"), "mediaType": "application/vnd.oci.empty.v1+json", "size": 2}
    document = {"artifactType": kind, "config": empty, "layers": [], "mediaType": OCI_MANIFEST, "schemaVersion": 2}
    return json.dumps(document | {"subject": subject, "annotations": {"number": str(number)}}).encode()


@pytest.mark.parametrize("api", [True, False])
def test_referrers_with_and_without_the_api(fake, writer, api):
    fake.has_referrers, fake.page = api, 2
    client = writer()
    assert client.referrers(sha(MANIFEST)) == []
    made = [client.attach(statement(n)) for n in range(5)]
    made.append(client.attach(statement(9, "application/x-b")))
    assert {x["digest"] for x in client.referrers(sha(MANIFEST))} == set(made)
    (other,) = client.referrers(sha(MANIFEST), "application/x-b")
    assert (other["digest"], other["size"]) == (made[5], len(statement(9, "application/x-b")))
    assert (reference_tag(fake) in fake.tags) is not api
    if not api:
        client.attach(statement(0))
        assert len(client.referrers(sha(MANIFEST))) == 6, "the same one twice is one"
        assert json.loads(fake.blobs[fake.tags[reference_tag(fake)]])["mediaType"] == oci.INDEX


def reference_tag(fake):
    return sha(MANIFEST).replace(":", "-")


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"manifests": [1]}', b'{"manifests": [{"digest": "../x"}]}'])
def test_a_list_of_referrers_that_is_none(fake, writer, body):
    fake.planted.append(Fault(method="GET", path="/referrers/", status=200, body=body))
    with pytest.raises(FetchError):
        writer().referrers(sha(MANIFEST))


def test_a_list_of_referrers_without_end(fake, writer):
    link = (("Link", f'</v2/team/base/referrers/{sha(MANIFEST)}>; rel="next"'),)
    fake.planted += [Fault(method="GET", path="/referrers/", status=200, body=b'{"manifests": []}', headers=link)] * 500
    assert writer().referrers(sha(MANIFEST)) == []
    assert len(fake.planted) == 400


@pytest.mark.parametrize(
    ("text", "insecure", "api"),
    [
        ("reg.io/team/x", False, "https://reg.io/v2/team/x"),
        ("127.0.0.1:5000/x:1", True, "http://127.0.0.1:5000/v2/x"),
        ("127.0.0.1:5000/x", False, "https://127.0.0.1:5000/v2/x"),
        (f"localhost/x@{sha(b'')}", True, "http://localhost/v2/x"),
        ("docker.io/me/x", False, "https://registry-1.docker.io/v2/me/x"),
    ],
)
def test_where_a_reference_leads(text, insecure, api):
    assert reference.place(text, insecure=insecure).api == api
