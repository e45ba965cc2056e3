"""Signing without a key: a certificate of ten minutes for whoever runs this, and an entry in a log (Sigstore)."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from verlstack import artifact
from verlstack.base import reference
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
_JWT = re.compile(r"[\w.-]+", re.ASCII)
_KEY = "see that the services can be reached, or sign with `--key FILE`, which needs none"


@dataclass(frozen=True)
class Keyless:
    """Who has an identity; it is certified, and so published, not before there is something to sign."""

    _token: IdentityToken
    _config: sigstore.models.ClientTrustConfig

    def image(self, writer: Writer) -> Signed:
        """As of `signer.Signer`; always a new one, for it is an entry of the log with a time of its own."""
        return self.attest(writer, {claims.SIGNATURE: {}})

    def attest(self, writer: Writer, predicates: dict[str, Any]) -> Signed:
        """As of `signer.Signer`."""
        ref, by = writer.reference, ""
        about = artifact.subject(writer)
        certified = self._certified()
        with tempfile.TemporaryDirectory(prefix="verlstack-") as folder:
            for kind, predicate in predicates.items():
                statement = claims.statement(f"{ref.host}/{ref.repository}", ref.digest, kind, predicate)
                made = self._signed(certified, statement)
                now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
                notes = {artifact.CREATED: now, _CONTENT: "dsse-envelope", _PREDICATE: kind}
                data = made.to_json().encode()
                artifact.attach(writer, data, bundles.BUNDLE, about, Path(folder), notes=notes)
                by = bundles.owner(made.signing_certificate)
        return Signed(by=by, new=True)

    def _certified(self) -> sigstore.sign.Signer:
        from sigstore.sign import Signer, SigningContext  # noqa: PLC0415 - only for signatures without a key

        context = _served("the signing configuration", lambda: SigningContext.from_trust_config(self._config))
        return _served("the certificate authority", lambda: Signer(self._token, context))

    def _signed(self, certified: sigstore.sign.Signer, statement: bytes) -> sigstore.models.Bundle:
        """A bundle that verifies: what the services answered is not believed before."""
        from sigstore.dsse import Statement  # noqa: PLC0415
        from sigstore.verify import Verifier  # noqa: PLC0415

        made = _served("the signature log", lambda: certified.sign_dsse(Statement(statement)))
        known_by = Verifier(trusted_root=self._config.trusted_root)
        try:
            bundles.verified(made, known_by, None)
        except Exception as e:
            what = f"what the services answered does not verify: {bundles.said(e)}"
            todo = "give the trusted root and signing config of one Sigstore; nothing was attached"
            raise SignatureError(what, where="the certificate authority, or the signature log", todo=todo) from e
        return made


def signer(env: Mapping[str, str], root: Path | None, services: Path | None) -> Keyless:
    """Whoever runs this.

    Args:
        env: may hold their token in `SIGSTORE_ID_TOKEN`; in a job on GitHub, GitHub is asked for one.
        root: a Sigstore's `trusted_root.json`; None for the public one.
        services: its `signing_config.json`, with the addresses of its services; both or none.

    Raises:
        SignatureError: nobody says who this is, or the files are none.
        FetchError: a service refuses, or does not answer.
    """
    return Keyless(_token(env), _config(root, services))


def _token(env: Mapping[str, str]) -> IdentityToken:
    """Who this is, as an OpenID Connect provider says; never shown.

    The library would ask other services than GitHub's, too (a cloud machine's for its account): only what was meant.

    Raises:
        SignatureError: nobody says it, or they say it no longer.
        FetchError: GitHub gives no token.
    """
    from sigstore import oidc  # noqa: PLC0415

    raw = env.get(TOKEN, "").strip()
    if not raw and env.get("GITHUB_ACTIONS"):
        raw = _of_github(oidc.detect_credential)
    if not raw:
        raise SignatureError(
            "nobody says who signs: there is no identity token",
            where=TOKEN,
            todo=f"set {TOKEN}, or sign in a job on GitHub with `id-token: write`; or sign with `--key FILE`",
        )
    try:
        known = oidc.IdentityToken(raw) if _JWT.fullmatch(raw) else None
        why = "it is no JSON Web Token"
    except oidc.IdentityError as e:
        known, why = None, bundles.said(e)
    if known is None:
        what = f"the identity token cannot be used: {why}"
        raise SignatureError(what, where=TOKEN, todo="get a new one, for the audience `sigstore`")
    return known


def _of_github(ask: Callable[[], str | None]) -> str:
    from sigstore import oidc  # noqa: PLC0415

    todo = "give the job `permissions: id-token: write`, or sign with `--key FILE`"
    try:
        with _limited(_SECONDS):
            return ask() or ""
    except (oidc.IdentityError, TimeoutError) as e:
        raise FetchError(f"GitHub gives this job no token: {bundles.said(e)}", todo=todo) from None
    except Exception as e:  # noqa: BLE001 - of whatever class; its words may quote the request, and with it a secret
        raise FetchError(f"GitHub gives this job no token: {type(e).__name__}", todo=todo) from None


def _config(root: Path | None, services: Path | None) -> sigstore.models.ClientTrustConfig:
    from sigstore.models import ClientTrustConfig  # noqa: PLC0415

    if root is None or services is None:
        return _served("the public Sigstore", ClientTrustConfig.production)
    todo = "name the trusted_root.json and signing_config.json of one Sigstore"
    try:
        trusted, where = json.loads(bundles.document(root)), json.loads(bundles.document(services))
        _over_tls(where)
        both = {"mediaType": _CONFIG, "signingConfig": where, "trustedRoot": trusted}
        return ClientTrustConfig.from_json(json.dumps(both))
    except OSError as e:
        raise SignatureError(
            f"a file of a Sigstore cannot be read: {e.strerror}", where=str(e.filename), todo=todo
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # whose words may quote the files
        what = "these are no trusted root and signing config of a Sigstore"
        raise SignatureError(what, where=f"{root}, {services}", todo=todo) from None


def _over_tls(services: dict[str, Any]) -> None:
    """See that the token goes to no other machine in the clear.

    Raises:
        SignatureError: it would.
        KeyError, TypeError, AttributeError: no signing config.
    """
    for one in (*services["caUrls"], *services["rekorTlogUrls"], *services.get("tsaUrls", ())):
        address = urlsplit(one["url"])
        if address.scheme != "https" and not reference.is_loopback(address.netloc):
            what = f"the signing config names a service without TLS: {address.scheme}://{address.hostname}"
            raise SignatureError(what, todo="give its https address")


def _served(what: str, ask: Callable[[], T]) -> T:
    """What a service gives; for what may go wrong the library has no common class, and neither have those it uses."""
    try:
        with _limited(_SECONDS):
            return ask()
    except Exception as e:
        raise FetchError(f"{what} refuses, or does not answer: {bundles.said(e)}", todo=_KEY) from e


class _TooLate(BaseException):  # no Exception: what catches those, and tries again, must not see it
    """The time is up."""


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """End what waits on the network too long; by a signal, for the library takes no limit. Main thread alone.

    Raises:
        TimeoutError: it was ended.
    """

    def late(*_: object) -> None:
        raise _TooLate

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _TooLate:  # from above, or come just before the timer was put out
        raise TimeoutError(f"nothing within {seconds:.0f} s") from None
    finally:
        signal.signal(signal.SIGALRM, before)
