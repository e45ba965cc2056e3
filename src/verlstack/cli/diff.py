"""The verb that says what sets two locks or images apart."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from verlstack import canonical
from verlstack.cli.common import dist, surroundings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from verlstack.closurediff import Change, Comparison
    from verlstack.pullcost import PullCost
    from verlstack.workshop import Workshop

_FORMS = "a stack, a *.lock.toml, a layout, sha256:… of one in dist, or HOST/REPOSITORY:TAG or @sha256:…"


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    """Add the verb to the parser."""
    text = "what sets two locks or images apart (exit status 1 if anything does), and what the second costs to pull"
    statuses = "Exit status 0: the same; 1: different; any other: the error's own."
    verb = verbs.add_parser("diff", parents=[common], help=text, description=statuses)
    verb.add_argument("one", metavar="OLD", help=_FORMS)
    verb.add_argument("other", metavar="NEW", help="likewise")
    verb.add_argument("--dist", type=Path, metavar="DIR", help="where images are (default: dist beside constraints)")
    verb.set_defaults(verb=_diff)


def _diff(arguments: argparse.Namespace) -> int:
    """0: the same; 1: different."""
    with surroundings(arguments, arguments.one, arguments.other) as shop:
        found = _compared(arguments, shop)
    if arguments.json:
        print(canonical.dumps({"pull_bytes": found.pull.known, "comparison": found}).decode())
    else:
        _print(found)
    return 0 if found.same else 1


def _compared(arguments: argparse.Namespace, shop: Workshop) -> Comparison:
    from verlstack import closurediff, sides  # noqa: PLC0415

    images = dist(arguments, shop)
    with tempfile.TemporaryDirectory(prefix="diff-", dir=shop.cache.tmp) as name:
        old, new = Path(name, "one"), Path(name, "other")
        with (
            sides.opened(arguments.one, shop, images, old) as one,
            sides.opened(arguments.other, shop, images, new) as other,
        ):
            return closurediff.compare(sides.look_into(one, other), sides.look_into(other, one))


def _print(found: Comparison) -> None:
    for change in found.labels:
        print(f"label {change.name}\n  {_cut(change.one)}\n→ {_cut(change.other)}")
    print("\n".join(lines(found.packages, found.layers, found.pull)))
    for note in found.notes:
        print(note)
    print(f"{found.one} and {found.other}: {'the same' if found.same else 'different'}")


def _cut(text: str | None) -> str:
    from verlstack import told  # noqa: PLC0415

    shown = told.escaped(text or "nothing")
    return shown if len(shown) <= 100 else f"{shown[:99]}…"


def lines(packages: tuple[Change, ...] | None, layers: Iterable[Change], pull: PullCost) -> list[str]:
    """The three tables: versions, layers, bytes to pull."""
    sizes = dict(pull.layers)
    found = ["versions: not known" if packages is None else f"{len(packages)} versions differ"]
    found += [f"  {x.kind:8} {x.name}  {x.one or '-'} → {x.other or '-'}" for x in packages or ()]
    rows = [
        f"  {x.kind:8} {_cut(x.name)}  {_short(x.one)} → {_short(x.other)}{_stored(sizes.get(x.name))}" for x in layers
    ]
    total = f"{pull.known / 1e6:.3f} MB ({pull.known} bytes)"
    if not pull.complete:
        total = f"at least {total}: not all sizes are known"
    return [*found, f"{len(rows)} layers differ", *rows, f"to pull, where the old image is: {total}"]


def _stored(size: int | None) -> str:
    return "" if size is None else f"  {size / 1e6:.3f} MB stored"


def _short(diff_id: str | None) -> str:
    return diff_id[7:19] if diff_id else "-"
