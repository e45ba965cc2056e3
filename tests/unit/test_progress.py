"""Progress: lines that a log can bear, bars that leave the terminal in order."""

import io

import pytest
from rich.console import Console

from verlstack import progress
from verlstack.progress import Bars, Lines, Silent


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(progress.time, "monotonic", made)
    return made


def test_lines_come_every_ten_seconds(clock):
    out = io.StringIO()
    lines = Lines(out)
    lines.start("fetch", 100_000_000)
    for _ in range(40):
        clock.now += 0.5
        lines.advance("fetch", 1_000_000)
    assert out.getvalue() == "fetch: 20 of 100 MB\nfetch: 40 of 100 MB\n"
    lines.finish("fetch", "3 files")
    assert out.getvalue().endswith("fetch: 3 files\n")


def test_short_work_is_one_line(clock):
    out = io.StringIO()
    lines = Lines(out)
    lines.start("compose", 10)
    lines.advance("compose", 10)
    lines.finish("compose")
    assert out.getvalue() == "compose: done\n"


def test_an_unknown_total(clock):
    out = io.StringIO()
    lines = Lines(out)
    lines.start("fetch")
    clock.now += 11
    lines.advance("fetch", 5_000_000)
    assert out.getvalue() == "fetch: 5 MB\n"


def test_two_tasks_do_not_mix(clock):
    out = io.StringIO()
    lines = Lines(out)
    lines.start("one", 9_000_000)
    lines.start("two", 9_000_000)
    clock.now += 11
    lines.advance("one", 1_000_000)
    lines.advance("two", 2_000_000)
    assert out.getvalue() == "one: 1 of 9 MB\ntwo: 2 of 9 MB\n"


def test_lines_are_flushed():
    class Stream(io.StringIO):
        flushed = 0

        def flush(self):
            self.flushed += 1

    out = Stream()
    Lines(out).say("hello")
    assert (out.getvalue(), out.flushed) == ("hello\n", 1)


def test_silent_says_nothing(capsys):
    quiet = Silent()
    quiet.start("x", 1)
    quiet.advance("x", 1)
    quiet.finish("x")
    quiet.say("x")
    assert capsys.readouterr() == ("", "")


def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)


def test_bars():
    console = terminal()
    bars = Bars(console)
    try:
        bars.start("fetch", 100)
        bars.advance("fetch", 100)
        bars.advance("unknown", 5)
        bars.finish("fetch", "3 files [bold]")
        bars.finish("unknown")
        bars.say("[red]not markup[/red]")
    finally:
        bars.close()
    out = console.file.getvalue()
    assert "fetch: 3 files [bold]" in out
    assert "unknown: done" in out
    assert "[red]not markup[/red]" in out
    assert out.count("\x1b[?25l") == out.count("\x1b[?25h") == 1  # the cursor is hidden once and shown again


def test_a_task_that_starts_twice():
    bars = Bars(terminal())
    try:
        bars.start("fetch", 1)
        bars.start("fetch", 2)
        bars.finish("fetch")
        left = bars._rich.tasks
    finally:
        bars.close()
    if left:
        raise IndexError(left)
