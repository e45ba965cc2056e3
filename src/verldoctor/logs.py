"""Reads logs of any size as bounded lines and takes rank, time and level out of the prefixes that launchers add."""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LINE_BYTES = 8192  # the longest message in the signatures is under 700 bytes; a longer line is cut, not kept
_BLOCK = 65_536
_PREFIXES = 8  # srun, time stamp, rank, logger: four were seen in public reports
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;:?]{0,24}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)?|[ -~])")
_PASTED = re.compile(r"\[(?:\d{1,2};)?\d{1,2}m")  # colours whose escape character a copy and paste has lost
_STAMP = r"(?P<stamp>\d{4}-\d\d-\d\d[T _]\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{1,9}))?(?:Z|[+-]\d\d:?\d\d)?"
_WARNING = re.compile(r"\[?(?:W\d{0,4}|WARN(?:ING)?)\b")
_HEADS = tuple(
    re.compile(text)
    for text in (
        r"\[[Rr]ank[ -]?(?P<rank>\d{1,6})\]:? ?",  # torch's own
        r"\[[A-Za-z_]{1,30}(?P<rank>\d{1,6})(?:\|\d{1,6})?\]: ?",  # torchrun --tee: [default0]:  [trainer0|0]:
        r"\[(?P<label>pod/[\w./-]{1,200})\] ?",  # kubectl logs --prefix
        r"\[\d{1,6},(?P<rank>\d{1,6})\]<std(?:out|err)>: ?",  # mpirun --tag-output
        r" {0,6}(?P<rank>\d{1,6}):(?: |(?=[A-Za-z(\[]))",  # srun --label, and not 12:30:01
        r"\((?P<label>[\w.:<>-]{1,60} pid=\d{1,9}(?:, ip=[\w.:]{1,60})?|raylet(?:, ip=[\w.:]{1,60})?)\) ?",  # Ray
        r"(?P<label>[A-Za-z][\w.-]{0,62}) {1,20}\| ?",  # docker compose
        rf"\[{_STAMP} (?P<level>[IWEFC]) \d{{1,9}} \d{{1,9}}\] ?",  # Ray's C++ logs
        rf"\[?{_STAMP}\]? ?",
        r"\[?(?P<level>[IWEF])\d{3,4} \d\d:\d\d:\d\d\.\d{1,9} {0,3}\d{0,20} ?[\w./-]{1,160}:\d{1,6}\] ?",  # glog
        r"(?P<level>INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./-]{1,120}:\d{1,6}\] ?",  # vLLM
        r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})? ",
        r"\[\d{1,9}\] (?=\S)",  # line numbers of a viewer
        r"(?:> ?){1,4}",  # a quoted report
        r"E {3}",  # pytest
        r" {0,8}[|+] ",  # exception groups
    )
)


@dataclass(frozen=True)
class Line:
    """One line of a log.

    Attributes:
        number: its number in the file, from 1.
        rank: `rank 3`, `WorkerDict pid=17`, or "" where the line does not say.
        when: seconds since 1970 of its time stamp, read as UTC; None without one.
        text: the message, without prefixes and escape codes; its indentation is kept.
        warning: whether it is marked as a mere warning.
    """

    number: int
    rank: str
    when: float | None
    text: str
    warning: bool = False


def read_lines(stream: BinaryIO) -> Iterator[tuple[int, str]]:
    """Numbered pieces of a stream in bounded memory: lines, and what carriage returns overwrote, each cut."""
    number, tail = 1, b""
    while block := stream.read(_BLOCK):
        *whole, rest = (tail + block).split(b"\n")
        for raw in whole:
            yield from _pieces(number, raw)
            number += 1
        *done, tail = rest.split(b"\r")
        for raw in done:
            yield from _pieces(number, raw)
        tail = tail[:LINE_BYTES]
    yield from _pieces(number, tail)


def as_lines(items: Iterable[bytes | str]) -> Iterator[tuple[int, str]]:
    """Numbered pieces of lines already apart; an item that holds line breaks counts as several lines."""
    number = 0
    for item in items:
        raw = item.encode("utf-8", "replace") if isinstance(item, str) else bytes(item)
        for part in raw.rstrip(b"\r\n").split(b"\n"):
            number += 1
            yield from _pieces(number, part)


def _pieces(number: int, raw: bytes) -> Iterator[tuple[int, str]]:
    for piece in raw.split(b"\r"):
        if piece:  # NUL bytes go, so that a UTF-16 log of ASCII text can be read too
            yield number, piece[:LINE_BYTES].decode("utf-8", "replace").replace("\0", "")


def plain(text: str) -> str:
    """`text` without terminal escape codes, whole or with the escape character lost."""
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    return _PASTED.sub("", text) if "[0m" in text or text.startswith("[") else text


def split(number: int, text: str) -> Line:
    """The line's message apart from the prefixes of torchrun, Ray, srun, mpirun, compose and loggers."""
    rest, rank, when, warning = plain(text), "", None, False
    for _ in range(_PREFIXES):
        match = next((found for head in _HEADS if (found := head.match(rest)) and found.end()), None)
        if match is None:
            break
        groups = match.groupdict()
        rank = _rank(groups) or rank
        when = _when(groups) if groups.get("stamp") else when
        warning = warning or (groups.get("level") or "")[:1] == "W"
        rest = rest[match.end() :]
    return Line(number, rank, when, rest, warning or "Warning: " in rest[:400] or bool(_WARNING.match(rest)))


def _rank(groups: dict[str, str | None]) -> str:
    if groups.get("rank"):
        return f"rank {int(groups['rank'] or 0)}"
    return groups.get("label") or ""


def _when(groups: dict[str, str | None]) -> float | None:
    year, month, day, hour, minute, second = (int(word) for word in re.split(r"\D", groups["stamp"] or ""))
    try:
        seconds = calendar.timegm((year, month, day, hour, minute, second))
    except ValueError:  # month 13 and the like
        return None
    return seconds + float(f"0.{groups.get('part') or 0}")
