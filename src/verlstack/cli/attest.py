"""The verb that attaches to an image what is known of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from verlstack import canonical, told
from verlstack.cli.common import dist, surroundings
from verlstack.cli.sbom import IMAGE, layout
from verlstack.cli.sign import add_signer, signer

if TYPE_CHECKING:
    import argparse


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    """Add the verb to the parser."""
    verb = verbs.add_parser(
        "attest", parents=[common], help="attach SBOMs, provenance, smoke report and scan to an image in a registry"
    )
    verb.add_argument("image", metavar="IMAGE", help=IMAGE)
    verb.add_argument("place", metavar="HOST/REPOSITORY", help="where `verlstack publish` put it")
    verb.add_argument("--smoke", type=Path, metavar="DIR", help="report of `verlstack smoke --report DIR`")
    verb.add_argument("--scan", type=Path, metavar="FILE", help="what a vulnerability scanner found, in cosign's form")
    add_signer(verb, required=False)
    verb.add_argument("--builder", metavar="URI", help="address that names who built the image, for its provenance")
    verb.add_argument("--invocation", metavar="ID", help="the run that built it, as the CI server calls it")
    verb.add_argument("--started", metavar="TIME", help="when that run began, as 2026-11-30T12:00:00Z")
    verb.add_argument("--insecure", action="store_true", help="plain http, for a registry on this machine only")
    verb.add_argument("--dist", type=Path, metavar="DIR", help="where images are (default: dist beside constraints)")
    verb.set_defaults(verb=_attest)


def _attest(arguments: argparse.Namespace) -> int:
    from verlstack import attest, provenance, publish  # noqa: PLC0415

    ref = publish.destination(arguments.place, insecure=arguments.insecure)
    run = provenance.told(arguments.builder, arguments.invocation, arguments.started)
    who = signer(arguments)
    with surroundings(arguments, arguments.image) as shop:
        folder = layout(arguments.image, dist(arguments, shop))
        done = attest.attest(folder, ref, shop, run=run, smoke=arguments.smoke, scanned=arguments.scan, signer=who)
    if arguments.json:
        print(canonical.dumps(done).decode())
        return 0
    print(done.reference)
    for name, digest in done.attached.items():
        print(f"  {digest}  {name}")
    if done.smoke:
        print(f"smoke tests: {told.escaped(done.smoke)}")
    if done.scan:
        print(f"vulnerability scan: {told.escaped(done.scan)}")
    print(told.escaped(f"signed by {done.signed}" if done.signed else "not signed: give --key or --keyless"))
    return 0
