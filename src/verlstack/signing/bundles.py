"""Sigstore bundles: a signed statement, and where no key signed it, certificate and log entry; judged offline."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from verlstack import reading
from verlstack.errors import SignatureError
from verlstack.signing import claims
from verlstack.signing.claims import Judged

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sigstore.verify import Verifier

    from verlstack.signing.keys import PublicKey

# The library warns on stderr of what the errors here say in our own words.
logging.getLogger("sigstore").addHandler(logging.NullHandler())

BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"  # media type of what is written
READ = re.compile(r"application/vnd\.dev\.sigstore\.bundle(\.v0\.3)?\+json(; ?version=0\.[123])?")
CERTIFICATE = "dev.sigstore.cosign/certificate"  # annotation that cosign 2 writes in place of a bundle
_MOST_SAID = 300  # characters of the library's reason
_MOST = 1 << 20  # bytes of a trusted root; the public one has 6,800
_GET = "`cosign trusted-root create`, or the file of your own Sigstore; without one the public Sigstore's counts"


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Who may sign without a key: what a certificate calls its owner, and who says so.

    Attributes:
        subject: an e-mail address or URI (of a workflow on GitHub: its file and the ref that it ran for).
        issuer: address of the OpenID Connect provider.
    """

    subject: str
    issuer: str

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.subject} ({self.issuer})"

    @property
    def id(self) -> str:
        """No key's, for those begin with `sha256:`."""
        return f"identity:{json.dumps([self.issuer, self.subject])}"


def trust(path: Path | None) -> Verifier:
    """What knows whose certificates and log entries count, from a Sigstore's `trusted_root.json`.

    Without one it is the public Sigstore's, as the sigstore library last got it or brought it along. No network.

    Raises:
        SignatureError: there is none, or it trusts nobody.
    """
    from sigstore.errors import Error  # noqa: PLC0415 - 0.2 s, and only for signatures without a key
    from sigstore.models import ClientTrustConfig, TrustedRoot  # noqa: PLC0415
    from sigstore.verify import Verifier  # noqa: PLC0415

    try:
        if path is None:
            root = ClientTrustConfig.production(offline=True).trusted_root
        else:
            document(path)
            root = TrustedRoot.from_file(str(path))
        return Verifier(trusted_root=root)
    except (OSError, ValueError, Error, RecursionError) as e:
        what = f"no trusted root of a Sigstore here: {said(e)}"
        raise SignatureError(what, where=str(path or "the sigstore library"), todo=f"name one: {_GET}") from None


def document(path: Path) -> bytes:
    """The bytes of one of a Sigstore's files; raises as `reading.data`."""
    return reading.data(path, _MOST)


def judge(
    data: bytes, keys: Sequence[PublicKey], identities: Sequence[Identity], trust: Verifier | None, digest: str
) -> Judged:
    """Whether a bundle is about this image, and who signed it.

    Args:
        data: the bundle.
        keys: whose signatures count.
        identities: who else's; `trust` says how they are known.
        trust: None where no identity counts.
        digest: of the image that is verified.
    """
    try:
        document = json.loads(data)
        material, envelope = document["verificationMaterial"], document["dsseEnvelope"]
        keyless = "publicKey" not in material
    except (ValueError, KeyError, TypeError, RecursionError):
        return Judged(why_not="no bundle with an in-toto statement")
    if not keyless:
        return claims.judge_envelope(json.dumps(envelope).encode(), keys, digest)
    if trust is None:
        return Judged(why_not="signed without a key, and no --certificate-identity is given")
    return _without_key(data, identities, trust, digest)


def _without_key(data: bytes, identities: Sequence[Identity], trust: Verifier, digest: str) -> Judged:
    from sigstore.models import Bundle  # noqa: PLC0415
    from sigstore.verify import policy  # noqa: PLC0415

    found, payload, why_not = [], b"", ""
    for one in identities:
        wanted = policy.Identity(identity=one.subject, issuer=one.issuer)
        try:
            kind, payload = trust.verify_dsse(Bundle.from_json(data), wanted)
        except Exception as e:  # noqa: BLE001 - whatever a hostile certificate or entry makes it raise, it does not count
            why_not = f"signed without a key, and does not verify: {said(e)}"
        else:
            found.append(one)
    if not found:
        return Judged(why_not=why_not)
    if kind != claims.IN_TOTO:
        return Judged(why_not="signed, but no in-toto statement")
    return claims.judge_statement(payload, tuple(found), digest)


def said(error: BaseException) -> str:
    """An error of the library, in one line."""
    return " ".join(str(error).split())[:_MOST_SAID] or type(error).__name__


def owner(certificate: Any) -> str:
    """What a certificate calls its owner, for people."""
    from cryptography import x509  # noqa: PLC0415

    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return ", ".join(str(x.value) for x in names)
