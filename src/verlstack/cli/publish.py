"""Verbs that bring images to others: publish, mirror, promote, export."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from verlstack import canonical
from verlstack.cache import behind_links
from verlstack.cli.common import dist, surroundings

if TYPE_CHECKING:
    import argparse

    from verlstack.workshop import Workshop

_IMAGE = "a stack, the folder of a layout, or sha256:… of one in dist"
_DIST = "where images are (default: dist beside constraints)"


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    """Add the verbs to the parser."""
    publish = verbs.add_parser(
        "publish", parents=[common], help="an image into a registry, under the tag that its own facts give"
    )
    publish.add_argument("image", metavar="IMAGE", help=_IMAGE)
    publish.add_argument("place", metavar="HOST/REPOSITORY", help="where to; the tag comes from what is in the image")
    publish.add_argument("--record", action="store_true", help="add it to constraints/releases.toml and docs/images.md")
    publish.set_defaults(verb=_publish)
    mirror = verbs.add_parser(
        "mirror",
        parents=[common],
        help="an image with all that refers to it to another registry or a folder",
    )
    mirror.add_argument("source", metavar="SRC", help="HOST/REPOSITORY:TAG, HOST/REPOSITORY@sha256:…, or a layout")
    mirror.add_argument("target", metavar="DST", help="HOST/REPOSITORY[:TAG], or ./FOLDER")
    mirror.set_defaults(verb=_mirror)
    text = (
        "an image as one file: squashfs for enroot, pyxis and Apptainer, SIF for Apptainer alone, archives for engines"
    )
    export = verbs.add_parser("export", parents=[common], help=text)
    export.add_argument("image", metavar="IMAGE", help=_IMAGE)
    export.add_argument("file", type=Path, metavar="FILE", help="what to write")
    text = "what it is (default: by the ending of FILE: .sif, .sqsh or .squashfs)"
    export.add_argument("--format", choices=("sqsh", "sif", "oci-archive", "docker-archive"), help=text)
    export.set_defaults(verb=_export)
    for verb in (publish, mirror, export):
        verb.add_argument("--dist", type=Path, metavar="DIR", help=_DIST)
    promote = verbs.add_parser("promote", parents=[common], help="move a tag such as `stable` to an image, with a log")
    promote.add_argument("source", metavar="REF", help="HOST/REPOSITORY:TAG or HOST/REPOSITORY@sha256:…")
    promote.add_argument("tag", metavar="TAG", help="what to put on it")
    text = "gets a line of JSON (default: promotions.jsonl here)"
    promote.add_argument("--log", type=Path, default=Path("promotions.jsonl"), metavar="FILE", help=text)
    promote.set_defaults(verb=_promote)
    for verb in (publish, mirror, promote):
        verb.add_argument("--insecure", action="store_true", help="plain http, for a registry on this machine only")


def _publish(arguments: argparse.Namespace) -> int:
    from verlstack import publish  # noqa: PLC0415

    with surroundings(arguments, arguments.image) as shop:
        folder = _layout(arguments, shop)
        done = publish.publish(folder, arguments.place, shop, insecure=arguments.insecure, record=arguments.record)
    if arguments.json:
        print(canonical.dumps(done).decode())
        return 0
    print(f"{done.reference}\n{done.digest}{'' if done.new else '  (was there already)'}")
    print(f"{done.blobs}, {done.seconds:.1f} s")
    return 0


def _mirror(arguments: argparse.Namespace) -> int:
    from verlstack import mirror  # noqa: PLC0415

    with surroundings(arguments, arguments.source) as shop:
        done = mirror.mirror(
            arguments.source, arguments.target, shop, dist=dist(arguments, shop), insecure=arguments.insecure
        )
    if arguments.json:
        print(canonical.dumps(done).decode())
        return 0
    print(f"{done.source} → {done.target}\n{done.digest}")
    print(f"{done.blobs}, {done.referrers} manifests that refer to it")
    return 0


def _promote(arguments: argparse.Namespace) -> int:
    from verlstack import promote  # noqa: PLC0415

    with surroundings(arguments, arguments.source) as shop:
        done = promote.promote(
            arguments.source,
            arguments.tag,
            shop,
            insecure=arguments.insecure,
            log=behind_links(arguments.log.absolute(), todo="choose another --log"),
        )
    with contextlib.suppress(OSError):  # where the log is standard output, and that a file, this goes behind the line
        os.lseek(sys.stdout.fileno(), 0, os.SEEK_END)
    if arguments.json:
        print(canonical.dumps(done).decode())
        return 0
    print(f"{done.place}:{done.tag}\n  {done.before or 'new'}\n→ {done.after}")
    if done.before not in {None, done.after}:
        back = ["verlstack", "promote", f"{done.place}@{done.before}", done.tag, "--log", str(arguments.log)]
        print(f"back: {shlex.join([*back, '--insecure'] if arguments.insecure else back)}")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from verlstack import export  # noqa: PLC0415

    target = behind_links(arguments.file.absolute(), todo="choose another FILE")
    with surroundings(arguments, arguments.image) as shop:
        done = export.export(_layout(arguments, shop), target, shop, form=arguments.format)
    if arguments.json:
        print(canonical.dumps(done).decode())
        return 0
    print(f"{done.path}  sha256:{done.sha256}")
    print(f"{done.size / 1e6:.0f} MB, of {done.image}{f', by {done.program}' if done.program else ''}")
    return 0


def _layout(arguments: argparse.Namespace, shop: Workshop) -> Path:
    from verlstack import images  # noqa: PLC0415
    from verlstack.errors import UsageError  # noqa: PLC0415

    if (folder := images.find(arguments.image, dist(arguments, shop))) is None:
        raise UsageError(f"there is no image {arguments.image!r} here", todo=f"name {_IMAGE}")
    return folder
