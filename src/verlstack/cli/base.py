"""Verbs for base images: build, show, diff, use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from verlstack import canonical
from verlstack.cli.common import dist, workshop

if TYPE_CHECKING:
    import argparse

    from verlstack.base.bases import Found
    from verlstack.pins import Stack
    from verlstack.workshop import Workshop

_SHOWN = 40  # paths that differ, on a terminal; --json has all
_SPEC = "debian | registry:REF@sha256:… | oci:DIR | DIR"


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    """Add the verbs to the parser."""
    base = verbs.add_parser("base", help="base images, for admins: build, show, diff, use")
    inner = base.add_subparsers(title="verbs", required=True, metavar="VERB")
    build = inner.add_parser("build", parents=[common], help="base and interpreter as an OCI layout in dist/base-STACK")
    _stack(build, "stack", nargs="?")
    build.add_argument("--base", default="debian", help="debian | registry:REF@sha256:… | oci:DIR (default: debian)")
    build.add_argument(
        "--package", action="append", default=[], metavar="NAME", help="a Debian package more; repeatable"
    )
    build.add_argument(
        "--mirror", type=Path, metavar="FILE", help="apt sources instead of this machine's (either style)"
    )
    build.add_argument("--ca", type=Path, metavar="FILE", help="PEM of the mirror's authority; not in the image")
    build.add_argument("--trust-ca", type=Path, metavar="FILE", help="PEM of authorities that the image shall trust")
    build.add_argument("--dist", type=Path, metavar="DIR", help="where images go (default: dist beside constraints)")
    build.set_defaults(verb=_build)
    show = inner.add_parser("show", parents=[common], help="what a base is and holds; --json is an SBOM's input")
    show.add_argument("base", metavar="BASE", help=_SPEC)
    _stack(show, "--stack")
    show.set_defaults(verb=_show)
    diff = inner.add_parser("diff", parents=[common], help="what sets two bases apart; exit code 1 if anything does")
    diff.add_argument("one", metavar="A", help=_SPEC)
    diff.add_argument("other", metavar="B", help="likewise")
    _stack(diff, "--stack")
    diff.set_defaults(verb=_diff)
    use = inner.add_parser("use", parents=[common], help="write a registry's base into the pins, and lock again")
    _stack(use, "stack")
    use.add_argument("reference", metavar="REF@sha256:…", help="the base in your registry")
    use.set_defaults(verb=_use)


def _stack(parser: argparse.ArgumentParser, name: str, *, nargs: str | None = None) -> None:
    text = "a [stack.NAME] of stacks.toml (default: cu121)" if nargs or name.startswith("-") else "a [stack.NAME]"
    parser.add_argument(name, nargs=nargs, default="cu121", help=text)


def _build(arguments: argparse.Namespace) -> int:
    from verlstack.base import aptsources, assemble  # noqa: PLC0415

    apt = aptsources.given(arguments.mirror, arguments.ca, arguments.trust_ca)
    with workshop(arguments) as (stack, shop):
        report = assemble.assemble(
            stack,
            shop,
            base=arguments.base,
            packages=arguments.package,
            apt=apt,
            dist=dist(arguments, shop),
            fresh=True,
        )
    if arguments.json:
        print(canonical.dumps(report).decode())
        return 0
    print(f"{report.tag}  {report.digest}")
    scope = "local: pinned for everyone once a registry holds it" if report.local else "pinned"
    print(f"{report.size / 1e6:.0f} MB, {report.packages} packages, on {report.base} ({scope})")
    print(f"OCI layout: {report.layout}")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from verlstack.base import show  # noqa: PLC0415

    with workshop(arguments) as (stack, shop):
        found = _look(arguments.base, stack, shop)
        known = show.document(found, stack.python)
    if arguments.json:
        print(canonical.dumps(known).decode())
    else:
        print("\n".join(show.lines(known, stack.python)))
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    from verlstack.base import diff  # noqa: PLC0415

    with workshop(arguments) as (stack, shop):
        one, other = (_look(text, stack, shop) for text in (arguments.one, arguments.other))
        found = diff.compare(one, other, shop.progress)
    if arguments.json:
        print(canonical.dumps(found).decode())
    else:
        print("\n".join(diff.lines(found, shown=_SHOWN)))
    return 0 if found.same else 1


def _use(arguments: argparse.Namespace) -> int:
    from verlstack.base import use  # noqa: PLC0415

    with workshop(arguments) as (stack, shop):
        report = use.use(stack, shop, arguments.reference)
    if arguments.json:
        print(canonical.dumps(report).decode())
        return 0
    print(f"base  {report.before or 'none'}\n   →  {report.after}")
    print(f"lock  {report.lock_before or 'none that fits'}\n   →  {report.lock}")
    return 0


def _look(text: str, stack: Stack, shop: Workshop) -> Found:
    from verlstack import build  # noqa: PLC0415
    from verlstack.base import bases, show  # noqa: PLC0415

    return bases.look(show.named(text), build.base_request(stack, shop, shop.find_interpreter(stack.python)))
