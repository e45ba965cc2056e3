"""What is signed: cosign's claim about an image, and in-toto statements in DSSE envelopes; written and judged."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from verlstack import canonical

if TYPE_CHECKING:
    from collections.abc import Sequence

    from verlstack.signing.keys import PrivateKey, PublicKey

SIMPLE = "application/vnd.dev.cosign.simplesigning.v1+json"  # media type of a claim
DSSE = "application/vnd.dsse.envelope.v1+json"
NOTE = "dev.cosignproject.cosign/signature"  # annotation with the signature of a claim
PREDICATE = "predicateType"  # annotation of an envelope; for people, the envelope itself decides
_MOST_VALUES = 1000  # commas and brackets of a signed document; cosign's have 70
_MOST_ROWS = 32  # signatures of one envelope that are looked at; cosign's have one
SIGNATURE = "https://sigstore.dev/cosign/sign/v1"  # type of the predicate with which cosign 3 signs an image
_KIND = "cosign container image signature"
IN_TOTO = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
_STATEMENTS = {STATEMENT, "https://in-toto.io/Statement/v0.1"}  # cosign 2.5 writes the older


class Signatory(Protocol):
    """Whose signatures count: a public key, or an identity."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def id(self) -> str:
        """Two with one id are one."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What one signed thing turned out to be.

    Attributes:
        signers: who signed it, of those who count; none where it does not count.
        kind: the type of an attestation's predicate; `SIGNATURE` of what only says that the image is signed.
        name: the repository that it calls the image; empty where it calls it nothing.
        why_not: why it does not count, or None.
        predicate: of an attestation.
    """

    signers: tuple[Signatory, ...] = ()
    kind: str = SIGNATURE
    name: str = ""
    why_not: str | None = None
    predicate: Any = None


def claim(name: str, digest: str) -> bytes:
    """The bytes that are signed for an image (containers' "simple signing", as cosign writes it).

    Args:
        name: HOST/REPOSITORY.
        digest: `sha256:…` of the manifest.
    """
    identity = {"docker-reference": name}
    critical = {"identity": identity, "image": {"docker-manifest-digest": digest}, "type": _KIND}
    return canonical.dumps({"critical": critical, "optional": None})


def judge_claim(data: bytes, signature: str, keys: Sequence[PublicKey], digest: str) -> Judged:
    """Whether a claim is about this image, and who signed it.

    Args:
        data: the claim.
        signature: of it, base64.
        keys: whose signatures count.
        digest: of the image that is verified.
    """
    signers = _signers(data, signature, keys)
    if not signers:
        return Judged(why_not=_other_key(keys))
    try:
        critical = json.loads(data)["critical"]
        kind, about = critical["type"], critical["image"]["docker-manifest-digest"]
        called = critical["identity"]["docker-reference"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return Judged(why_not="signed, but no claim about an image")
    if kind != _KIND or not isinstance(called, str):
        return Judged(why_not="signed, but no claim about an image")
    if about != digest:
        return Judged(why_not=f"signed, but for another image: {about}")
    return Judged(signers=signers, name=called)


def statement(name: str, digest: str, kind: str, predicate: Any) -> bytes:
    """An in-toto statement (v1) about an image."""
    subject = {"digest": {"sha256": digest.removeprefix("sha256:")}, "name": name}
    return canonical.dumps({"_type": STATEMENT, "predicate": predicate, "predicateType": kind, "subject": [subject]})


def envelope(payload: bytes, key: PrivateKey) -> bytes:
    """A statement, signed (DSSE v1)."""
    signature = base64.b64encode(key.sign(_authenticated(payload))).decode()
    rows = [{"keyid": "", "sig": signature}]
    text = base64.b64encode(payload).decode()
    return canonical.dumps({"payload": text, "payloadType": IN_TOTO, "signatures": rows})


def payload_of(data: bytes) -> bytes | None:
    """The statement in an envelope, whoever signed it; None where it is no envelope."""
    try:
        return base64.b64decode(json.loads(data)["payload"], validate=True)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def is_small(data: bytes) -> bool:
    """Whether a document in JSON has no more values than an envelope or bundle, so that it may be looked at whole.

    What is long in them is base64, which has none of these characters. Without a bound, 4 MB of `{},{},…` cost a
    reader a minute and 8 GB.
    """
    return sum(map(data.count, (b",", b"{", b"["))) <= _MOST_VALUES


def judge_envelope(data: bytes, keys: Sequence[PublicKey], digest: str) -> Judged:
    """Whether an attestation is about this image, and who signed it; arguments as of `judge_claim`."""
    if not is_small(data):
        return Judged(why_not="no DSSE envelope: it has more parts than any")
    try:
        document = json.loads(data)
        kind, rows = document["payloadType"], [str(x["sig"]) for x in document["signatures"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return Judged(why_not="no DSSE envelope")
    payload = payload_of(data)
    if kind != IN_TOTO or payload is None:
        return Judged(why_not="no in-toto statement in a DSSE envelope")
    signed = _authenticated(payload)
    found = {x.id: x for row in rows[:_MOST_ROWS] for x in _signers(signed, row, keys)}
    if not found:
        return Judged(why_not=_other_key(keys))
    return judge_statement(payload, tuple(found.values()), digest)


def _other_key(keys: Sequence[PublicKey]) -> str:
    return "signed with none of these keys" if keys else "signed with a key, and no --key is given"


def judge_statement(payload: bytes, signers: tuple[Signatory, ...], digest: str) -> Judged:
    """Whether an in-toto statement is about this image; who signed it is known."""
    try:
        document = json.loads(payload)
        about = {x["digest"].get("sha256"): str(x.get("name") or "") for x in document["subject"]}
        known, kind = document["_type"] in _STATEMENTS, document["predicateType"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        known, about, kind = False, {}, None
    if not known or not isinstance(kind, str) or not (kind.isprintable() and all(map(str.isprintable, about.values()))):
        return Judged(why_not="signed, but no in-toto statement")
    name = about.get(digest.removeprefix("sha256:"))
    if name is None:
        return Judged(why_not=f"signed, but for another image: {', '.join(map(str, about))[:200]}")
    return Judged(signers=signers, kind=kind, name=name, predicate=document.get("predicate"))


def _signers(data: bytes, signature: str, keys: Sequence[PublicKey]) -> tuple[PublicKey, ...]:
    try:
        raw = base64.b64decode(signature, validate=True)
    except ValueError:
        return ()
    return tuple(key for key in keys if key.verifies(raw, data))


def _authenticated(payload: bytes) -> bytes:
    """What of an envelope is signed: DSSE's pre-authentication encoding."""
    kind = IN_TOTO.encode()
    return b" ".join((b"DSSEv1", str(len(kind)).encode(), kind, str(len(payload)).encode(), payload))
