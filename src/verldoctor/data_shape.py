"""Shapes of JSON rows: a row known to be right turned into byte patterns that prove other rows right without parsing.

A shape is a row's exact JSON text with its strings and numbers cut out (slots). Whatever matches it has the same
fields, types, roles and data source, is valid JSON, and its texts are not blank: it needs no json.loads.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from itertools import product, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from verldoctor.data_rows import Problem

Slot = Literal["prompt", "text", "any", "number"]  # a prompt's text, a string that must not be blank, any, a number
Piece: TypeAlias = "Slot | bytes"
_PLAIN = rb'[^"\\\x00-\x1f]*'
_ESCAPE = (
    rb'\\(?:["\\/bfnrt]|u(?:[0-9a-cA-CefEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}'
    rb"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"  # a surrogate pair; a lone one is a fault
)
_STRING = _PLAIN + rb"(?:" + _ESCAPE + _PLAIN + rb")*"
# first bytes that no white space has (U+0085, U+00A0, U+1680, U+2000… and U+3000 begin with c2, e1, e2, e3)
_INK = bytes({*range(0x21, 0x7F), *range(0xC3, 0xE1), *range(0xE4, 0xF5)} - set(rb'"\\'))
_LEAD = rb"(?: |\\[nrt])*(?:[!#-\[\]-~\xc3-\xe0\xe4-\xf4]|\xe3[\x81-\xbf]|\\[\"\\/])"  # blanks, then ink
_PATTERNS: dict[str, bytes] = {
    "prompt": rb"(?=" + _LEAD + rb")" + _STRING,
    "text": rb"(?=" + _LEAD + rb")" + _STRING,
    "any": _STRING,
    "number": rb"-?(?:0|[1-9][0-9]{0,400})(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?",
}
_TEXTS = {"prompt", "response", "chosen", "rejected", "question", "answer", "content", "ground_truth"}
_LITERALS = {"data_source", "role"}  # their values decide what is wrong, so they belong to the shape
_STYLES = [(", ", ": "), (",", ":"), (", ", ":"), (",", ": ")]
_MOST_TOKENS = 200
_MOST_NEEDLES = 12
_VISIBLE = bytes(range(0x20, 0x100))
_SPARSE = 100  # bytes a backslash from which on a pattern that visits each is faster than two passes
_SAMPLE = 4096
_RIGHT_ESCAPE = re.compile(_ESCAPE)
_BAD_LETTER = re.compile(rb"\\(?![/bfnrt])")
_BAD_UNICODE = re.compile(
    rb"\\u(?![0-9a-cA-CefEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    rb"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?<=\\u[dD][89abAB][0-9a-fA-F]{2}\\u)[dD][c-fC-F][0-9a-fA-F]{2})"
)


@dataclass(frozen=True)
class Shape:
    """One layout of rows.

    Attributes:
        tokens: fixed bytes and slots, in the order of the line, without its line break.
        problems: what is wrong with every row of this shape.
    """

    tokens: tuple[Piece, ...]
    problems: tuple[Problem, ...] = ()

    @cached_property
    def pattern(self) -> bytes:
        """The regular expression of one line, its break included."""
        return b"".join(map(_as_pattern, self.tokens)) + rb"\r?\n"

    @cached_property
    def line(self) -> re.Pattern[bytes]:
        """Matches one line and gives its slots' values."""
        parts = (_as_pattern(t) if isinstance(t, bytes) else b"(" + _as_pattern(t) + b")" for t in self.tokens)
        return re.compile(b"".join(parts) + rb"\r?\n")


def _as_pattern(token: Piece) -> bytes:
    return re.escape(token) if isinstance(token, bytes) else _PATTERNS[str(token)]


def shape_of(line: bytes, row: dict[str, Any], problems: Sequence[Problem]) -> Shape | None:
    """The shape of the row that `line` (with its break) is; None if its layout is too unusual to tell."""
    for (comma, colon), ascii_only in product(_STYLES, (False, True)):
        parts: list[Piece] = []
        try:
            for token in _tokens(row, "", _Style(comma.encode(), colon.encode(), ascii_only=ascii_only)):
                parts.append(token)
                if len(parts) > _MOST_TOKENS:
                    return None
        except (UnicodeEncodeError, RecursionError):
            return None
        shape = Shape(tuple(_joined(parts)), tuple(problems))
        if shape.line.fullmatch(line):
            return shape
    return None


@dataclass(frozen=True)
class _Style:
    comma: bytes
    colon: bytes
    ascii_only: bool

    def raw(self, value: object) -> bytes:
        return json.dumps(value, ensure_ascii=self.ascii_only).encode("utf-8")


def _tokens(value: Any, key: str, style: _Style) -> Iterator[Piece]:
    if isinstance(value, dict):
        yield b"{"
        for index, (name, inner) in enumerate(value.items()):
            yield (style.comma if index else b"") + style.raw(name) + style.colon
            yield from _tokens(inner, name, style)
        yield b"}"
    elif isinstance(value, list):
        yield b"["
        for index, inner in enumerate(value):
            yield style.comma if index else b""
            yield from _tokens(inner, key, style)
        yield b"]"
    else:
        yield from _scalar(value, key, style)


def _scalar(value: object, key: str, style: _Style) -> Iterator[Piece]:
    if isinstance(value, str) and key not in _LITERALS and value.strip():
        slot: Slot = "prompt" if key == "content" else "text" if key in _TEXTS else "any"
        yield from (b'"', slot, b'"')
    elif isinstance(value, str) and key not in _LITERALS and key not in _TEXTS:
        yield from (b'"', "any", b'"')
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:  # noqa: PLR0124
        yield "number"
    else:  # true, false, null, NaN, a role, a blank text: part of the shape
        yield style.raw(value)


def _joined(parts: Sequence[Piece]) -> Iterator[Piece]:
    """`parts` with neighbouring fixed bytes made one."""
    glue = b""
    for part in parts:
        if isinstance(part, bytes):
            glue += part
        else:
            yield glue
            yield part
            glue = b""
    yield glue


class Columns:
    """Proves a whole block of lines of one shape right with a few passes of C code, no loop in Python.

    Rows are cut at the fixed bytes between their slots (needles), so that each slot becomes a column of values. If
    every needle was there and no value holds a quote that is not escaped, each row has the shape.
    """

    def __init__(self, shape: Shape, constants: dict[int, bytes], limit: int) -> None:
        """Prepares the needles of `shape`, whose slots in `constants` (by number) have that value in every row.

        Args:
            shape: the layout.
            constants: values of slots that do not vary; they become fixed bytes.
            limit: most bytes of a prompt's messages together.
        """
        self.shape, self.constants, self.limit = shape, constants, limit
        tokens: list[Piece] = []
        number = 0
        for token in shape.tokens:
            tokens.append(token if isinstance(token, bytes) else constants.get(number, token))
            number += not isinstance(token, bytes)
        merged = list(_joined(tokens))
        self.slots: list[str] = [str(token) for token in merged[1::2]]
        glue = [bytes(token) for token in merged[::2] if isinstance(token, bytes)]
        self.head, self.tail = glue[0], glue[-1] + b"\n"
        self.needles = [self.tail + self.head, *glue[1:-1]]
        self.usable = bool(self.slots) and len(self.needles) <= _MOST_NEEDLES

    def proves(self, block: bytes) -> int:
        """How many lines `block` has, if all of them have this shape; 0 if that is not so or not proven this way."""
        block = block.replace(b"\r\n", b"\n") if b"\r" in block else block
        whole = len(block) >= len(self.head) + len(self.tail)  # or both could share bytes
        if not (whole and block.startswith(self.head) and block.endswith(self.tail)):
            return 0
        rows = block[len(self.head) : -len(self.tail)].split(self.needles[0])
        return len(rows) if self._prove(rows) else 0

    def proves_lines(self, lines: Sequence[bytes]) -> bool:
        """Whether all `lines`, without their breaks, have this shape."""
        return self.proves(b"\n".join([*lines, b""])) == len(lines)

    def _prove(self, rest: Sequence[bytes]) -> bool:
        columns: list[Sequence[bytes]] = []
        for needle in self.needles[1:]:
            values, between, rest = zip(*map(bytes.partition, rest, repeat(needle)), strict=True)
            if set(between) != {needle}:
                return False
            columns.append(values)
        columns.append(rest)
        return self._short_enough(columns) and all(map(_column_right, self.slots, columns))

    def _short_enough(self, columns: list[Sequence[bytes]]) -> bool:
        prompts = [values for kind, values in zip(self.slots, columns, strict=True) if kind == "prompt"]
        return sum(max(map(len, values)) for values in prompts) <= self.limit


_BEGINS_WITH_INK = re.compile(_LEAD).match
_NO_LEADING_ZERO = re.compile(rb"0|[1-9][0-9]{0,400}").fullmatch


def _column_right(kind: str, values: Sequence[bytes]) -> bool:
    """Whether all `values` fit a slot of this kind."""
    if kind == "number":
        digits = b"" not in values and b"".join(values).isdigit()
        return digits and (0x30 not in set(map(itemgetter(0), values)) or all(map(_NO_LEADING_ZERO, values)))
    text = b"\n".join(values)
    if not _strings_right(text) or not utf8(text) or text.translate(None, _VISIBLE) != b"\n" * (len(values) - 1):
        return False
    if kind == "any":
        return True
    inked = b"" not in values and not set(map(itemgetter(0), values)).difference(_INK)
    return inked or all(map(_BEGINS_WITH_INK, values))


def _strings_right(text: bytes) -> bool:
    """Whether no quote is left but escaped ones, and every backslash begins a right escape.

    Values stand on lines of their own: where one was cut behind a backslash, at a needle inside a text, a line break
    follows the backslash, which is no right escape.
    """
    if b"\\" not in text:
        return b'"' not in text
    sample = text[
        :_SAMPLE
    ]  # which way is faster is all that depends on it; counting in all of it takes as long as either
    if sample.count(b"\\") * _SPARSE < len(sample):
        rest = _RIGHT_ESCAPE.sub(b"", text)
        return b"\\" not in rest and b'"' not in rest
    rest = text.replace(b"\\\\", b"")
    rest = rest.replace(b'\\"', b"") if b'"' in rest else rest
    return b'"' not in rest and (not _BAD_LETTER.search(rest) or _escapes_right(rest))


def utf8(text: bytes) -> bool:
    """Whether `text` is UTF-8."""
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _escapes_right(text: bytes) -> bool:
    """Whether every backslash in `text`, none of which escapes a backslash or quote, begins a right escape."""
    others = text.replace(b"\\u", b"")
    if _BAD_LETTER.search(others):
        return False
    if b"\\/" in others:  # no escape of Python's
        text = text.replace(b"\\/", b"/")
    try:  # far faster than the pattern where every character is escaped
        text.decode("unicode_escape").encode("utf-8")
    except UnicodeDecodeError:
        return False
    except UnicodeEncodeError:  # a surrogate, in a pair or alone
        return not _BAD_UNICODE.search(text)
    return True
