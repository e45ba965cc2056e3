"""The verb that builds an image once more, by our own composer or by another builder, and compares."""

from __future__ import annotations

import copy
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from verlstack import canonical
from verlstack.cache import Cache
from verlstack.cli.common import dist, project, shown_progress, workshop
from verlstack.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from verlstack import rebuild
    from verlstack.explain import Explained
    from verlstack.reproduce import Report
    from verlstack.workshop import Workshop

_DEFAULT = "cu121"
_SHOWN = 40  # differences printed; --json has them all


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    """Add the verb to the parser."""
    # `--offline` may name a bundle here; a copy, because argparse would take the option away from the other verbs too
    verb = verbs.add_parser(
        "reproduce",
        parents=[copy.deepcopy(common)],
        conflict_handler="resolve",
        help="build an image once more from nothing but its lock, and compare: digest, layers, files",
    )
    forms = "a stack that was built, a layout's folder, sha256:… in dist, or HOST/REPOSITORY:TAG or @sha256:…"
    verb.add_argument("image", nargs="?", help=f"{forms} (default: cu121)")
    verb.add_argument("--engine", choices=("buildkit",), help="build the Dockerfile by docker buildx bake instead")
    verb.add_argument(
        "--offline", nargs="?", const=True, default=False, metavar="BUNDLE", help="use the cache alone, or a bundle"
    )
    verb.add_argument("--dist", type=Path, metavar="DIR", help="where images are (default: dist beside constraints)")
    verb.set_defaults(verb=_reproduce)


def _reproduce(arguments: argparse.Namespace) -> int:
    """0: identical; 1: not."""
    if arguments.engine:
        return _by_engine(arguments)
    if isinstance(arguments.offline, str):
        report = _from_bundle(arguments)
    else:
        from verlstack import pins  # noqa: PLC0415

        # a workshop is opened for a stack; which one does not matter here, for the image says its own
        arguments.stack = pins.names(project(arguments) / "stacks.toml")[0]
        with workshop(arguments) as (_, shop):
            report = _rebuilt(arguments.image or _DEFAULT, shop, dist(arguments, shop))
    if arguments.json:
        print(canonical.dumps({"identical": report.identical, "report": report}).decode())
    else:
        _print_rebuilt(report)
    return 0 if report.identical else 1


def _rebuilt(text: str, shop: Workshop, built: Path) -> rebuild.Report:
    from verlstack import images, rebuild  # noqa: PLC0415

    if layout := images.find(text, built):
        return rebuild.rebuild(layout, shop, built)
    with tempfile.TemporaryDirectory(prefix="image-", dir=shop.cache.tmp) as name:
        image = images.remote(text, Path(name, "image"), shop.env, offline=shop.offline)
        with image.client:
            rebuild.origin(image.layout, shop.constraints, built)  # refuse before gigabytes are pulled
            return rebuild.rebuild(images.download(image, shop.progress), shop, built)


def _from_bundle(arguments: argparse.Namespace) -> rebuild.Report:
    """From a bundle alone: there need be no checkout."""
    from verlstack import bundle, images  # noqa: PLC0415

    layout = None
    if arguments.image:
        built = Path(arguments.dist or "dist").absolute()
        if (layout := images.find(arguments.image, built)) is None:
            what = f"there is no image {arguments.image} on this machine"
            raise UsageError(what, where=str(built), todo="name a layout's folder, or leave it out")
    cache = Cache.from_environment(os.environ)
    with cache.use(), shown_progress() as progress:
        return bundle.reproduce(
            Path(arguments.offline),
            layout,
            cache=cache,
            env=dict(os.environ),
            progress=progress,
            workers=arguments.jobs or min(len(os.sched_getaffinity(0)), 8),
            python_tree=arguments.python_tree,
        )


def _by_engine(arguments: argparse.Namespace) -> int:
    from verlstack import lockfile, reproduce  # noqa: PLC0415

    arguments.stack = arguments.image or _DEFAULT
    with workshop(arguments) as (stack, shop):
        lock = lockfile.load(shop.constraints, stack)
        report = reproduce.by_buildkit(lock, shop, dist(arguments, shop) / stack.name)
    if arguments.json:
        print(canonical.dumps({"identical": report.identical, "report": report}).decode())
    else:
        _print(report)
    return 0 if report.identical else 1


def _print_rebuilt(report: rebuild.Report) -> None:
    width = max(len(row.layer) for row in report.rows)
    for row in report.rows:
        same = "same" if row.image == row.rebuilt else "differs"
        print(f"{row.layer:{width}}  {_short(row.image)}  {_short(row.rebuilt)}  {same}")
    for name in report.recompressed:
        print(f"{name}: the same content, stored in other bytes: another compressor, or other settings")
    for change in report.config:
        print(f"{change.name}\n  image:   {change.one}\n  rebuilt: {change.other}")
    _print_differences(report.differences, ("image:   ", "rebuilt: "))
    if not report.read and not report.identical:
        print("files were not compared: the image's layers are not here")
    verdict = "identical" if report.identical else "NOT identical"
    print(f"\n{report.stack}  {report.digest}  and the one rebuilt from lock {report.lock}: {verdict}")
    print(f"rebuilt {report.rebuilt}; {len(report.differences)} paths differ; {report.seconds:.0f} s")


def _print(report: Report) -> None:
    """Layers, differences with their causes, leftovers, and the verdict."""
    width = max(len(row.layer) for row in report.rows)
    for row in report.rows:
        ids = f"{_short(row.composed)}  {_short(row.built)}"
        print(f"{row.layer:{width}}  {ids}  {'same' if row.same else row.note or 'differs'}")
    _print_differences(report.differences, ("composed:", "built:   "))
    for left in report.leftovers[:_SHOWN]:
        print(f"{left.path} must not be in an image: {left.why}")
    verdict = "identical" if report.identical else "NOT identical"
    print(f"\n{report.stack}  {report.digest}  and the image of {report.builder}: {verdict}")
    size = f"{report.files} paths, {report.bytes / 1e9:.2f} GB unpacked"
    found = f"{len(report.differences)} paths differ, {len(report.leftovers)} left over"
    print(f"{size}; {found}; {report.seconds:.0f} s")


def _print_differences(differences: tuple[Explained, ...], sides: tuple[str, str]) -> None:
    """The first ones, each with its cause."""
    for one in differences[:_SHOWN]:
        print(f"\n{one.path}  ({one.owner or 'no layer'}; {', '.join(one.shows)})")
        print(f"  {sides[0]} {one.one}\n  {sides[1]} {one.other}\n  cause:    {one.cause}")
        if one.source:
            print(f"  source:   {one.source}")
    if len(differences) > _SHOWN:
        print(f"\nand {len(differences) - _SHOWN} more: --json shows them")


def _short(diff_id: str | None) -> str:
    return diff_id[7:19] if diff_id else "-" * 12
