"""Rewrites training data in verl's format: keeps every row, or says which line was dropped and why."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verldoctor.data_convert import Dropped, converted, with_rest
from verldoctor.data_jsonl import lines_of, parse
from verldoctor.data_names import SOURCES
from verldoctor.data_parquet import MAGIC, ParquetError, has_pyarrow, rows_of
from verldoctor.finding import Finding, found
from verldoctor.text import safe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MOST_LISTED = 50
_BATCH = 1024
_MOST_TEXTS = 100


@dataclass
class Report:
    """What a fix did; its text is one line a fact.

    Attributes:
        written: rows in the output.
        dropped: rows left out.
        lines: what to tell: the output, each dropped line (the first 50; all of them are in the .dropped file).
        findings: what asks for a decision: guesses, drops, refusals.
    """

    written: int = 0
    dropped: int = 0
    lines: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(self.lines)


class _RefusedError(ValueError):
    """Nothing may be written; the first argument says why, the second what to do."""


def fix(path: Path, out: Path) -> Report:
    """Writes the rows of `path` to `out` in verl's format: Parquet, or JSONL where `out` is named so.

    Without pyarrow a name that promises nothing gets JSONL, and one of Parquet is refused.
    The input is never touched, the output appears whole or not at all. A full list of dropped lines stands beside it.
    """
    report = Report()
    try:
        _write(path, out, report, as_parquet=_as_parquet(path, out))
    except _RefusedError as error:
        why, what = error.args
        report.findings = [found("data", "DATA-FIX-REFUSED", safe(path), measured=safe(why), right=safe(what))]
    except (OSError, ParquetError) as error:
        why = safe(getattr(error, "strerror", None) or error)
        right = "check input, disk space and permissions, then run it again"
        report.findings = [found("data", "DATA-FIX-REFUSED", safe(path), measured=why, right=right)]
    return report


def _as_parquet(path: Path, out: Path) -> bool:
    """Whether to write `out` as Parquet; refuses what cannot be written, before any work."""
    suffix = out.suffix.lower()
    if not has_pyarrow() and suffix in (".parquet", ".pq"):
        what = f"--fix {out.with_suffix('.jsonl')}, or the same command in the image, which has pyarrow"
        raise _RefusedError("writing parquet needs pyarrow, which is not here", what)
    if not path.is_file():
        raise _RefusedError("the input is not a regular file", "name one parquet or JSONL file")
    for place in (out, _dropped_file(out)):
        if place.is_dir() or (place.exists() and not place.is_file()):
            raise _RefusedError("the output is a directory or device", "name a new file")
        if _same(path, place):
            raise _RefusedError("the output is the input itself, or a link to it", "name another file")
    return has_pyarrow() and suffix not in (".jsonl", ".ndjson")


def _same(path: Path, place: Path) -> bool:
    if os.path.realpath(path) == os.path.realpath(place):
        return True
    try:
        return path.samefile(place)
    except OSError:  # the output does not exist yet
        return False


def _dropped_file(out: Path) -> Path:
    return out.with_name(out.name + ".dropped")


@dataclass
class _Run:
    path: Path
    report: Report
    drops: Callable[[str], object]
    guesses: Counter[tuple[str, str]] = field(default_factory=Counter)

    def rows(self) -> Iterator[dict[str, Any]]:
        for number, row, why in _input_rows(self.path):
            result = Dropped(why) if why else converted(row, self.report.written, self.path.stem, self.guesses)
            if isinstance(result, Dropped):
                self._drop(number, result.why)
            else:
                self.report.written += 1
                yield result

    def _drop(self, number: int, why: str) -> None:
        line = f"line {number}: dropped, {safe(why)}"
        self.report.dropped += 1
        self.drops(line + "\n")
        if self.report.dropped <= _MOST_LISTED:
            self.report.lines.append(line)


def _input_rows(path: Path) -> Iterator[tuple[int, Any, str]]:
    """Line or row number, the row, and why it cannot be read."""
    with path.open("rb") as stream:
        head = stream.read(4)
        if head == MAGIC:
            if not has_pyarrow():
                raise _RefusedError("reading parquet needs pyarrow, which is not here", "run it inside the image")
            yield from ((number, row, "") for number, row in enumerate(rows_of(path), 1))
            return
        stream.seek(3 if head[:3] == b"\xef\xbb\xbf" else 0)
        number = 0
        for block in lines_of(stream):
            if block is None:
                number += 1
                yield number, None, "longer than 4 MiB"
                continue
            for line in block.split(b"\n")[:-1]:
                number += 1
                if line.strip():
                    row, problem = parse(line)
                    yield number, row, _why(problem.code, problem.detail) if problem else ""


def _why(code: str, detail: str) -> str:
    reasons = {"DATA-UTF8": "not UTF-8", "DATA-NOT-JSON": "not JSON", "DATA-DEEP": "nested too deep"}
    return f"{reasons.get(code, 'half a surrogate pair in a text')} ({detail})" if detail else reasons.get(code, code)


def _write(path: Path, out: Path, report: Report, *, as_parquet: bool) -> None:
    with contextlib.ExitStack() as stack:
        part = stack.enter_context(_new_file(out))
        drops = stack.enter_context(_new_file(_dropped_file(out)))
        with drops.open("w", encoding="utf-8") as log:
            run = _Run(path, report, log.write)
            (_parquet if as_parquet else _jsonl)(run, part)
            _synced(log)
        if not report.written:
            raise _RefusedError("no row could be used" if report.dropped else "the input has no rows", _first(report))
        if report.dropped:
            drops.replace(_dropped_file(out))
        part.replace(out)
    _tell(out, report, run.guesses, as_parquet=as_parquet)


def _first(report: Report) -> str:
    return report.lines[0] if report.lines else "name a file with rows"


@contextlib.contextmanager
def _new_file(out: Path) -> Iterator[Path]:
    """A temporary file beside `out`, removed unless it was renamed."""
    handle, name = tempfile.mkstemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent)
    os.fchmod(handle, 0o644)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _synced(stream: Any) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def _jsonl(run: _Run, part: Path) -> None:
    with part.open("w", encoding="utf-8") as stream:
        for row in run.rows():
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
        _synced(stream)


def _parquet(run: _Run, part: Path) -> None:
    pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    rows = run.rows()
    first = list(islice(rows, _BATCH))
    texts = sorted({key for row in first for key in row["extra_info"]} - {"split", "index"})[:_MOST_TEXTS]
    schema = _schema(pyarrow, texts)
    with part.open("wb") as stream:
        with parquet.ParquetWriter(stream, schema) as writer:
            for batch in chain([first], iter(lambda: list(islice(rows, _BATCH)), [])):
                fitting = [_fitting(row, {"split", "index", *texts}) for row in batch]
                writer.write_table(pyarrow.Table.from_pylist(fitting, schema=schema))
        _synced(stream)


def _fitting(row: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    """`row`, with the texts of extra_info that have no column moved into `rest`."""
    extra = row["extra_info"]
    here = {key: value for key, value in extra.items() if key in keys or key == "rest"}
    return {**row, "extra_info": with_rest(here, {key: value for key, value in extra.items() if key not in here})}


def _schema(pyarrow: Any, texts: list[str]) -> Any:
    text = pyarrow.string()
    extra = {"split": text, "index": pyarrow.int64(), **dict.fromkeys(texts, text), "rest": text}
    return pyarrow.schema({
        "data_source": text,
        "prompt": pyarrow.list_(pyarrow.struct({"role": text, "content": text})),
        "ability": text,
        "reward_model": pyarrow.struct({"style": text, "ground_truth": text}),
        "extra_info": pyarrow.struct(extra),
    })  # fmt: skip


def _tell(out: Path, report: Report, guesses: Counter[tuple[str, str]], *, as_parquet: bool) -> None:
    kind = "parquet" if as_parquet else "JSONL"
    report.lines.insert(0, f"{report.written} rows written to {safe(out)} as {kind}, {report.dropped} dropped")
    if report.dropped:
        log = safe(_dropped_file(out))
        total = report.written + report.dropped
        report.lines.append(f"every dropped line: {log}")
        report.findings.append(
            found("data", "DATA-FIX-DROPPED", safe(out), measured=report.dropped, right=log, rows=total)
        )
    for (name, value), rows in sorted(guesses.items()):
        words = {"field": name, "sources": ", ".join(sorted(SOURCES))}
        report.findings.append(found("data", "DATA-FIX-GUESSED", safe(out), measured=rows, right=safe(value), **words))
    if not as_parquet:
        report.findings.append(found("data", "DATA-FIX-JSONL", safe(out), right=safe(out)))
