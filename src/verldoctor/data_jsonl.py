"""Reads JSONL of any size in bounded memory and judges every row; rows like one already judged are not parsed again."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from verldoctor.data_rows import BYTES_PER_TOKEN, VALUE_CODES, Judge, Problem, encodable
from verldoctor.data_shape import Columns, Shape, shape_of, utf8
from verldoctor.data_tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 1 << 18  # 256 KiB: stays in the processor's cache, and the regex engine's stack for it stays small
LONGEST_LINE = 4 << 20  # JSON of 4 MiB can become about 200 MB of Python objects; no prompt is that long
_MOST_SHAPES = 16
_MOST_LEARNINGS = 24
_MOST_SORTINGS = 8  # in vain, one after another
_SAMPLE = 64


def lines_of(stream: BinaryIO, longest: int = LONGEST_LINE) -> Iterator[bytes | None]:
    """Blocks of whole lines, each ending with a line break; None stands for one line longer than `longest`."""
    rest = b""
    while block := stream.read(BLOCK):
        end = block.rfind(b"\n") + 1
        if end:
            yield rest + block[:end]
            rest = block[end:]
        else:
            rest += block
        if len(rest) > longest:
            rest = _after_break(stream)
            yield None
    if rest:
        yield rest + b"\n"


def _after_break(stream: BinaryIO) -> bytes:
    """Reads on to the next line break; what follows it in the same block."""
    while block := stream.read(BLOCK):
        _, found, rest = block.partition(b"\n")
        if found:
            return rest
    return b""


@dataclass
class Scan:
    """Judges blocks of lines and keeps what was found.

    Attributes:
        judge: what rows are judged by.
        tally: problems and their counts.
        parsed: rows that went through json.loads.
    """

    judge: Judge
    tally: Tally = field(default_factory=Tally)
    parsed: int = 0
    _shapes: list[Shape] = field(default_factory=list)
    _groups: dict[tuple[Problem, ...], re.Pattern[bytes]] = field(default_factory=dict)
    _columns: dict[int, Columns] = field(default_factory=dict)  # by the number of their shape
    _learnings: int = 0
    _mixed: bool = False  # the last block had lines of several shapes
    _sortings: int = _MOST_SORTINGS  # tries left

    @property
    def longest(self) -> int:
        """Bytes of a prompt that is certainly short enough."""
        return self.judge.limit * BYTES_PER_TOKEN

    def run(self, stream: BinaryIO) -> Tally:
        """Judges all rows of `stream`; its tally."""
        for block in lines_of(stream):
            if block is None:
                self.tally.add(Problem("DATA-LONG-LINE", detail=f"{LONGEST_LINE >> 20} MiB"), self.tally.rows + 1)
                self.tally.rows += 1
                continue
            self._block(block)
        return self.tally

    def _block(self, block: bytes) -> None:
        if (not self._mixed and self._proven(block)) or self._sorted(block):
            return
        rows, text_right, parsed = block.count(b"\n"), utf8(block), self.parsed
        if text_right and len(max(block.split(b"\n"), key=len)) <= self.longest:
            self._matched(block)
        else:
            self._single(block, text_right=text_right)
        if text_right and self.parsed - parsed <= rows // _SAMPLE:
            self._learn(block)

    def _proven(self, block: bytes) -> bool:
        """Whether all lines have the first line's shape, and are counted."""
        for columns in self._columns.values():
            if block.startswith(columns.head) and (rows := columns.proves(block)):
                self._add(columns.shape.problems, rows)
                return True
        return False

    def _sorted(self, block: bytes) -> bool:
        """Whether the lines, each put with those that begin like it, are all of known shapes, and are counted."""
        piles: list[tuple[bytes, Columns, list[bytes]]] = [(c.head, c, []) for c in self._columns.values()]
        faulty = any(columns.shape.problems for _, columns, _ in piles)  # those need their lines' numbers
        if len(piles) < 2 or faulty or not self._sortings or b"\r" in block:
            return False
        self._sortings, self._mixed = self._sortings - 1, False
        for line in block.split(b"\n")[:-1]:
            for head, _, pile in piles:
                if line.startswith(head):
                    pile.append(line)
                    break
            else:
                return False
        if not all(columns.proves_lines(pile) for _, columns, pile in piles if pile):
            return False
        self._sortings, self._mixed = _MOST_SORTINGS, True
        self._add((), sum(len(pile) for _, _, pile in piles))
        return True

    def _single(self, block: bytes, *, text_right: bool) -> None:
        """Judges lines one by one, because some are not UTF-8 or may hold a prompt that is too long."""
        for line in _split(block):
            if len(line) <= self.longest and (text_right or utf8(line)):
                self._matched(line)
            else:
                self._parse(line)

    def _matched(self, block: bytes) -> None:
        """Lets the patterns of known shapes run over `block`, and parses the lines at which all of them stop."""
        place, end = 0, len(block)
        while place < end:
            before = place
            for problems, pattern in self._groups.items():
                hit = pattern.match(block, place)
                if hit and hit.end() > place:
                    self._add(problems, block.count(b"\n", place, hit.end()))
                    place = hit.end()
            if place == before:
                place = block.index(b"\n", before) + 1
                self._parse(block[before:place])

    def _add(self, problems: tuple[Problem, ...], rows: int) -> None:
        for problem in problems:
            self.tally.add(problem, self.tally.rows + 1, rows)
        self.tally.rows += rows
        self.tally.good += rows

    def _parse(self, line: bytes) -> None:
        number = self.tally.rows + 1
        self.tally.rows += 1
        self.parsed += 1
        if not line.strip():
            return  # JSONL readers skip blank lines
        row, problem = parse(line)
        if problem:
            self.tally.add(problem, number)
            return
        self.tally.good += 1
        problems = list(dict.fromkeys([*self.judge.problems(row), *self.tally.mixed(row)]))
        for found in problems:
            self.tally.add(found, number)
        if isinstance(row, dict) and not VALUE_CODES & {found.code for found in problems}:
            self._add_shape(line, row, problems)

    def _add_shape(self, line: bytes, row: dict[str, Any], problems: list[Problem]) -> None:
        if len(self._shapes) >= _MOST_SHAPES or len(line) > self.longest * 4:
            return
        shape = shape_of(line, row, problems)
        if shape is None or shape in self._shapes:
            return
        self._shapes.append(shape)
        alike = [other.pattern for other in self._shapes if other.problems == shape.problems]
        self._groups[shape.problems] = re.compile(rb"(?:" + b"|".join(alike) + rb")*")

    def _learn(self, block: bytes) -> None:
        """Looks for the slots of each shape that never vary, for the next blocks."""
        if self._learnings >= _MOST_LEARNINGS:
            return
        self._learnings += 1
        lines = _split(block)
        for number, shape in enumerate(self._shapes):
            hits = [hit.groups() for hit in map(shape.line.fullmatch, lines) if hit]
            if len(hits) > 1:
                same = {i: values[0] for i, values in enumerate(zip(*hits, strict=True)) if len(set(values)) == 1}
                old = self._columns.get(number)
                known = same if old is None else {i: v for i, v in same.items() if old.constants.get(i) == v}
                columns = Columns(shape, known, self.longest)
                if columns.usable:
                    self._columns[number] = columns
                else:
                    self._columns.pop(number, None)
        self._sortings = _MOST_SORTINGS


def parse(line: bytes) -> tuple[Any, Problem | None]:
    """The row that `line` is, or what keeps it from being one."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        return None, Problem("DATA-UTF8", detail=f"byte 0x{line[error.start]:02x}")
    try:
        row = _LONG.decode(text.strip()) if len(line) > _DIGITS else json.loads(text)
    except RecursionError:
        return None, Problem("DATA-DEEP")
    except ValueError as error:
        return None, Problem("DATA-NOT-JSON", detail=getattr(error, "msg", "number too long"))
    if (b"\\ud" in line or b"\\uD" in line) and not encodable(json.dumps(row, ensure_ascii=False)):
        return None, Problem("DATA-SURROGATE", "a string")
    return row, None


_DIGITS = 4000  # int() of more digits is refused from 3.11 on, and takes minutes for millions of them on 3.10
_LONG = json.JSONDecoder(parse_int=lambda digits: int(digits) if len(digits) < _DIGITS else 0)


def _split(block: bytes) -> list[bytes]:
    return [line + b"\n" for line in block.split(b"\n")[:-1]]
