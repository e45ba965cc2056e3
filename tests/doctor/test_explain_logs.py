"""Lines and their prefixes: bounded memory, every launcher's marks, no escape code left."""

from __future__ import annotations

import io
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verldoctor.logs import LINE_BYTES, as_lines, plain, read_lines, split

STAMP = 1741116510.014  # 2025-03-04 19:28:30.014 UTC


@pytest.mark.parametrize(
    ("text", "rank", "message"),
    [
        ("[rank3]: Traceback", "rank 3", "Traceback"),
        ('[rank3]:   File "a.py", line 1', "rank 3", '  File "a.py", line 1'),
        ("[Rank 3] Watchdog caught", "rank 3", "Watchdog caught"),
        ("[default0]:Traceback", "rank 0", "Traceback"),
        ("[trainer0|0]:ncclInternalError", "rank 0", "ncclInternalError"),
        ("[1,12]<stderr>:boom", "rank 12", "boom"),
        ("3: ValueError: x", "rank 3", "ValueError: x"),
        ("(WorkerDict pid=123) x", "WorkerDict pid=123", "x"),
        ("(WorkerDict pid=123, ip=10.0.0.1) x", "WorkerDict pid=123, ip=10.0.0.1", "x"),
        ("\x1b[36m(TaskRunner pid=59667)\x1b[0m x", "TaskRunner pid=59667", "x"),
        ("[36m(TaskRunner pid=59667)[0m x", "TaskRunner pid=59667", "x"),
        ("(raylet) x", "raylet", "x"),
        ("worker-1  | x", "worker-1", "x"),
        ("[pod/verl-0/main] x", "pod/verl-0/main", "x"),
        ("[80746] [rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] x", "rank 0", "x"),
        ("2025-03-04T19:28:30.014Z [rank7]: x", "rank 7", "x"),
        ("[2025-03-04 19:28:30,014 E 27497 27497] x", "", "x"),
        ("ERROR 07-16 09:31:45 multiproc_worker_utils.py:226] x", "", "x"),
        ("12:30:01 x", "", "x"),
        ("> E   x", "", "x"),
        ("[Errno 24] Too many open files", "", "[Errno 24] Too many open files"),
        ('  File "a.py"', "", '  File "a.py"'),
        ("OSError: [Errno 2] x", "", "OSError: [Errno 2] x"),
    ],
)  # fmt: skip
def test_prefix_is_taken_off(text: str, rank: str, message: str) -> None:
    line = split(1, text)
    assert (line.rank, line.text) == (rank, message)


@pytest.mark.parametrize(
    "text", ["2025-03-04 19:28:30.014 x", "[2025-03-04 19:28:30,014 E 1 1] x", "2025-03-04T19:28:30.014Z x"]
)
def test_time_is_read(text: str) -> None:
    assert split(1, text).when == pytest.approx(STAMP)


def test_impossible_time_is_none() -> None:
    assert split(1, "2025-99-99 99:99:99 x").when is None


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("[W socket.cpp:426] [c10d] x", True), ("W0321 02:07:08.408 1 a.py:1] x", True), ("WARNING: x", True),
        ("/a/b.py:3: UserWarning: x", True), ("host:1:1 [0] NCCL WARN x", False), ("World: x", False), ("x", False),
    ],
)  # fmt: skip
def test_warnings_are_told_from_errors(text: str, warning: bool) -> None:  # noqa: FBT001 - a parameter of the table
    assert split(1, text).warning is warning


def test_lines_are_numbered_by_line_feeds_and_split_at_returns() -> None:
    stream = io.BytesIO(b"one\r\n 10%\r 20%\rtwo\n\nfour")
    assert list(read_lines(stream)) == [(1, "one"), (2, " 10%"), (2, " 20%"), (2, "two"), (4, "four")]


def test_endless_line_is_cut_and_what_follows_is_read() -> None:
    class Endless(io.RawIOBase):
        left = 3000

        def read(self, size: int = -1) -> bytes:
            self.left -= 1
            return b"x" * size if self.left > 0 else b"\nend" if self.left == 0 else b""

    tracemalloc.start()
    pieces = list(read_lines(Endless()))  # type: ignore[arg-type]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000  # of the 200 MB of that line
    assert [(number, len(text)) for number, text in pieces] == [(1, LINE_BYTES), (2, 3)]


def test_items_may_be_bytes_text_or_several_lines() -> None:
    assert list(as_lines([b"a\n", "b\nc\r\n", "\ud800"])) == [(1, "a"), (2, "b"), (3, "c"), (4, "?")]


def test_long_items_are_cut() -> None:
    assert [len(text) for _, text in as_lines([b"x" * 100_000, "y" * 100_000])] == [LINE_BYTES, LINE_BYTES]


def test_utf16_of_ascii_is_readable() -> None:
    assert list(read_lines(io.BytesIO("ab".encode("utf-16-le")))) == [(1, "ab")]


@pytest.mark.parametrize("text", ["\x1b[31mred\x1b[0m", "\x1b]0;title\x07red", "\x1b]8;;http://x\x1b\\red", "\x1bcred"])
def test_escape_codes_go(text: str) -> None:
    assert plain(text) == "red"


@given(st.text(max_size=400))
@settings(max_examples=200, deadline=None)
def test_any_text_can_be_split(text: str) -> None:
    line = split(1, text)
    assert len(line.text) <= len(text)


@given(st.binary(max_size=3000), st.integers(1, 700))
@settings(max_examples=100, deadline=None)
def test_blocks_do_not_change_the_lines(data: bytes, size: int) -> None:
    class Slow(io.BytesIO):
        def read(self, _: int | None = -1) -> bytes:
            return super().read(size)

    assert list(read_lines(Slow(data))) == list(read_lines(io.BytesIO(data)))
