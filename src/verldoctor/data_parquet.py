"""Reads what a Parquet file says about itself, its footer, without pyarrow; rows only where pyarrow is present."""

from __future__ import annotations

import importlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from verldoctor.data_rows import Judge, Problem
from verldoctor.data_tally import Tally
from verldoctor.thrift import Reader, ThriftError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MAGIC = b"PAR1"
_LARGEST_FOOTER = 16 << 20  # one of 16 MiB describes some 100 000 column chunks
_DEEPEST = 20
_BOOLEAN, _BYTE_ARRAY = 0, 6  # physical types
_UTF8, _MAP, _LIST, _ENUM, _JSON = 0, 1, 3, 4, 19  # ConvertedType; LogicalType has other numbers
_TEXT_LOGICAL, _MAP_LOGICAL, _LIST_LOGICAL, _UNKNOWN_LOGICAL = {1, 4, 12}, 2, 3, 11
_REPEATED = 2
# feature types of Hugging Face datasets and the release that brought them; an older one raises ValueError
NEW_FEATURES = {"List": "4.0.0", "Nifti": "4.4.0", "Json": "4.7.0", "Mesh": "5.0.1"}


class ParquetError(ValueError):
    """Not a whole Parquet file; the message says how."""


@dataclass(frozen=True)
class Footer:
    """What a Parquet file says about itself.

    Attributes:
        rows: number of rows.
        row: a row of the file's schema with made-up values of the right types.
        nulls: rows without a value, by column path such as `prompt.list.element.content`.
        blanks: column paths of texts that hold an empty one.
        metadata: key-value metadata, e.g. `pandas`, `huggingface`.
    """

    rows: int
    row: dict[str, Any]
    nulls: Mapping[str, int]
    blanks: frozenset[str]
    metadata: Mapping[str, bytes]


def read_footer(stream: BinaryIO) -> Footer:
    """The footer of the Parquet file `stream`.

    Raises:
        ParquetError: truncated, damaged or encrypted.
        OSError: it cannot be read.
    """
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - 8))
    tail = stream.read(8)
    if size < 12 or tail[4:] != MAGIC:
        raise ParquetError("encrypted footer" if tail[4:] == b"PARE" else "the end mark PAR1 is missing: truncated")
    length = int.from_bytes(tail[:4], "little")
    if length > min(size - 12, _LARGEST_FOOTER):
        raise ParquetError(f"the footer would be {length} bytes long")
    stream.seek(size - 8 - length)
    try:
        return _footer(Reader(stream.read(length)).struct(), size)
    except (ThriftError, TypeError, KeyError, IndexError, AttributeError, UnicodeError) as error:
        what = str(error) if isinstance(error, ThriftError) else "it lacks what every footer has"
        raise ParquetError(f"the footer is damaged: {what}") from None


def _footer(message: dict[int, Any], size: int) -> Footer:
    elements = iter(message[2])
    root = next(elements)
    row = {_name(child): value for child, value in _children(root, elements, 0)}
    chunks = [column[3] for group in message.get(4, []) for column in group.get(1, []) if 3 in column]
    nulls: dict[str, int] = {}
    blanks = set()
    for chunk in chunks:
        if chunk.get(9, 0) + chunk.get(7, 0) > size and chunk.get(11, 0) + chunk.get(7, 0) > size:
            raise ParquetError("a column lies behind the end of the file: truncated")
        path, statistics = ".".join(part.decode() for part in chunk[3]), chunk.get(12, {})
        nulls[path] = nulls.get(path, 0) + int(statistics.get(3, 0))
        if chunk[1] == _BYTE_ARRAY and statistics.get(6) == b"":
            blanks.add(path)
    pairs = {pair[1].decode(): pair.get(2, b"") for pair in message.get(5, [])}
    return Footer(int(message[3]), row, nulls, frozenset(blanks), pairs)


def _name(element: dict[int, Any]) -> str:
    return str(element[4].decode())


def _children(
    element: dict[int, Any], elements: Iterator[dict[int, Any]], depth: int
) -> list[tuple[dict[int, Any], Any]]:
    if depth > _DEEPEST:
        raise ParquetError("the schema is nested too deep")
    pairs = []
    for _ in range(element.get(5, 0)):
        child = next(elements, None)
        if child is None:
            raise ParquetError("the footer is damaged: its schema ends in the middle")
        pairs.append((child, _sample(child, elements, depth + 1)))
    return pairs


def _sample(element: dict[int, Any], elements: Iterator[dict[int, Any]], depth: int) -> Any:
    """A made-up value of this column's type: what pandas would give for it."""
    inner = _children(element, elements, depth)
    if not inner:
        value = _leaf(element)
    elif element.get(6) == _LIST or _LIST_LOGICAL in element.get(10, {}):
        value = [_of_list(*inner[0])]
    elif element.get(6) == _MAP or _MAP_LOGICAL in element.get(10, {}):
        value = {}
    else:
        value = {_name(child): item for child, item in inner}
    return [value] if element.get(3) == _REPEATED and element.get(6) != _LIST and depth == 1 else value


def _of_list(repeated: dict[int, Any], value: Any) -> Any:
    """The element of a list: in the three-level form the repeated group has one child, whatever its name."""
    single = repeated.get(5) == 1 and isinstance(value, dict) and len(value) == 1
    return next(iter(value.values())) if single else value


def _leaf(element: dict[int, Any]) -> Any:
    if _UNKNOWN_LOGICAL in element.get(10, {}):
        return None
    if element.get(1) != _BYTE_ARRAY:
        return True if element.get(1) == _BOOLEAN else 0
    text = element.get(6) in (_UTF8, _ENUM, _JSON) or _TEXT_LOGICAL & set(element.get(10, {}))
    if not text:
        return b"x"
    return "user" if _name(element) == "role" else "x"


def judge_footer(footer: Footer, judge: Judge) -> Tally:
    """What schema and column statistics tell: names, types, nulls, empty texts."""
    tally = Tally(rows=footer.rows, good=footer.rows)
    for problem in dict.fromkeys(Judge(judge.limit, sources=False).problems(footer.row)):
        tally.add(problem, 1, footer.rows)
    for path, field in _watched(footer):
        if footer.nulls.get(path):
            tally.add(Problem("DATA-NULL", field), 0, footer.nulls[path])
        if path in footer.blanks:
            tally.add(Problem("DATA-BLANK", field), 0, 1)
    return tally


def _watched(footer: Footer) -> Iterator[tuple[str, str]]:
    fields = {"data_source": "data_source", "reward_model.ground_truth": "reward_model.ground_truth"}
    for path in footer.nulls:
        if path in fields:
            yield path, fields[path]
        elif path.startswith("prompt.") and path.endswith((".role", ".content")):
            yield path, f"prompt[].{path.rpartition('.')[2]}"


def new_features(footer: Footer) -> list[str]:
    """Feature types in the `huggingface` metadata that older releases of datasets cannot read."""
    try:
        table = json.loads(footer.metadata.get("huggingface", b"{}"))
    except (ValueError, RecursionError):
        return []
    seen: set[str] = set()
    todo = [table]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            if isinstance(kind := item.get("_type"), str):
                seen.add(kind)
            todo.extend(item.values())
        elif isinstance(item, list):
            todo.extend(item)
    return sorted(seen & NEW_FEATURES.keys())


def has_pyarrow() -> bool:
    """Whether rows can be read here."""
    try:
        importlib.import_module("pyarrow.parquet")
    except Exception:  # noqa: BLE001 - a broken pyarrow (numpy's ABI, say) raises anything; then it is not there
        return False
    return True


def rows_of(path: Path) -> Iterator[Any]:
    """The rows of the Parquet file at `path`, read in small batches with pyarrow.

    Raises:
        ParquetError: pyarrow cannot read it.
    """
    parquet, library = importlib.import_module("pyarrow.parquet"), importlib.import_module("pyarrow.lib")
    try:
        with parquet.ParquetFile(path, memory_map=True) as file:
            for batch in file.iter_batches(batch_size=1024, use_threads=False):
                yield from batch.to_pylist()
    except (library.ArrowException, OSError, ValueError, NotImplementedError) as error:
        raise ParquetError(str(error)) from None


def judge_rows(path: Path, judge: Judge) -> Tally:
    """Every row of the file at `path`, with pyarrow.

    Raises:
        ParquetError: pyarrow cannot read it.
    """
    tally = Tally()
    for row in rows_of(path):
        tally.rows += 1
        tally.good += 1
        for problem in dict.fromkeys(judge.problems(row)):
            tally.add(problem, tally.rows)
    return tally
