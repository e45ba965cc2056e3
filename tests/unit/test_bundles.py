"""What counts as signed without a key: certificate, log entry, identity and statement, each of them altered once."""

from __future__ import annotations

import base64
import copy
import datetime
import json
import os
import warnings
from pathlib import Path

import pytest

from support.signatures import DIGEST, NAME, OTHER, Memory, loaded
from support.sigstore_services import CLAIMS, IDENTITY, ISSUER, Services
from verlstack.errors import SignatureError
from verlstack.signing import bundles, claims
from verlstack.signing.verify import Wanted, verify

CYCLONEDX = "https://cyclonedx.org/bom"
WHO = bundles.Identity(subject=IDENTITY, issuer=ISSUER)
SAID = claims.statement(NAME, DIGEST, claims.SIGNATURE, {})


@pytest.fixture(scope="module")
def services():
    return Services()


@pytest.fixture(scope="module")
def wanted(services, tmp_path_factory):
    root, _ = services.write(tmp_path_factory.mktemp("sigstore"))

    def of(*identities, keys=()):
        return Wanted(keys=keys, identities=identities or (WHO,), trust=bundles.trust(root))

    return of


def holding(*documents, kind=bundles.BUNDLE):
    store = Memory()
    for one in documents:
        store.put((one if isinstance(one, bytes) else json.dumps(one).encode(), kind, {}))
    return store


def test_who_signed_and_as_what(services, wanted):
    report = verify(holding(services.bundle(SAID)), wanted())
    assert report.signed == {f"{IDENTITY} ({ISSUER})": (NAME,)}
    assert report.ignored == ()


def test_the_name_is_demanded_where_it_is_asked_for(services, wanted):
    """Cosign names no repository in what it signs."""
    nameless = json.loads(SAID)
    del nameless["subject"][0]["name"]
    store = holding(services.bundle(json.dumps(nameless).encode()))
    assert verify(store, wanted()).signed == {WHO.name: ()}
    with pytest.raises(SignatureError, match=f"as nothing, not as {NAME}"):
        verify(store, wanted(), name=NAME)
    assert verify(holding(services.bundle(SAID)), wanted(), name=NAME).signed


@pytest.mark.parametrize("kind", ["v0.3+json", "+json;version=0.3"])
def test_both_names_of_the_form(services, wanted, kind):
    kind = f"application/vnd.dev.sigstore.bundle{'.' if kind[0] == 'v' else ''}{kind}"
    assert verify(holding(services.bundle(SAID), kind=kind), wanted()).signed


@pytest.mark.parametrize(
    ("who", "said"),
    [
        (bundles.Identity(subject=f"{IDENTITY}2", issuer=ISSUER), "SANs do not match"),
        (bundles.Identity(subject=IDENTITY, issuer="https://elsewhere.invalid"), "OIDCIssuer"),
        (bundles.Identity(subject="", issuer=ISSUER), "SANs do not match"),
    ],
)
def test_somebody_else(services, wanted, who, said):
    with pytest.raises(SignatureError, match=said):
        verify(holding(services.bundle(SAID)), wanted(who))


def test_certified_by_another_sigstore(wanted):
    with pytest.raises(SignatureError, match="0 of the 1"):
        verify(holding(Services().bundle(SAID)), wanted())


def test_without_an_identity_it_does_not_count(services, tmp_path):
    _, public = loaded(tmp_path, "one")
    with pytest.raises(SignatureError, match="no --certificate-identity is given"):
        verify(holding(services.bundle(SAID)), Wanted(keys=(public,)))


def test_signed_with_a_key_where_none_is_given(wanted, tmp_path):
    store = Memory()
    store.sign(loaded(tmp_path, "one")[0])
    with pytest.raises(SignatureError, match="signed with a key, and no --key is given"):
        verify(store, wanted())


def test_a_key_and_an_identity_are_two(services, wanted, tmp_path):
    private, public = loaded(tmp_path, "one")
    store = holding(services.bundle(SAID))
    with pytest.raises(SignatureError, match="1 of the 2"):
        verify(store, wanted(keys=(public,)))
    store.sign(private)
    assert set(verify(store, wanted(keys=(public,)), threshold=2).signed) == {public.name, WHO.name}


def test_an_identity_given_twice_is_one(services, wanted):
    assert verify(holding(services.bundle(SAID)), wanted(WHO, WHO)).threshold == 1


def test_one_certificate_with_two_names_is_one(services, wanted):
    other = bundles.Identity(subject="https://github.com/team/other", issuer=ISSUER)
    store = holding(services.bundle(SAID, also=[other.subject]))
    with pytest.raises(SignatureError, match="1 of the 2"):
        verify(store, wanted(WHO, other))
    assert list(verify(store, wanted(other, WHO), threshold=1).signed) == [other.name]
    store = holding(services.bundle(SAID), services.bundle(SAID, claims=CLAIMS | {"job_workflow_ref": "team/other"}))
    assert set(verify(store, wanted(WHO, other)).signed) == {WHO.name, other.name}


def test_attestations(services, wanted):
    about = claims.statement(NAME, DIGEST, CYCLONEDX, {"a": 1})
    with pytest.raises(SignatureError, match="0 of the 1"):
        verify(holding(services.bundle(about)), wanted())
    report = verify(holding(services.bundle(SAID), services.bundle(about)), wanted(), attestations=["cyclonedx"])
    assert report.attested == {CYCLONEDX: (WHO.name,)}


def test_a_bundle_made_with_a_key(tmp_path):
    """Cosign 3 writes these with `--key`: no certificate, a hint of the key instead."""
    private, public = loaded(tmp_path, "one")
    envelope = json.loads(claims.envelope(SAID, private))
    document = {"verificationMaterial": {"publicKey": {"hint": "x"}}, "dsseEnvelope": envelope}
    assert verify(holding(document), Wanted(keys=(public,))).signed == {public.name: (NAME,)}
    _, other = loaded(tmp_path, "other")
    with pytest.raises(SignatureError, match="none of these keys"):
        verify(holding(document), Wanted(keys=(other,)))


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (claims.statement(NAME, OTHER, claims.SIGNATURE, {}), f"another image: {OTHER[7:]}"),
        (b"{}", "no in-toto statement"),
        (b"\xff", "no in-toto statement"),
    ],
)
def test_statements_about_something_else(services, wanted, statement, said):
    with pytest.raises(SignatureError, match=said):
        verify(holding(services.bundle(statement)), wanted())


def test_a_payload_of_another_type(services, wanted):
    with pytest.raises(SignatureError, match="no in-toto statement"):
        verify(holding(services.bundle(SAID, kind="text/plain")), wanted())


def test_certificate_and_entry_must_be_of_one_time(services, wanted):
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    hour = datetime.timedelta(hours=1)
    assert verify(holding(services.bundle(SAID, at=now - hour, entered=now - hour)), wanted()).signed
    for at, entered in ((now - hour, now), (now, now - hour)):
        with pytest.raises(SignatureError, match="0 of the 1"):
            verify(holding(services.bundle(SAID, at=at, entered=entered)), wanted())


def swap(document, *path, by):
    changed = copy.deepcopy(document)
    *above, last = path
    place = changed
    for name in above:
        place = place[name]
    place[last] = by(place[last]) if callable(by) else by
    return changed


def bent(text):
    """Base64 of other bytes."""
    raw = bytearray(base64.b64decode(text))
    raw[-1] ^= 1
    return base64.b64encode(bytes(raw)).decode()


ENTRY = ("verificationMaterial", "tlogEntries", 0)


@pytest.mark.parametrize(
    ("path", "by"),
    [
        (("dsseEnvelope", "payload"), base64.b64encode(claims.statement(NAME, DIGEST, CYCLONEDX, {})).decode()),
        (("dsseEnvelope", "signatures", 0, "sig"), bent),
        (("dsseEnvelope", "signatures"), []),
        (("dsseEnvelope", "signatures"), lambda x: x * 2),
        (("dsseEnvelope", "payloadType"), "text/plain"),
        (("dsseEnvelope",), None),
        (("dsseEnvelope",), {}),
        (("verificationMaterial",), {}),
        (("verificationMaterial",), []),
        (("verificationMaterial", "certificate", "rawBytes"), bent),
        (("verificationMaterial", "certificate", "rawBytes"), ""),
        (("verificationMaterial", "tlogEntries"), []),
        (("verificationMaterial", "tlogEntries"), lambda x: x * 2),
        ((*ENTRY, "inclusionPromise", "signedEntryTimestamp"), bent),
        ((*ENTRY, "inclusionPromise"), None),
        ((*ENTRY, "inclusionProof", "rootHash"), bent),
        ((*ENTRY, "inclusionProof", "checkpoint", "envelope"), lambda x: x.replace("1\n", "1\n9", 1)),
        ((*ENTRY, "inclusionProof"), None),
        ((*ENTRY, "integratedTime"), lambda x: str(int(x) + 1)),
        ((*ENTRY, "canonicalizedBody"), bent),
        ((*ENTRY, "logId", "keyId"), bent),
        ((*ENTRY, "kindVersion", "kind"), "hashedrekord"),
        (("mediaType",), "text/plain"),
    ],
)  # fmt: skip
def test_anything_altered(services, wanted, path, by):
    document = services.bundle(SAID)
    assert verify(holding(document), wanted()).signed
    with pytest.raises(SignatureError, match="0 of the 1"):
        verify(holding(swap(document, *path, by=by)), wanted())


def test_an_entry_of_another_signature(services, wanted):
    """Both are right by themselves."""
    one, other = services.bundle(SAID), services.bundle(SAID)
    with pytest.raises(SignatureError, match="log entry signatures do not match"):
        verify(
            holding(swap(one, "verificationMaterial", "tlogEntries", by=other["verificationMaterial"]["tlogEntries"])),
            wanted(),
        )


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b"1", b'{"mediaType": 1}'])
def test_what_is_no_bundle_does_no_harm(services, wanted, data):
    report = verify(holding(data, services.bundle(SAID)), wanted())
    assert report.signed
    assert len(report.ignored) == 1


@pytest.mark.parametrize("path", [("verificationMaterial", "tlogEntries"), ("dsseEnvelope", "signatures")])
def test_a_bundle_of_many_parts_is_not_looked_into(services, wanted, monkeypatch, path):
    """The library makes of 4 MB of these 5 million errors: half a minute, 8 GB."""
    document = swap(services.bundle(SAID), *path, by=[{}] * 1000)
    monkeypatch.setattr(json, "loads", guarded(json.loads))
    with pytest.raises(SignatureError, match="more parts than any"):
        verify(holding(document), wanted())


def guarded(loads):
    def small(data, *rest, **more):
        assert len(data) < 2000, "this should not have been parsed"
        return loads(data, *rest, **more)

    return small


def test_what_is_listed_again_and_again_is_read_once(services, wanted):
    store = holding(services.bundle(SAID))
    reads = []
    store.manifest = lambda digest, read=store.manifest: reads.append(digest) or read(digest)
    store.entries *= 600
    assert verify(store, wanted()).signed
    assert len(reads) == 1


def test_documents_without_end(services, wanted):
    store = holding(*(f'{{"a": {n}}}'.encode() for n in range(501)), services.bundle(SAID))
    with pytest.raises(SignatureError) as caught:
        verify(store, wanted())
    assert "0 of the 1" in caught.value.what


def test_a_true_entry_after_the_same_with_a_wrong_size(services, wanted):
    store = holding(services.bundle(SAID))
    (entry,) = store.entries
    store.entries = [entry | {"size": 1 << 40}, entry]
    assert verify(store, wanted()).signed


def test_what_a_hostile_certificate_makes_python_warn_of(services, wanted, monkeypatch, recwarn):
    real = bundles.verified
    monkeypatch.setattr(bundles, "verified", lambda *words: warnings.warn("serial", stacklevel=1) or real(*words))
    assert verify(holding(services.bundle(SAID)), wanted()).signed
    assert len(recwarn) == 0


def test_a_type_that_cannot_be_printed(services, wanted):
    statement = json.dumps(json.loads(SAID) | {"predicateType": "\ud800"}).encode()
    with pytest.raises(SignatureError, match="no in-toto statement"):
        verify(holding(services.bundle(statement)), wanted())


def test_one_listed_first_as_something_else_still_counts(services, wanted):
    """A list that anybody may write to must not hide what others signed."""
    data = json.dumps(services.bundle(SAID)).encode()
    store = Memory()
    store.put((data, claims.DSSE, {}), (data, bundles.BUNDLE, {}))
    assert verify(store, wanted()).signed


def test_in_the_form_of_cosign_2(services, wanted):
    store = Memory()
    note = {claims.NOTE: "AAAA", bundles.CERTIFICATE: "-----BEGIN CERTIFICATE-----"}
    store.put((claims.claim(NAME, DIGEST), claims.SIMPLE, note))
    with pytest.raises(SignatureError, match="in the form of cosign 2, which only `cosign verify` reads"):
        verify(store, wanted())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b"x" * (2 << 20),
        {"mediaType": "x"},
        {"tlogs": []},
        {"tlogs": 1},
        {"certificateAuthorities": []},
    ],
)
def test_what_is_no_trusted_root(services, tmp_path, data):
    path = tmp_path / "root.json"
    path.write_bytes(data if isinstance(data, bytes) else json.dumps(services.trusted_root() | data).encode())
    with pytest.raises(SignatureError, match="trusted root") as caught:
        bundles.trust(path)
    assert str(path) in str(caught.value)


def test_a_trusted_root_without_a_certificate_log(tmp_path, services):
    path = tmp_path / "root.json"
    path.write_text(json.dumps(services.trusted_root() | {"ctlogs": []}))
    with pytest.raises(SignatureError, match="0 of the 1"):
        verify(holding(services.bundle(SAID)), Wanted(identities=(WHO,), trust=bundles.trust(path)))


def test_a_folder_and_nothing_are_no_trusted_root(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(SignatureError, match="no trusted root"):
            bundles.trust(path)


def test_a_trusted_root_from_a_pipe(services, wanted):
    """As a shell gives it for `<(command)`."""
    reading, writing = os.pipe()
    os.write(writing, json.dumps(services.trusted_root()).encode())
    os.close(writing)
    try:
        trust = bundles.trust(Path(f"/dev/fd/{reading}"))
    finally:
        os.close(reading)
    assert verify(holding(services.bundle(SAID)), Wanted(identities=(WHO,), trust=trust)).signed


def test_nothing_is_quoted_of_a_file_that_is_none(tmp_path):
    path = tmp_path / "token"
    path.write_text("eyJsecret")
    with pytest.raises(SignatureError) as caught:
        bundles.trust(path)
    assert "secret" not in str(caught.value)


def test_without_a_file_the_public_sigstore_is_trusted_and_no_cache(services, monkeypatch, tmp_path, capfd):
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    trust = bundles.trust(None)
    with pytest.raises(SignatureError, match="0 of the 1"):
        verify(holding(services.bundle(SAID)), Wanted(identities=(WHO,), trust=trust))
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.rglob("*")) == [], "what is written there would be trusted the next time"


def test_the_owner_of_a_certificate(services):
    from cryptography.hazmat.primitives.asymmetric import ec

    certificate = services.certificate(ec.generate_private_key(ec.SECP256R1()).public_key(), CLAIMS)
    assert bundles.owner(certificate) == IDENTITY
