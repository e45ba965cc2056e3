"""Verbs for signatures: sign, verify."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from verlstack import canonical, told
from verlstack.errors import SignatureError, UsageError

if TYPE_CHECKING:
    import argparse

    from verlstack.signing.signer import Signer
    from verlstack.signing.verify import Report, Wanted

PASSWORD = "COSIGN_PASSWORD"  # noqa: S105 - the variable's name; cosign reads the same
_REF = "HOST/REPOSITORY@sha256:…"
_SHOWN = 5
_ROOT = "trusted_root.json of a Sigstore of your own (default: the public one's, as the sigstore library has it)"


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    """Add the verbs to the parser."""
    sign = verbs.add_parser("sign", parents=[common], help="sign an image in a registry, as cosign does")
    sign.add_argument("reference", metavar="REF", help=f"{_REF}; by digest, because a tag can move")
    add_signer(sign, required=True)
    sign.set_defaults(verb=_sign)
    verify = verbs.add_parser(
        "verify", parents=[common], help="whether an image is signed by those who must have signed it, and whole"
    )
    verify.add_argument(
        "image", metavar="REF|PATH", help="HOST/REPOSITORY:TAG or @sha256:…, or a layout or oci-archive on disk"
    )
    verify.add_argument(
        "--key", type=Path, default=[], action="append", metavar="FILE", help="public key (PEM); repeatable"
    )
    verify.add_argument(
        "--certificate-identity",
        default=[],
        action="append",
        metavar="WHO",
        help="who signed without a key: an e-mail address, or the URI of a workflow; repeatable",
    )
    verify.add_argument(
        "--certificate-oidc-issuer", metavar="URL", help="who says so, as https://token.actions.githubusercontent.com"
    )
    verify.add_argument("--trusted-root", type=Path, metavar="FILE", help=_ROOT)
    verify.add_argument(
        "--threshold", type=int, metavar="N", help="how many of the keys and identities must have signed (default: all)"
    )
    verify.add_argument("--as", dest="name", metavar="HOST/REPOSITORY", help="the name it must be signed as")
    verify.add_argument(
        "--attestation",
        action="append",
        default=[],
        metavar="TYPE",
        help="demand a signed attestation, too: cyclonedx, spdxjson, slsaprovenance1, smoke, vuln, or a type's address",
    )
    verify.set_defaults(verb=_verify)
    for verb in (sign, verify):
        verb.add_argument("--insecure", action="store_true", help="plain http, for a registry on this machine only")


def add_signer(verb: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the options that say who signs; `signer` reads them."""
    who = verb.add_mutually_exclusive_group(required=required)
    who.add_argument("--key", type=Path, metavar="FILE", help="sign with this private key (PEM, or cosign's)")
    who.add_argument(
        "--keyless",
        action="store_true",
        help="sign as who you are by SIGSTORE_ID_TOKEN, or by GitHub in a job there",
    )
    verb.add_argument("--trusted-root", type=Path, metavar="FILE", help="with --keyless: as of `verify`")
    verb.add_argument(
        "--signing-config",
        type=Path,
        metavar="FILE",
        help="with --trusted-root: signing_config.json of that Sigstore",
    )


def signer(arguments: argparse.Namespace) -> Signer | None:
    """Who signs, as `add_signer` lets them be named.

    Raises:
        SignatureError: the key or the identity cannot be used.
        FetchError: nobody gives a token, or says whom to trust.
        UsageError: options that do not go together.
    """
    from verlstack.signing import keyless, keys, sign  # noqa: PLC0415

    own = (arguments.trusted_root, arguments.signing_config)
    if any(own) and not (all(own) and arguments.keyless):
        what = "--trusted-root and --signing-config name a Sigstore of your own, both of them, for --keyless"
        raise UsageError(what, todo="give both, or none")
    if arguments.keyless:
        return keyless.signer(os.environ, *own)
    return sign.Keyed(keys.private(arguments.key, password)) if arguments.key else None


def password() -> bytes:
    """What opens a private key: from the environment, or asked for on a terminal; never an argument.

    Raises:
        SignatureError: neither.
    """
    known = os.environ.get(PASSWORD)
    if known is not None:
        return known.encode()
    if not sys.stdin.isatty():
        raise SignatureError("the private key is encrypted, and no password is there", todo=f"set {PASSWORD}")
    return getpass.getpass("password of the private key: ").encode()


def _sign(arguments: argparse.Namespace) -> int:
    from verlstack import upload  # noqa: PLC0415
    from verlstack.base import reference  # noqa: PLC0415

    ref = reference.place(arguments.reference, insecure=arguments.insecure)
    if ref.digest == reference.NO_DIGEST:
        what = f"{arguments.reference} has no digest, and a tag can move between looking and signing"
        raise UsageError(what, todo=f"write {_REF}; `verlstack publish` prints it")
    if (who := signer(arguments)) is None:  # which the parser does not let happen
        raise UsageError("nobody is named who signs", todo="give --key or --keyless")
    with upload.writer(ref, os.environ) as writer:
        done = who.image(writer)
    if arguments.json:
        print(canonical.dumps({"by": done.by, "digest": ref.digest, "new": done.new}).decode())
    else:
        print(f"{ref.host}/{ref.repository}@{ref.digest}")
        print(told.escaped(f"signed by {done.by}" if done.new else f"was signed by {done.by} already"))
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from verlstack.signing import stores, verify  # noqa: PLC0415

    who = _wanted(arguments)
    with stores.opened(arguments.image, Path(arguments.image), os.environ, insecure=arguments.insecure) as store:
        report = verify.verify(
            store,
            who,
            threshold=arguments.threshold,
            name=arguments.name,
            attestations=arguments.attestation,
        )
    if arguments.json:
        print(canonical.dumps(report).decode())
    else:
        _print(report)
    return 0


def _wanted(arguments: argparse.Namespace) -> Wanted:
    """Whose signatures count.

    Raises:
        UsageError: nobody's, or an identity without who vouches for it.
        SignatureError: a key or the trusted root cannot be used.
    """
    from verlstack.signing import bundles, keys  # noqa: PLC0415
    from verlstack.signing.verify import Wanted  # noqa: PLC0415

    identities, issuer = arguments.certificate_identity, arguments.certificate_oidc_issuer
    if not arguments.key and not identities:
        raise UsageError("nobody is named whose signature would count", todo="give --key or --certificate-identity")
    if bool(identities) is not bool(issuer):
        what = "--certificate-identity says who signed, and --certificate-oidc-issuer who vouches for that"
        raise UsageError(what, todo="give both, or none")
    if arguments.trusted_root and not identities:
        raise UsageError("--trusted-root knows identities, and none is given", todo="give --certificate-identity, too")
    known = tuple(keys.public(path) for path in arguments.key)
    if not identities:
        return Wanted(keys=known)
    who = tuple(bundles.Identity(subject=x, issuer=issuer) for x in identities)
    return Wanted(keys=known, identities=who, trust=bundles.trust(arguments.trusted_root))


def _print(report: Report) -> None:
    print(told.escaped(f"{report.place}@{report.digest}"))
    for key, names in report.signed.items():
        print(told.escaped(f"signed by {key}" + (f" as {', '.join(names)}" if names else "")))
    for kind, files in report.attested.items():
        print(told.escaped(f"attested by {', '.join(files)}: {kind}"))
    for line in report.smoke:
        print(told.escaped(f"smoke tests, as attested: {line}"))
    for line in report.scans:
        print(told.escaped(f"vulnerability scan, as attested: {line}"))
    for one in report.ignored[:_SHOWN]:
        print(told.escaped(f"does not count: {one}"))
