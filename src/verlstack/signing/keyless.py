"""Signing without a key: a certificate of ten minutes for whoever runs this, and an entry in a log (Sigstore)."""

from __future__ import annotations

import contextlib
import json
import signal
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from verlstack import artifact
from verlstack.errors import FetchError, SignatureError
from verlstack.signing import bundles, claims
from verlstack.signing.signer import Signed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import sigstore.models
    import sigstore.sign
    from sigstore.oidc import IdentityToken

    from verlstack.upload import Writer

T = TypeVar("T")
TOKEN = "SIGSTORE_ID_TOKEN"  # noqa: S105 - the variable's name; cosign reads the same
_CONFIG = "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json"
_CONTENT = "dev.sigstore.bundle.content"  # annotations that cosign 3 gives to a bundle's manifest
_PREDICATE = "dev.sigstore.bundle.predicateType"
_SECONDS = 60.0  # for all of one request; the library itself waits for ever
_KEY = "see that the services can be reached, or sign with `--key FILE`, which needs none"


@dataclass(frozen=True)
class Keyless:
    """Who has an identity, and a certificate for it."""

    _certified: sigstore.sign.Signer

    def image(self, writer: Writer) -> Signed:
        """As of `signer.Signer`; always a new one, for it is an entry of the log with a time of its own."""
        return self.attest(writer, {claims.SIGNATURE: {}})

    def attest(self, writer: Writer, predicates: dict[str, Any]) -> Signed:
        """As of `signer.Signer`."""
        ref, by = writer.reference, ""
        about = artifact.subject(writer)
        with tempfile.TemporaryDirectory(prefix="verlstack-") as folder:
            for kind, predicate in predicates.items():
                made = self._signed(claims.statement(f"{ref.host}/{ref.repository}", ref.digest, kind, predicate))
                now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
                notes = {artifact.CREATED: now, _CONTENT: "dsse-envelope", _PREDICATE: kind}
                data = made.to_json().encode()
                artifact.attach(writer, data, bundles.BUNDLE, about, Path(folder), notes=notes)
                by = bundles.owner(made.signing_certificate)
        return Signed(by=by, new=True)

    def _signed(self, statement: bytes) -> sigstore.models.Bundle:
        from sigstore.dsse import Statement  # noqa: PLC0415 - as everywhere: only for signatures without a key

        return _served("the signature log", lambda: self._certified.sign_dsse(Statement(statement)))


def signer(env: Mapping[str, str], root: Path | None, services: Path | None) -> Keyless:
    """Have whoever runs this certified.

    Args:
        env: may hold their token in `SIGSTORE_ID_TOKEN`; a job on GitHub that may ask for one is asked.
        root: a Sigstore's `trusted_root.json`; None for the public one.
        services: its `signing_config.json`, with the addresses of its services; both or none.

    Raises:
        SignatureError: nobody says who this is, or the files are none.
        FetchError: a service refuses, or does not answer.
    """
    from sigstore.sign import Signer, SigningContext  # noqa: PLC0415

    token = _token(env)
    config = _config(root, services)
    context = _served("the signing configuration", lambda: SigningContext.from_trust_config(config))
    return Keyless(_served("the certificate authority", lambda: Signer(token, context)))


def _token(env: Mapping[str, str]) -> IdentityToken:
    """Who this is, as an OpenID Connect provider says; never shown.

    Raises:
        SignatureError: nobody says it, or they say it no longer.
    """
    from sigstore import oidc  # noqa: PLC0415

    try:
        raw = env.get(TOKEN) or oidc.detect_credential()
        if not raw:
            raise SignatureError(
                "nobody says who signs: there is no identity token, and no CI service that gives one",
                where=TOKEN,
                todo=f"set {TOKEN}, or sign in a job on GitHub with `id-token: write`; or sign with `--key FILE`",
            )
        return oidc.IdentityToken(raw)
    except oidc.IdentityError as e:
        what = f"the identity token cannot be used: {bundles.said(e)}"
        raise SignatureError(what, where=TOKEN, todo="get a new one, for the audience `sigstore`") from None


def _config(root: Path | None, services: Path | None) -> sigstore.models.ClientTrustConfig:
    from sigstore.models import ClientTrustConfig  # noqa: PLC0415

    if root is None or services is None:
        return _served("the public Sigstore", ClientTrustConfig.production)
    try:
        trusted, where = json.loads(bundles.document(root)), json.loads(bundles.document(services))
        both = {"mediaType": _CONFIG, "signingConfig": where, "trustedRoot": trusted}
        return ClientTrustConfig.from_json(json.dumps(both))
    except (OSError, ValueError, RecursionError) as e:
        what = f"no trusted root and signing config of a Sigstore: {bundles.said(e)}"
        raise SignatureError(what, where=f"{root}, {services}", todo="name both files of one Sigstore") from None


def _served(what: str, ask: Callable[[], T]) -> T:
    """What a service gives; for what may go wrong the library has no common class, and neither have those it uses."""
    try:
        with _limited(_SECONDS):
            return ask()
    except Exception as e:
        raise FetchError(f"{what} refuses, or does not answer: {bundles.said(e)}", todo=_KEY) from e


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """End what waits on the network too long; by a signal, for the library takes no limit. Main thread alone."""

    def late(*_: object) -> None:
        raise TimeoutError(f"nothing within {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
