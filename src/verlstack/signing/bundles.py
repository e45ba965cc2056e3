"""Sigstore bundles: a signed statement, and where no key signed it, certificate and log entry; judged offline."""

from __future__ import annotations

import json
import logging
import re
import tempfile
import warnings
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from verlstack import reading
from verlstack.errors import SignatureError
from verlstack.signing import claims
from verlstack.signing.claims import Judged

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sigstore.models import Bundle, TrustedRoot
    from sigstore.verify import Verifier

    from verlstack.signing.keys import PublicKey

# The library warns on stderr of what the errors here say in our own words.
logging.getLogger("sigstore").addHandler(logging.NullHandler())

BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"  # media type of what is written
READ = re.compile(r"application/vnd\.dev\.sigstore\.bundle(\.v0\.3)?\+json(; ?version=0\.[123])?")
CERTIFICATE = "dev.sigstore.cosign/certificate"  # annotation that cosign 2 writes in place of a bundle
_MOST_SAID = 300  # characters of the library's reason
_MOST = 1 << 20  # bytes of a trusted root; the public one has 6,800
_PUBLIC = "https%3A%2F%2Ftuf-repo-cdn.sigstore.dev"  # folder of the library with the public Sigstore's files
_GET = "name a Sigstore's own file, or none: then the public Sigstore's counts, as the sigstore library has it"


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

    Without one it is the public Sigstore's that came with the sigstore library; nothing is fetched, no cache trusted.

    Raises:
        SignatureError: there is none, or it trusts nobody.
    """
    from sigstore.verify import Verifier  # noqa: PLC0415 - 0.2 s, and only for signatures without a key

    where = "the sigstore library" if path is None else str(path)
    try:
        data = _public() if path is None else document(path)
        return Verifier(trusted_root=_root(data))
    except OSError as e:
        what = f"no trusted root of a Sigstore here: {e.strerror or 'it cannot be read'}"
        raise SignatureError(what, where=where, todo=_GET) from None
    except Exception:  # noqa: BLE001 - the library's words may quote the file, and it has no common class for them
        raise SignatureError(
            "this is no trusted root of a Sigstore, or trusts nobody", where=where, todo=_GET
        ) from None


def _public() -> bytes:
    return resources.files("sigstore").joinpath("_store", _PUBLIC, "trusted_root.json").read_bytes()


def _root(data: bytes) -> TrustedRoot:
    """From a copy: the library opens a file by its name, and a pipe can be read but once."""
    from sigstore.models import TrustedRoot  # noqa: PLC0415

    with tempfile.NamedTemporaryFile(prefix="verlstack-") as copy:
        copy.write(data)
        copy.flush()
        return TrustedRoot.from_file(copy.name)


def document(path: Path) -> bytes:
    """The bytes of one of a Sigstore's files; raises as `reading.data`."""
    return reading.data(path, _MOST)


def judge(
    data: bytes, keys: Sequence[PublicKey], identities: Sequence[Identity], known_by: Verifier | None, digest: str
) -> Judged:
    """Whether a bundle is about this image, and who signed it.

    Args:
        data: the bundle.
        keys: whose signatures count.
        identities: who else's.
        known_by: what knows them; None where no identity counts.
        digest: of the image that is verified.
    """
    if not claims.is_small(data):
        return Judged(why_not="unreadable: it has more parts than any")
    try:
        table = json.loads(data)
        material, envelope = table["verificationMaterial"], table["dsseEnvelope"]
        keyless = "publicKey" not in material
    except (ValueError, KeyError, TypeError, RecursionError):
        return Judged(why_not="unreadable: there is no in-toto statement in it")
    if not keyless:
        return claims.judge_envelope(json.dumps(envelope).encode(), keys, digest)
    if known_by is None:
        return Judged(why_not="signed without a key, and no --certificate-identity is given")
    return _without_key(data, identities, known_by, digest)


def _without_key(data: bytes, identities: Sequence[Identity], known_by: Verifier, digest: str) -> Judged:
    """One bundle is one signature, whatever names its certificate has: it counts for the first that fits."""
    from sigstore.models import Bundle  # noqa: PLC0415

    why_not: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a hostile certificate; whether it counts is decided here
        try:
            bundle = Bundle.from_json(data)
        except Exception:  # noqa: BLE001 - whatever hostile bytes make it raise, they do not count
            return Judged(why_not="unreadable: there is no in-toto statement in it")
        for one in identities:
            try:
                kind, payload = verified(bundle, known_by, one)
            except Exception as e:  # noqa: BLE001 - likewise
                why_not.append(said(e))
                continue
            if kind != claims.IN_TOTO:
                return Judged(why_not="signed, but no in-toto statement")
            return claims.judge_statement(payload, (one,), digest)
    return Judged(why_not=f"signed without a key, which does not verify: {'; '.join(dict.fromkeys(why_not))}")


def verified(bundle: Bundle, known_by: Verifier, who: Identity | None) -> tuple[str, bytes]:
    """Type and bytes of what is signed, by the demanded identity, or by whomever its certificate names.

    Raises:
        Exception: it does not verify; of any class.
    """
    from sigstore.verify import policy  # noqa: PLC0415

    wanted = policy.Identity(identity=who.subject, issuer=who.issuer) if who else policy.UnsafeNoOp()
    return known_by.verify_dsse(bundle, wanted)


def said(error: BaseException) -> str:
    """An error of the library, in one line, with what it came from, which knows more."""
    known = dict.fromkeys(" ".join(str(x).split()) for x in (error, error.__cause__) if x is not None and str(x))
    return ": ".join(known)[:_MOST_SAID] or type(error).__name__


def owner(certificate: Any) -> str:
    """What a certificate calls its owner, for people."""
    from cryptography import x509  # noqa: PLC0415

    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return ", ".join(str(x.value) for x in names)
