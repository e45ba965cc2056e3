"""Checks training data against what verl's datasets and reward managers read: Parquet, JSONL, and look-alikes."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from verldoctor.data_fix import Report, fix
from verldoctor.data_jsonl import Scan
from verldoctor.data_names import TEXT_SOURCES, TOP
from verldoctor.data_parquet import (
    MAGIC,
    NEW_FEATURES,
    ParquetError,
    has_pyarrow,
    judge_footer,
    judge_rows,
    new_features,
    read_footer,
)
from verldoctor.data_rows import Judge, Problem
from verldoctor.finding import Finding, found
from verldoctor.text import safe
from verldoctor.versions import at_least

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

    from verldoctor.context import Context
    from verldoctor.data_tally import Count, Tally

__all__ = ["Report", "check", "fix"]
_SUFFIXES = (".parquet", ".jsonl", ".ndjson")
_MOST_FILES = 10_000
_HEAD = 65_536
_JSON_READERS = "0.9.0"  # v0.9.0 reads .json and .jsonl too
_LIMIT = "VERLDOCTOR_MAX_PROMPT_LENGTH"
_DEFAULT_LIMIT = 512  # data.max_prompt_length in v0.2.0.post2's ppo_trainer.yaml
_MAGICS = {
    b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip",
    b"ARROW1": "Arrow IPC", b"Obj\x01": "Avro", b"SQLite": "SQLite",
    b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16",
}  # fmt: skip
_BOM = b"\xef\xbb\xbf"


def check(paths: Sequence[Path], context: Context) -> list[Finding]:
    """Findings about data files, and about those in directories."""
    findings: list[Finding] = []
    for path in paths:
        files = _files(path)
        if not files:
            findings.append(found("data", "DATA-NONE", safe(path)))
        for file in files:
            findings += _guarded(file, context)
    return findings


def _files(path: Path) -> list[Path]:
    """`path`, or the data files under it; links to directories are not followed."""
    if not path.is_dir():
        return [path]
    names = (
        Path(folder) / name
        for folder, _, names in os.walk(path)
        for name in names
        if name.lower().endswith(_SUFFIXES) and not name.startswith(".")
    )
    return sorted(name for name, _ in zip(names, range(_MOST_FILES), strict=False))


def _guarded(path: Path, context: Context) -> list[Finding]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return [found("data", "DATA-UNREADABLE", safe(path), measured="not a regular file")]
        with path.open("rb") as stream:
            return list(_file(path, stream, context))
    except (OSError, ValueError) as error:
        return [found("data", "DATA-UNREADABLE", safe(path), measured=safe(getattr(error, "strerror", "") or error))]


def _file(path: Path, stream: BinaryIO, context: Context) -> Iterator[Finding]:
    head = stream.read(_HEAD)
    judge = Judge(_limit(context), sources=not at_least("verl", "0.3", context.stack))
    if head.startswith(MAGIC):
        yield from _parquet(path, stream, judge)
    elif refusal := _refusal(head):
        yield found("data", refusal.code, safe(path), measured=refusal.detail)
    else:
        yield from _jsonl(path, stream, head, judge, context)


def _refusal(head: bytes) -> Problem | None:
    """Why a file that begins with `head` can hold no rows at all."""
    if not head.strip():
        return Problem("DATA-EMPTY", detail="no rows")
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        return Problem("DATA-LFS")
    for magic, name in _MAGICS.items():
        if head.startswith(magic):
            return Problem("DATA-ENCODING" if name == "UTF-16" else "DATA-PACKED", detail=name)
    if b"\0" in head:
        return Problem("DATA-BINARY", detail=safe(repr(head[:16])))
    first = head.removeprefix(_BOM).lstrip()[:1]
    if first == b"[":
        return Problem("DATA-ARRAY")
    return None if first == b"{" or b"\n{" in head else Problem("DATA-NO-OBJECT", detail=safe(head[:60]))


def _jsonl(path: Path, stream: BinaryIO, head: bytes, judge: Judge, context: Context) -> Iterator[Finding]:
    bom = head.startswith(_BOM)
    if bom:
        yield found("data", "DATA-BOM", safe(path))
    stream.seek(3 if bom else 0)
    yield from _findings(path, Scan(judge).run(stream))
    if not at_least("verl", _JSON_READERS, context.stack):
        yield found("data", "DATA-JSONL", safe(path), verl=safe(context.stack.get("verl", "0.2.0.post2")))


def _parquet(path: Path, stream: BinaryIO, judge: Judge) -> Iterator[Finding]:
    try:
        footer = read_footer(stream)
        tally = judge_rows(path, judge) if has_pyarrow() else judge_footer(footer, judge)
    except ParquetError as error:
        yield found("data", "DATA-PARQUET-BROKEN", safe(path), measured=safe(error))
        return
    if not footer.rows:
        yield found("data", "DATA-EMPTY", safe(path), measured="no rows")
        return
    yield from _findings(path, tally)
    for kind in new_features(footer):
        yield found("data", "DATA-FEATURES", safe(path), measured=kind, right=NEW_FEATURES[kind])


def _findings(path: Path, tally: Tally) -> Iterator[Finding]:
    for problem, count in sorted(tally.counts.items(), key=lambda item: item[1].first):
        yield _finding(path, tally, problem, count)
    if tally.left_out:
        yield found("data", "DATA-MORE", safe(path), measured=tally.left_out)


def _finding(path: Path, tally: Tally, problem: Problem, count: Count) -> Finding:
    where = f"{safe(path)}:{count.first}" if count.first else safe(path)
    of = f"{count.rows} of {tally.rows} rows" if count.first else f"{count.rows} values"
    field, detail = safe(problem.field), safe(problem.detail)
    right = detail if problem.code in _NAMES else _RIGHT.get(problem.code, "")
    measured = f'"{field}"' if problem.code in _NAMES or not detail else detail
    words = {"field": field, "detail": detail, "rows": of, "fields": ", ".join(TOP)}
    return found("data", problem.code, where, measured=measured, right=right, sources=_SOURCES, **words)


_NAMES = {"DATA-NAME-BLANK", "DATA-NAME-CASE", "DATA-NAME-OTHER", "DATA-OPTIONAL-NAME", "DATA-ROLE"}
_RIGHT = {"DATA-PROMPT-TYPE": '[{"role": "user", "content": "..."}]', "DATA-TRUTH-TYPE": "a string"}
_SOURCES = ", ".join(sorted(TEXT_SOURCES)) + ", numina_*, codecontests, apps, codeforces, taco"


def _limit(context: Context) -> int:
    word = context.env.get(_LIMIT, "")
    return int(word) if word.isascii() and word.isdigit() and len(word) < 10 else _DEFAULT_LIMIT
