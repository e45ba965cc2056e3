"""The command line: parse, call one verb, print its result; the only module that prints results and sets exit codes."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from verlstack import canonical, told
from verlstack.cli import (
    attest,
    base,
    bundle,
    check,
    diff,
    flash_attn,
    pin,
    publish,
    reproduce,
    sbom,
    sign,
    smoke,
    stacks,
)
from verlstack.cli.common import dist, workshop
from verlstack.cli.parser import Parser
from verlstack.errors import StorageError, UsageError, VerlstackError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from verlstack.build import Report

_INTERRUPTED = 130  # 128 + SIGINT, as shells count
_LAST_STREAM = 2  # stderr's number


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    _have_streams()
    words = sys.argv[1:] if argv is None else argv
    arguments = _parser().parse_args(words)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an ASCII terminal must not stop a build with its `…`
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: workers end, the state can be resumed
    try:
        _check_text(words)
        code: int = arguments.verb(arguments)
        sys.stdout.flush()  # here, where a reader that went away is no error of ours
    except VerlstackError as e:
        if arguments.debug:
            traceback.print_exc()
        print(f"verlstack: error: {told.plain(str(e))}", file=sys.stderr)  # it may quote an image, a file, an index
        return e.exit_code
    except OSError as e:
        if isinstance(e, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader went away
            return 1
        if arguments.debug:
            traceback.print_exc()
        where = f"\n  where: {told.escaped(str(e.filename))}" if e.filename else ""
        print(f"verlstack: error: {e.strerror or e}{where}\n  do:    check that path, then run again", file=sys.stderr)
        return StorageError.exit_code
    except KeyboardInterrupt:
        print("verlstack: stopped; run the same command again to go on where it left off", file=sys.stderr)
        return _INTERRUPTED
    return code


def _have_streams() -> None:
    """Where a standard stream is closed (`>&-`), /dev/null stands for it: no file or socket of ours gets its number."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= _LAST_STREAM:
        os.set_inheritable(number, True)  # noqa: FBT003 - for the programs that we start
    os.close(number)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def _check_text(words: Sequence[str]) -> None:
    """Refuse bytes that are no text in this locale: they can be written neither into pins nor into JSON.

    Raises:
        UsageError: naming the word.
    """
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            what = f"an argument is no text: {word.encode(errors='backslashreplace').decode()}"
            raise UsageError(what, todo="write it in the encoding of the terminal, UTF-8 as a rule") from None


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--constraints", type=Path, metavar="DIR", help="pins and locks (default: found above here)")
    common.add_argument(
        "--jobs", type=_positive, metavar="N", help="processes to compose with (default: cores, up to 8)"
    )
    common.add_argument("--offline", action="store_true", help="use the cache alone")
    common.add_argument("--python-tree", type=Path, metavar="DIR", help="prefix folder of the stack's Python")
    common.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
    common.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    parser: argparse.ArgumentParser = Parser(
        prog="verlstack", description="Container images for verl whose every byte is a function of one lock."
    )
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")

    lock = verbs.add_parser("lock", parents=[common], help="pins → lock: resolve, compose, record every diff_id")
    fetch = verbs.add_parser(
        "fetch", parents=[common], help="have every file that a lock names, and the base, in the cache"
    )
    build = verbs.add_parser("build", parents=[common], help="lock → image: an OCI layout in dist/STACK")
    prove = verbs.add_parser(
        "prove", parents=[common], help="start the image and import verl in it, as root and stranger"
    )
    for verb, run in ((lock, _lock), (fetch, _fetch), (build, _build), (prove, _prove)):
        which = verb.add_mutually_exclusive_group() if verb is build else verb
        which.add_argument("stack", nargs="?", default="cu121", help="a [stack.NAME] of stacks.toml (default: cu121)")
        if verb is build:
            which.add_argument("--all", action="store_true", help="every stack; one that fails does not stop the rest")
        verb.set_defaults(verb=run)
    for verb in (fetch, build):
        forms = "auto | debian | registry:REF@sha256:… | oci:DIR (default: auto)"
        verb.add_argument("--base", default="auto", help=forms)
    build.add_argument("--fast", action="store_true", help="compress less: same diff_ids, larger blobs, other digest")
    build.add_argument("--output", choices=("oci-archive", "docker-archive"), help="write an archive beside the layout")
    for verb in (build, prove):
        verb.add_argument("--dist", type=Path, metavar="DIR", help="where images go (default: dist beside constraints)")
    for group in (base, bundle, check, flash_attn, pin, diff, reproduce, publish, sbom, attest, sign, smoke, stacks):
        group.register(verbs, common)
    return parser


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes: 1 or more")
    return number


def _lock(arguments: argparse.Namespace) -> int:
    from verlstack import lock  # noqa: PLC0415

    with workshop(arguments) as (stack, shop):
        made = lock.lock(stack, shop)
    if arguments.json:
        print(canonical.dumps({"stack": made.stack, "lock": f"sha256:{made.digest}"}).decode())
    else:
        print(
            f"{made.stack}: {len(made.wheels)} wheels, {len(made.built)} built from source, {len(made.layers)} layers"
        )
        print(f"lock sha256:{made.digest}")
    return 0


def _fetch(arguments: argparse.Namespace) -> int:
    from verlstack import build, lockfile  # noqa: PLC0415
    from verlstack.base import bases  # noqa: PLC0415
    from verlstack.extension import supply  # noqa: PLC0415

    with workshop(arguments) as (stack, shop):
        bases.check(arguments.base)
        lock = lockfile.load(shop.constraints, stack)
        build.base_of(stack, shop, arguments.base, shop.find_interpreter(stack.python))
        files = shop.fetch([*lock.wheels, *lock.build_tools, *(b.source for b in lock.built)])
        if lock.compiled:
            files |= shop.fetch([lock.compiled.source, *lock.compiled.tools])
            if lock.compiled.wheel and (missing := supply.absence(stack, lock, shop)):
                shop.progress.say(missing.line)
    if arguments.json:
        print(canonical.dumps({sha256: path.name for sha256, path in files.items()}).decode())
    return 0


def _build(arguments: argparse.Namespace) -> int:
    if arguments.all:
        return stacks.build_all(arguments, lambda name: _built(arguments, name), _show)
    report = _built(arguments, arguments.stack)
    if arguments.json:
        print(canonical.dumps(report).decode())
        if report.without:
            print(report.without, file=sys.stderr)
    else:
        _show(report)
    return 0


def _built(arguments: argparse.Namespace, name: str) -> Report:
    from verlstack import build, lockfile  # noqa: PLC0415

    arguments.stack = name
    with workshop(arguments) as (stack, shop):
        return build.build(
            stack,
            lockfile.load(shop.constraints, stack),
            shop,
            base=arguments.base,
            fast=arguments.fast,
            dist=dist(arguments, shop),
            output=arguments.output,
        )


def _show(report: Report) -> None:
    _table(report)
    if report.without:
        print(report.without, file=sys.stderr)  # last, so that it is seen


def _prove(arguments: argparse.Namespace) -> int:
    from verlstack import lockfile, oci, prove  # noqa: PLC0415

    with workshop(arguments) as (stack, shop):
        layout = dist(arguments, shop) / stack.name
        digest, _, config = oci.read_layout(layout)
        prove.check_lock(config, lockfile.load(shop.constraints, stack), layout)
        lines = prove.prove(layout, shop.cache, shop.env, shop.progress)
    if arguments.json:
        print(canonical.dumps({"digest": digest, "tag": oci.tag_of(layout), "printed": lines}).decode())
    else:
        print(f"{oci.tag_of(layout)}  {digest}  starts; it says of torch, transformers and verl:")
        print("\n".join(lines))
    return 0


def _table(report: Report) -> None:
    """The layers of an image, bottom first; sizes in MB (10**6 bytes)."""
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    for name, most in (("layer", None), ("pin", 50), ("diff_id", None)):  # a base by digest would leave no room
        table.add_column(name, no_wrap=True, max_width=most)
    for name in ("raw MB", "stored MB", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.rows:
        sizes = (f"{row.raw_bytes / 1e6:.1f}", f"{row.compressed_bytes / 1e6:.1f}")
        state = "" if row.layer == "base" else "cached" if row.cached else "built"
        table.add_row(row.layer, row.pins, row.diff_id[7:19], *sizes, state)
    Console(width=max(120, Console().width)).print(table)  # a log has no width, and 80 columns cut the sizes
    print(f"\n{report.tag}  {report.digest}")
    print(f"{report.size / 1e6:.0f} MB in {len(report.rows)} layers, {report.seconds:.1f} s, on {report.base}")
    print(f"OCI layout: {report.layout}")
    if report.archive:
        print(f"archive:    {report.archive}")
