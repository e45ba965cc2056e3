"""The command `verldoctor`: words to checks, findings to text or JSON, findings to an exit code."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from verldoctor.report import as_json, as_text, exit_code
from verldoctor.run import KINDS, MACHINE, check_all, check_kind, fix_data, live_dump
from verldoctor.text import safe

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from verldoctor.context import Context
    from verldoctor.finding import Finding

USAGE = 2  # a usage error, too, is "cannot tell"
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
_PACKAGES = ("torch", "transformers", "verl")  # whose versions decide which rules hold; Context.stack has them always
_OF_NO_VERSION = {"host", "explain"}
_EPILOG = """\
kinds that need no PATH look at this machine: env, host, devices.
`all PATH...` (or just PATH...) sorts each path by what it is; env and host of this machine follow.
Words like data.shuffle=False (+a.b=c, ~a.b) change the configurations that fsdp reads, as Hydra would.
A path named like a kind is written ./model. explain reads standard input when no file is named.
exit: 0 pass or warnings, 1 at least one fail, 2 cannot tell"""


class _Parser(argparse.ArgumentParser):
    """Argparse, whose messages echo no control codes."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {safe(message, 400)}\n{self.format_usage()}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code; a traceback only with VERLDOCTOR_DEBUG=1."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")  # an ASCII locale must not end in UnicodeEncodeError
    try:
        code, text = _answer(_parser().parse_intermixed_args(argv))
    except KeyboardInterrupt:
        _complaint("interrupted, nothing is known")
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("VERLDOCTOR_DEBUG") == "1":
            raise
        what = safe(f"{type(error).__name__}: {error}", 400)
        _complaint(f"a bug of verldoctor itself ({what}); VERLDOCTOR_DEBUG=1 shows where")
        return USAGE
    return _write(text, code)


def _parser() -> _Parser:
    parser = _Parser(
        prog="verldoctor",
        description="Says before a verl run what will break it, and the one line that mends it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words", nargs="*", metavar="KIND|PATH", help=f"all, {', '.join(KINDS)}; then files, directories, a.b=c"
    )
    parser.add_argument("--json", action="store_true", help="findings as a JSON list")
    parser.add_argument(
        "--fix", metavar="OUT", type=Path, help="data: write verl's format to OUT; the input stays as it is"
    )
    parser.add_argument(
        "--dump", action="store_true", help="host, devices: write what this machine says, to be read later"
    )
    return parser


def _answer(arguments: argparse.Namespace) -> tuple[int, str]:
    kinds, paths = split_words(arguments.words)
    if problem := _misuse(kinds, paths, arguments):
        return USAGE, _complaint(problem)
    from verldoctor.context import here  # noqa: PLC0415 - --help needs none

    context = here(dump=arguments.dump)
    if arguments.dump:
        return 0, live_dump(kinds[0], context)
    if arguments.fix is not None:
        findings, lines = fix_data(paths[0], arguments.fix)
        return _rendered(findings, lines, "", as_list=arguments.json)
    versions = _assumed(context) if paths and not set(kinds) <= _OF_NO_VERSION else ""
    return _rendered(_findings(kinds, paths, context), [], versions, as_list=arguments.json)


def split_words(words: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Kinds and paths: leading words that name a kind, each at most once, are kinds; all others are paths."""
    kinds: list[str] = []
    for word in words:
        if word not in (*KINDS, "all") or word in kinds:
            break
        kinds.append(word)
    paths = [Path(word) for word in words[len(kinds) :]]
    return ["all"] if not kinds or "all" in kinds else kinds, paths


def _misuse(kinds: list[str], paths: list[Path], arguments: argparse.Namespace) -> str:
    lonely = [kind for kind in kinds if kind not in (*MACHINE, "all", "explain")]
    if arguments.dump and (len(kinds) != 1 or kinds[0] not in ("host", "devices") or paths):
        return "--dump writes one kind of dump of this machine: verldoctor host --dump, verldoctor devices --dump"
    if arguments.fix is not None and (kinds != ["data"] or len(paths) != 1):
        return "--fix takes one input: verldoctor data FILE --fix OUT"
    first = len(arguments.words) - len(paths)  # as it was typed: a path forgets its `./`
    if paths and (problem := _no_kind(arguments.words[first], wants_kind=first == 0)):
        return problem
    if lonely and not paths:
        return f"{lonely[0]} needs a PATH: verldoctor {lonely[0]} PATH"
    return ""


def _no_kind(word: str, *, wants_kind: bool) -> str:
    """What is wrong with the first word behind the kinds, or ""; one that is there, or no bare word, is a path."""
    close = difflib.get_close_matches(word, (*KINDS, "all"), n=1, cutoff=0.6)
    if not word.isalpha() or os.path.lexists(word) or not (close or wants_kind):
        return ""
    hint = f"did you mean {close[0]}?" if close else f"kinds: all, {', '.join(KINDS)}"
    return f"{safe(word, 80)} is no kind of check and no path that is there; {hint}"


def _complaint(problem: str) -> str:
    if sys.stderr is not None:  # closed by `2>&-`
        sys.stderr.write(f"verldoctor: {problem}\n")
    return ""


def _findings(kinds: list[str], paths: list[Path], context: Context) -> list[Finding]:
    if len(kinds) == 1 and kinds != ["all"]:
        return check_kind(kinds[0], paths, context)
    return check_all(kinds, paths, context)


def _assumed(context: Context) -> str:
    """The versions that rules were held to, where no image says them."""
    return "" if context.image else ", ".join(f"{name} {context.stack[name]}" for name in _PACKAGES)


def _rendered(findings: list[Finding], lines: Iterable[str], versions: str, *, as_list: bool) -> tuple[int, str]:
    unique = list(dict.fromkeys(findings))
    if as_list:
        return exit_code(unique), as_json(unique)
    return exit_code(unique), "".join(f"{line}\n" for line in lines) + as_text(unique, versions)


def _write(text: str, code: int) -> int:
    if sys.stdout is None:  # closed by `>&-`
        _complaint("cannot write the findings: standard output is closed")
        return USAGE
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # `verldoctor ... | head`: the reader has what it wanted, the verdict stands
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        _complaint(f"cannot write the findings: {error.strerror}")
        return USAGE
    return code
