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

    from verlstack.signing.verify import Report

PASSWORD = "COSIGN_PASSWORD"  # noqa: S105 - the variable's name; cosign reads the same
_REF = "HOST/REPOSITORY@sha256:…"
_SHOWN = 5


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    """Add the verbs to the parser."""
    sign = verbs.add_parser("sign", parents=[common], help="sign an image in a registry with a key, as cosign does")
    sign.add_argument("reference", metavar="REF", help=f"{_REF}; by digest, because a tag can move")
    sign.add_argument("--key", type=Path, required=True, metavar="FILE", help="private key (PEM, or cosign's)")
    sign.set_defaults(verb=_sign)
    verify = verbs.add_parser(
        "verify", parents=[common], help="whether an image is signed by the given keys, and whole"
    )
    verify.add_argument(
        "image", metavar="REF|PATH", help="HOST/REPOSITORY:TAG or @sha256:…, or a layout or oci-archive on disk"
    )
    verify.add_argument(
        "--key", type=Path, required=True, action="append", metavar="FILE", help="public key (PEM); repeatable"
    )
    verify.add_argument(
        "--threshold", type=int, metavar="N", help="how many of the keys must have signed (default: all)"
    )
    verify.add_argument("--as", dest="name", metavar="HOST/REPOSITORY", help="the name it must be signed as")
    verify.add_argument(
        "--attestation",
        action="append",
        default=[],
        metavar="TYPE",
        help="demand a signed attestation, too: cyclonedx, spdxjson, slsaprovenance1, smoke, or a type's address",
    )
    verify.set_defaults(verb=_verify)
    for verb in (sign, verify):
        verb.add_argument("--insecure", action="store_true", help="plain http, for a registry on this machine only")


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
    from verlstack.signing import keys, sign  # noqa: PLC0415

    ref = reference.place(arguments.reference, insecure=arguments.insecure)
    if ref.digest == reference.NO_DIGEST:
        what = f"{arguments.reference} has no digest, and a tag can move between looking and signing"
        raise UsageError(what, todo=f"write {_REF}; `verlstack publish` prints it")
    key = keys.private(arguments.key, password)
    with upload.writer(ref, os.environ) as writer:
        new = sign.image(writer, key)
    if arguments.json:
        print(canonical.dumps({"digest": ref.digest, "key": key.public.id, "new": new}).decode())
    else:
        print(f"{ref.host}/{ref.repository}@{ref.digest}")
        print(f"signed by {key.public.id}" if new else f"was signed by {key.public.id} already")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from verlstack.signing import keys, stores, verify  # noqa: PLC0415

    known = [keys.public(path) for path in arguments.key]
    with stores.opened(arguments.image, Path(arguments.image), os.environ, insecure=arguments.insecure) as store:
        report = verify.verify(
            store,
            known,
            threshold=arguments.threshold,
            name=arguments.name,
            attestations=arguments.attestation,
        )
    if arguments.json:
        print(canonical.dumps(report).decode())
    else:
        _print(report)
    return 0


def _print(report: Report) -> None:
    print(told.escaped(f"{report.place}@{report.digest}"))
    for key, names in report.signed.items():
        print(told.escaped(f"signed by {key} as {', '.join(names)}"))
    for kind, files in report.attested.items():
        print(told.escaped(f"attested by {', '.join(files)}: {kind}"))
    for line in report.smoke:
        print(told.escaped(f"smoke tests, as attested: {line}"))
    for one in report.ignored[:_SHOWN]:
        print(told.escaped(f"does not count: {one}"))
