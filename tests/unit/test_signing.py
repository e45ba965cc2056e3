"""Claims and statements, and what counts as a signature of an image: nothing wrong is ever accepted."""

from __future__ import annotations

import base64
import json

import pytest

from support import smoke_report
from support.signatures import DIGEST, NAME, OTHER, Memory, loaded, verify
from verlstack import oci
from verlstack.base.transport import MAX_DOCUMENT
from verlstack.errors import SignatureError, UnwellError, UsageError
from verlstack.signing import claims, keys

CYCLONEDX = "https://cyclonedx.org/bom"


@pytest.fixture
def one(tmp_path):
    return loaded(tmp_path, "one")


@pytest.fixture
def two(tmp_path):
    return loaded(tmp_path, "two")


# -- what is signed


def test_a_claim_is_what_cosign_writes():
    assert claims.claim(NAME, DIGEST) == (
        b'{"critical":{"identity":{"docker-reference":"reg.invalid/team/verl"},"image":{"docker-manifest-digest":"'
        + DIGEST.encode()
        + b'"},"type":"cosign container image signature"},"optional":null}'
    )


def test_what_of_an_envelope_is_signed(one):
    """The example of DSSE's specification: kind and length before each part."""
    key, public = one
    document = json.loads(claims.envelope(b"hello", key))
    signature = base64.b64decode(document["signatures"][0]["sig"])
    assert public.verifies(signature, b"DSSEv1 28 application/vnd.in-toto+json 5 hello")
    assert base64.b64decode(document["payload"]) == b"hello"


# -- verify


def test_a_signed_image(one):
    key, public = one
    store = Memory()
    store.sign(key)
    report = verify(store, [public])
    assert (report.digest, report.signed, report.ignored) == (DIGEST, {public.name: (NAME,)}, ())
    assert store.checked == 1


def test_nothing_signed_and_signed_by_somebody_else(one, two):
    with pytest.raises(SignatureError, match="nothing is signed there"):
        verify(Memory(), [one[1]])
    store = Memory()
    store.sign(two[0])
    with pytest.raises(SignatureError, match="none of these keys"):
        verify(store, [one[1]])
    assert store.checked == 0


def test_a_signature_of_another_digest(one):
    store = Memory()
    store.sign(one[0], digest=OTHER)
    with pytest.raises(SignatureError, match=f"for another image: {OTHER}"):
        verify(store, [one[1]])


def test_a_signature_under_another_name(one):
    store = Memory()
    store.sign(one[0], name="reg.invalid/team/test")
    assert verify(store, [one[1]]).signed == {one[1].name: ("reg.invalid/team/test",)}
    with pytest.raises(SignatureError, match=f"as reg.invalid/team/test, not as {NAME}"):
        verify(store, [one[1]], name=NAME)
    store.sign(one[0])
    assert verify(store, [one[1]], name=NAME).signed == {one[1].name: (NAME,)}


def signed_as(key, data, signature=None):
    store = Memory()
    note = base64.b64encode(key.sign(data)).decode() if signature is None else signature
    store.put((data, claims.SIMPLE, {claims.NOTE: note}))
    return store


def altered(**changed):
    document = json.loads(claims.claim(NAME, DIGEST))
    document["critical"] |= changed
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"{}", b"1", b"\xff", b"[" * 100_000, altered(type="something else"), altered(image=None),
        altered(image={"docker-manifest-digest": [DIGEST]}), altered(identity={}),
        altered(identity={"docker-reference": 1}),
    ],
)  # fmt: skip
def test_what_is_signed_and_no_claim(one, data):
    with pytest.raises(SignatureError):
        verify(signed_as(one[0], data), [one[1]])


@pytest.mark.parametrize("signature", ["", "!", "AAAA", base64.b64encode(b"\x30\x06\x02\x01\x00\x02\x01\x00").decode()])
def test_what_is_no_signature(one, signature):
    with pytest.raises(SignatureError, match="none of these keys"):
        verify(signed_as(one[0], claims.claim(NAME, DIGEST), signature), [one[1]])


def test_a_tampered_claim(one):
    data = claims.claim(NAME, OTHER)
    signature = base64.b64encode(one[0].sign(data)).decode()
    with pytest.raises(SignatureError, match="none of these keys"):
        verify(signed_as(one[0], claims.claim(NAME, DIGEST), signature), [one[1]])


def test_as_many_different_keys_as_are_demanded(one, two, tmp_path):
    three = loaded(tmp_path, "three")
    store = Memory()
    store.sign(one[0])
    store.sign(one[0])
    public = [one[1], two[1], three[1]]
    with pytest.raises(SignatureError, match="1 of the 3"):
        verify(store, public)
    with pytest.raises(SignatureError, match="1 of the 2"):
        verify(store, public, threshold=2)
    store.sign(three[0])
    assert set(verify(store, public, threshold=2).signed) == {one[1].name, three[1].name}
    with pytest.raises(SignatureError, match="2 of the 3"):
        verify(store, public)
    store.sign(two[0])
    assert len(verify(store, public).signed) == 3


def test_one_key_in_two_files_counts_once(one, tmp_path):
    path = tmp_path / "copy.pub"
    path.write_bytes((tmp_path / "one.pub").read_bytes())
    store = Memory()
    store.sign(one[0])
    with pytest.raises(UsageError, match="2 of 1 different keys"):
        verify(store, [one[1], keys.public(path)], threshold=2)
    assert verify(store, [one[1], keys.public(path)]).threshold == 1


@pytest.mark.parametrize("threshold", [0, -1, 2])
def test_a_threshold_that_makes_no_sense(one, threshold):
    with pytest.raises(UsageError):
        verify(Memory(), [one[1]], threshold=threshold)


def test_attestations_are_demanded_by_type(one, two):
    store = Memory()
    store.sign(one[0])
    with pytest.raises(SignatureError, match="of the type cyclonedx"):
        verify(store, [one[1]], attestations=["cyclonedx"])
    store.attest(two[0])
    with pytest.raises(SignatureError, match="0 of 1 signed attestations"):
        verify(store, [one[1]], attestations=["cyclonedx"])
    store.attest(one[0], kind="https://spdx.dev/Document")
    with pytest.raises(SignatureError, match="0 of 1 signed attestations"):
        verify(store, [one[1]], attestations=["cyclonedx"])
    with pytest.raises(SignatureError, match="of these types there are some: spdxjson") as e:
        verify(store, [one[1]], attestations=["smok"])
    assert e.value.todo.startswith("name a type's address, or one of cyclonedx, spdxjson, slsaprovenance1, smoke")
    store.attest(one[0])
    report = verify(store, [one[1]], attestations=["cyclonedx", "https://spdx.dev/Document"])
    assert report.attested == {CYCLONEDX: (one[1].name,), "https://spdx.dev/Document": (one[1].name,)}


def test_of_attested_smoke_tests_is_told_what_was_run(one):
    store = Memory()
    store.sign(one[0])
    kind = "https://verlstack.dev/smoke/v1"
    for selected in (True, False):
        report = {"runs": [smoke_report.run(2, selected=selected)], "doctor": []}
        store.attest(one[0], statement=claims.statement(NAME, DIGEST, kind, report))
    store.attest(one[0], kind=kind)
    assert verify(store, [one[1]]).smoke == (
        "on CPU, ranks 2: 2 passed, 0 failed, 0 not run",
        "on CPU, ranks 2: 2 passed, 0 failed, 0 not run; a selection of the tests (--quick or -k)",
        "what was run is not told in a form that is known here",
    )


def test_of_attested_scans_is_told_which_scanner_looked_and_when(one):
    store = Memory()
    store.sign(one[0])
    kind = "https://cosign.sigstore.dev/attestation/vuln/v1"
    done = {"scanner": {"uri": "pkg:generic/x@1"}, "metadata": {"scanFinishedOn": "2026-12-01T10:00:09Z"}}
    store.attest(one[0], statement=claims.statement(NAME, DIGEST, kind, done))
    assert verify(store, [one[1]], attestations=["vuln"]).scans == (
        "by pkg:generic/x@1, finished 2026-12-01T10:00:09Z",
    )


def test_it_is_said_whose_signatures_are_there_and_whose_lack(one, two):
    store = Memory()
    store.sign(one[0])
    with pytest.raises(SignatureError) as e:
        verify(store, [one[1], two[1]])
    assert (
        e.value.what
        == f"this image has 1 of the 2 signatures that it must have, by {one[1].name} and not by {two[1].name}"
    )
    assert e.value.todo == "have the others sign it (`verlstack sign`), or demand fewer (--threshold)"
    store.sign(two[0])
    store.attest(one[0])
    with pytest.raises(
        SignatureError, match=f"of the type cyclonedx, by {one[1].name} and not by {two[1].name}: "
    ) as e:
        verify(store, [one[1], two[1]], attestations=["cyclonedx"])
    assert "verlstack attest" in e.value.todo


def test_signed_and_not_attested(one):
    store = Memory()
    store.sign(one[0])
    with pytest.raises(SignatureError, match="nothing is attested there") as e:
        verify(store, [one[1]], attestations=["cyclonedx"])
    assert e.value.todo == "do not use it until its publisher has attested it"


def test_a_registry_that_is_ill_is_no_word_on_what_is_signed(one, two):
    store = Memory()
    store.sign(one[0])
    store.sign(two[0])

    def ill(digest):
        raise UnwellError("it answered 500")

    store.blob, fine = ill, store.blob
    store.manifest = lambda digest: json.loads(fine(digest))
    with pytest.raises(UnwellError):
        verify(store, [one[1]])
    store.blob = lambda digest: fine(digest) if store.calls.append(digest) or len(store.calls) > 1 else ill(digest)
    store.calls = []
    assert verify(store, [one[1], two[1]], threshold=1).signed, "what was read is enough"


@pytest.mark.parametrize("count", [2, 3])
def test_what_others_signed_is_told_once(one, two, count):
    store = Memory()
    for number in range(count):
        store.attest(two[0], statement=claims.statement(NAME, DIGEST, CYCLONEDX, {"a": number}))
    store.sign(two[0])
    with pytest.raises(SignatureError) as e:
        verify(store, [one[1]])
    assert f"{count} attestations are signed with none of these keys" in e.value.what
    assert e.value.what.count("none of these keys") == 2, "the signature is told by itself"
    store.sign(one[0])
    assert f"{count} attestations are signed with none of these keys" in verify(store, [one[1]]).ignored


def test_an_attestation_is_no_signature(one):
    store = Memory()
    store.attest(one[0])
    with pytest.raises(SignatureError, match="0 of the 1"):
        verify(store, [one[1]])


def bent(**changed):
    document = json.loads(claims.statement(NAME, DIGEST, CYCLONEDX, {}))
    return json.dumps(document | changed).encode()


@pytest.mark.parametrize(
    "statement",
    [
        claims.statement(NAME, OTHER, CYCLONEDX, {}), bent(subject=[]), bent(subject=[{"digest": 1}]), bent(_type="x"),
        bent(predicateType=1), bent(subject=[{"digest": {"sha512": "a" * 64}}]), b"[]", b"", b"\xff", b"[" * 100_000,
    ],
)  # fmt: skip
def test_statements_about_something_else(one, statement):
    store = Memory()
    store.sign(one[0])
    store.attest(one[0], statement=statement)
    with pytest.raises(SignatureError, match="0 of 1 signed attestations"):
        verify(store, [one[1]], attestations=["cyclonedx"])


def changed_envelope(key, **changed):
    document = json.loads(claims.envelope(claims.statement(NAME, DIGEST, CYCLONEDX, {}), key))
    return json.dumps(document | changed).encode()


@pytest.mark.parametrize(
    "changed",
    [
        {"payload": base64.b64encode(claims.statement(NAME, DIGEST, CYCLONEDX, {"evil": 1})).decode()},
        {"payload": "!"}, {"payloadType": "text/plain"}, {"signatures": []}, {"signatures": [{"sig": "AAAA"}]},
        {"signatures": 1}, {"payload": 1},
    ],
)  # fmt: skip
def test_tampered_envelopes(one, changed):
    store = Memory()
    store.sign(one[0])
    store.put((changed_envelope(one[0], **changed), claims.DSSE, {}))
    with pytest.raises(SignatureError, match="0 of 1 signed attestations"):
        verify(store, [one[1]], attestations=["cyclonedx"])


@pytest.mark.parametrize(("place", "counts"), [(10, True), (40, False)])
def test_an_envelope_of_many_signatures(one, place, counts):
    """Each costs a look at the whole payload."""
    document = json.loads(claims.envelope(claims.statement(NAME, DIGEST, CYCLONEDX, {}), one[0]))
    document["signatures"] = [{"sig": "AAAA"}] * place + document["signatures"]
    assert bool(claims.judge_envelope(json.dumps(document).encode(), [one[1]], DIGEST).signers) is counts


def test_an_envelope_without_end_is_not_parsed(one):
    document = json.loads(claims.envelope(claims.statement(NAME, DIGEST, CYCLONEDX, {}), one[0]))
    document["signatures"] += [{"sig": "AAAA"}] * 1000
    assert "more parts" in claims.judge_envelope(json.dumps(document).encode(), [one[1]], DIGEST).why_not


def test_what_lies_there_and_is_not_ours_does_no_harm(one):
    store = Memory()
    store.put((b"x" * 10, "application/x-other", {}))
    store.entries.append({"digest": OTHER, "size": 5})  # listed, and not there
    store.entries.append({"digest": OTHER, "size": MAX_DOCUMENT + 1})
    store.put((b"huge", claims.SIMPLE, {claims.NOTE: ""}), size=MAX_DOCUMENT + 1)
    store.put((b"gone", claims.SIMPLE, {claims.NOTE: ""}))
    del store.blobs[oci.digest(b"gone")]
    for layers in (1, [1], [{"digest": "x"}], None):
        data = json.dumps({"layers": layers}).encode()
        store.blobs[oci.digest(data)] = data
        store.entries.append({"digest": oci.digest(data), "size": len(data)})
    store.sign(one[0])
    report = verify(store, [one[1]])
    assert len(report.ignored) == 4
    assert any(x.startswith("signature ") and "longer than any" in x for x in report.ignored)
    assert any(x.startswith("manifest ") and "longer than any" in x for x in report.ignored)
    assert report.signed


def test_signatures_without_end(one):
    store = Memory()
    store.put(*((str(n).encode(), claims.SIMPLE, {}) for n in range(600)))
    store.sign(one[0])
    with pytest.raises(SignatureError):
        verify(store, [one[1]])
