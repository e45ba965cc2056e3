"""Walks through a log once and writes down its events: known messages and exceptions that nobody knows."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Literal

from verldoctor.logs import Line, plain, split
from verldoctor.signatures import Signature, within

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Level = Literal["cause", "unknown", "effect", "note", "weak"]
_BATCH = 512  # lines whose needles are looked for at once: a batch without any costs almost nothing
# Of so many lines without any mark one is read closer: far below the counts that decide, and no divisor of the usual
# numbers of ranks (8, or 7 when one is gone), which take turns
_SKIMMED = 11
_MARKS = ("Traceback (most", '  File "', "Error", "Exception", "rank      :")
_NEAR = 8  # lines of a traceback that a signature's `near` may refer to: two frames and their code
_TOGETHER = 5  # lines within which a message still belongs to the exception before it
_APART = 500  # ordinary lines after which the next event is another incident; times the ranks that write
_SURVIVED = 200  # ordinary lines that a rank writes after an exception which did not end it
_MOST = 5000  # events, and ranks, kept of one log; one of nothing but errors must not fill the memory
_SAMPLE = 200_000  # characters by which binary data is told from text
_TRACEBACK = "Traceback (most recent call last)"
_LINKS = ("During handling of the above exception", "The above exception was the direct cause")
_FRAME = re.compile(r'\s{1,12}File "')
_RAISED = re.compile(r"(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z_]\w{0,80}(?:\(\w{1,80}\))?(?::|$)")
_BARE = re.compile(r"(?:[A-Za-z_]\w{0,80}\.){0,8}\w{0,80}(?:Error|Exception)(?:: \S|$)")
_SUMMARY = re.compile(r" {1,4}rank {1,8}: (\d{1,6}) \(local_rank")
_STACK = re.compile(r"\s|frame #\d|$")


@dataclass(frozen=True)
class Event:
    """One thing that a log says went wrong.

    Attributes:
        line: where it stands.
        level: `cause`, `effect`, `note` as its signature says; `unknown` for an exception of a traceback that no
            signature knows; `weak` for a line that only looks like an exception.
        signature: what it is, if known.
        chain: number of the traceback, with the exceptions that it was raised from, that it belongs to.
        cluster: number of the incident: events with little between them.
    """

    line: Line
    level: Level
    signature: Signature | None
    chain: int
    cluster: int


@dataclass
class _Stream:
    """What is known of one rank's lines so far."""

    near: deque[str] = field(default_factory=lambda: deque(maxlen=_NEAR))
    tracing: bool = False
    linked: bool = False
    chain: int = 0
    since: int = _APART  # lines of this rank since its last event
    ordinary: int = 0  # of these, lines that are neither indented nor events


@dataclass
class Scan:
    """The events of one log, filled by `feed`.

    Attributes:
        events: in the order of the log.
        lines: how many lines it has.
        first_rank: the rank that torchrun says failed first, or "".
    """

    events: list[Event] = field(default_factory=list)
    lines: int = 0
    first_rank: str = ""
    _streams: dict[str, _Stream] = field(default_factory=dict)
    _seen: set[tuple[str, str, int]] = field(default_factory=set)
    _chains: int = 0
    _cluster: int = 0
    _quiet: int = 0
    _summary: str = ""
    _root: bool = False
    _read: int = 0
    _strange: int = 0

    @property
    def strange(self) -> float:
        """The share of the characters read first that no text has."""
        return self._strange / self._read if self._read else 0.0

    def survived(self, event: Event) -> bool:
        """Whether its rank went on writing long after it: it was caught, or belongs to a run before."""
        return bool(event.line.rank) and self._stream(event.line.rank).ordinary > _SURVIVED

    def feed(self, pieces: Iterable[tuple[int, str]]) -> Scan:
        """Reads numbered pieces of lines to their end; returns itself."""
        for batch in _batches(pieces):
            self.lines = batch[-1][0]
            blob = "\n".join(text for _, text in batch)
            self._measure(blob)
            active = within(blob)
            if not active and not self._tracing() and not any(mark in blob for mark in _MARKS):
                self._skim(batch)
                continue
            for number, text in batch:
                self._line(split(number, text), active)
        return self

    def _tracing(self) -> bool:
        return any(stream.tracing for stream in self._streams.values())

    def _skim(self, batch: Sequence[tuple[int, str]]) -> None:
        """Counts lines that hold nothing; whose they are matters only after an event, and a sample tells it."""
        if not self.events:
            self._quiet += len(batch)
            return
        for number, text in batch[::_SKIMMED]:
            line = split(number, text)
            if stream := self._streams.get(line.rank):
                stream.since += _SKIMMED
                self._ordinary(line, stream, _SKIMMED)

    def _measure(self, blob: str) -> None:
        if self._read >= _SAMPLE:
            return
        sample = plain(blob)[:_SAMPLE]
        self._read += len(sample)
        self._strange += sum(char == "\ufffd" or (char < " " and char not in "\t\n") for char in sample)

    def _line(self, line: Line, active: list[Signature]) -> None:
        stream = self._stream(line.rank)
        stream.since += 1
        if self._header(line.text, stream):
            return
        self._note_summary(line.text)
        matched = [signature for signature in active if signature.matches(line.text, stream.near)]
        level = _level(line, matched, stream)
        if level is None:
            self._ordinary(line, stream)
        else:
            self._record(line, level, matched[0] if matched else None, stream)
        stream.near.append(line.text)
        stream.tracing = stream.tracing and (level is None or line.text[:1].isspace())

    def _stream(self, rank: str) -> _Stream:
        if rank not in self._streams and len(self._streams) >= _MOST:
            rank = ""  # labels of random text must not fill the memory either
        return self._streams.setdefault(rank, _Stream())

    def _header(self, text: str, stream: _Stream) -> bool:
        if text.startswith(_LINKS):
            stream.linked = True
            return True
        if not (_TRACEBACK in text or (not stream.tracing and _FRAME.match(text))):
            return False
        if not stream.linked and (stream.since > _TOGETHER or not stream.tracing):
            self._chains += 1
            stream.chain = self._chains
        stream.tracing, stream.linked = True, False
        stream.near.append(text)
        return True

    def _ordinary(self, line: Line, stream: _Stream, times: int = 1) -> None:
        if not _STACK.match(line.text):
            self._quiet += times
            stream.ordinary += times

    def _note_summary(self, text: str) -> None:
        """Keeps the rank of torchrun's closing summary, whose next lines tell that rank's exit code."""
        if text.startswith("Root Cause (first observed failure)"):
            self._root = True
        elif match := _SUMMARY.match(text):
            self._summary = f"rank {int(match[1])}"
            self.first_rank = self._summary if self._root else self.first_rank

    def _record(self, line: Line, level: Level, signature: Signature | None, stream: _Stream) -> None:
        if not line.rank and self._summary and line.text.startswith(("  exitcode", "  traceback")):
            line = Line(line.number, self._summary, line.when, line.text)
        if not stream.tracing and stream.since > _TOGETHER:
            self._chains += 1
            stream.chain = self._chains
        if self._quiet > _APART * max(1, len(self._streams)):
            self._cluster += 1
        self._quiet = stream.since = stream.ordinary = 0
        key = (signature.id if signature else line.text[:200], line.rank, self._cluster)
        if key in self._seen or len(self.events) >= _MOST:
            return
        self._seen.add(key)
        self.events.append(Event(line, level, signature, stream.chain, self._cluster))


def _batches(pieces: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    rest = iter(pieces)
    while batch := list(islice(rest, _BATCH)):
        yield batch


def _level(line: Line, matched: list[Signature], stream: _Stream) -> Level | None:
    """What a line is; None for an ordinary one."""
    if matched:
        return "note" if line.warning and matched[0].kind == "cause" and not stream.tracing else matched[0].kind
    if stream.tracing and _RAISED.match(line.text) and stream.near and stream.near[-1][:1].isspace():
        return "unknown"
    return "weak" if not stream.tracing and _BARE.match(line.text) else None
