"""The fast way through JSONL says what the slow way says, in bounded memory."""

from __future__ import annotations

import io
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verldoctor import data_jsonl
from verldoctor.data_jsonl import LONGEST_LINE, Scan, lines_of, parse
from verldoctor.data_rows import Judge
from verldoctor.data_shape import Columns, shape_of

JUDGE = Judge()


def row(content="2+2=", truth="4", index=0, source="openai/gsm8k", **extra):
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": content}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": "train", "index": index, **extra},
    }


def lines(rows, **style):
    return b"".join(
        r if isinstance(r, bytes) else json.dumps(r, **style).encode("utf-8", "surrogatepass") + b"\n" for r in rows
    )


def scan(raw):
    scanned = Scan(JUDGE)
    tally = scanned.run(io.BytesIO(raw))
    return scanned, {problem: tuple(count) for problem, count in tally.counts.items()}


class Slow(Scan):
    """A scan that learns nothing."""

    def _add_shape(self, line, row, problems):
        pass


def slow(raw):
    """Every line through json.loads."""
    scanned = Slow(JUDGE)
    for line in raw.split(b"\n")[:-1]:
        scanned._parse(line + b"\n")
    assert scanned.parsed == raw.count(b"\n")
    return {problem: tuple(count) for problem, count in scanned.tally.counts.items()}


PLAIN = [row(f"What is {i}, said plainly and without any escape at all? " * 2, str(i), i) for i in range(300)]
GOOD = [row(f"Q {i} " + "word " * (i % 7) + '\n"quoted" \\frac é', str(i), i) for i in range(3000)]


@pytest.mark.parametrize(
    "style", [{}, {"ensure_ascii": False}, {"separators": (",", ":")}, {"separators": (",", ": ")}]
)
def test_rows_of_one_shape_are_parsed_once(style):
    scanned, found = scan(lines(GOOD, **style))
    assert found == {}
    assert scanned.tally.rows == 3000
    assert scanned.parsed == 1
    assert len(scanned._columns) == 1


def test_carriage_returns():
    scanned, found = scan(lines(GOOD).replace(b"\n", b"\r\n"))
    assert (found, scanned.parsed, scanned.tally.rows) == ({}, 1, 3000)


def bent(old, new):
    """A right line with some of its bytes replaced."""
    return lines([row()]).replace(old, new)


def swapped():
    """The right pieces of a line in the wrong order."""
    line = lines([row()])
    head = line[: line.index(b'"}], "ability"')]
    first, middle, second, tail = _cut(line)
    return head + second + b"5" + first + middle + tail


def _cut(line):
    start, end, last = line.index(b'"}], "ability"'), line.index(b'4"}'), line.index(b"0}}")
    return line[start:end], b"4", line[end + 1 : last], line[last + 1 :]


TEXTS = (
    *("", " ", "\n\t ", "\u3000", "\u2003\u2003", "x" * 5000, "\ud83d\ude00", "\ud800", "a\ud83d", "\\", '"'),
    *("ends with \\", '\\"', "/", "\x7f", "日本語", "にほん"),
)
TWISTS = [
    *map(row, TEXTS),
    row(truth=""),
    row(truth=" "),
    row(source="other/source"),
    *(row(index=value) for value in (-5, 1.5, 0, "7")),
    row(note="more"),
    {**row(), "ability": None},
    {**row(), "prompt": row()["prompt"] * 2},
    {**row(), "prompt": [{"role": "bot", "content": "x"}]},
    b"",
    b"\n",
    b"{}\n",
    b"{\n",
    b"[]\n",
    b"null\n",
    b"\xff\n",
    b'{"a":1}{"a":2}\n',
    lines([row()])[:-10] + b"\n",
    bent(b"2+2=", b"2\\x2"),
    bent(b"2+2=", b"2\t2"),
    bent(b"2+2=", b"2\x012"),
    bent(b"2+2=", b"2\x01A2"),
    bent(b"2+2=", b"\\u12"),
    bent(b"2+2=", b"\\u12g4 "),
    bent(b"2+2=", b"\\ud800\\u0041"),
    bent(b"2+2=", b"\\udc00"),
    bent(b"2+2=", b"\\"),
    bent(b"2+2=", b"\\\\\\"),
    bent(b"2+2=", b"a\\/b"),
    bent(b"2+2=", b"\xc3"),
    bent(b"0}}", b"007}}"),
    bent(b"0}}", b"}}"),
    bent(b"0}}", b"+1}}"),
    bent(b"0}}", b"9" * 5000 + b"}}"),
    bent(b"0}}", b"NaN}}"),
    bent(b"0}}", b"1}},"),
    bent(b'"4"', b"4"),
    bent(b'"4"', b"null"),
    bent(b'", "', b'",  "'),
    lines([row('"}], "ability": "math", "reward_model": {"style": "rule", "ground_truth": "')]),
    bent(b'2+2="', b'x\\"'),
    swapped(),
]


@pytest.mark.parametrize("twist", TWISTS)
@pytest.mark.parametrize("place", [1, 220])
@pytest.mark.parametrize("around", [GOOD, PLAIN], ids=["escapes", "plain"])
def test_a_row_that_differs_is_judged_as_alone(twist, place, around, monkeypatch):
    monkeypatch.setattr(data_jsonl, "BLOCK", 8192)  # several blocks of these 250 rows
    raw = lines([*around[:place], twist, *around[place:250]])
    scanned, found = scan(raw)
    assert found == slow(raw)
    assert scanned.parsed < 10


def test_mixed_shapes_are_fast_too():
    rows = [
        r
        for i, r in enumerate(GOOD)
        for r in ([r, {**r, "ability": None}, row(str(i) + "x", "1", i, "lighteval/MATH")])
    ]
    scanned, found = scan(lines(rows))
    assert found == {}
    assert scanned.parsed < 10


def test_a_wrong_row_among_mixed_shapes_is_found(monkeypatch):
    monkeypatch.setattr(data_jsonl, "BLOCK", 8192)
    rows = [r for i, r in enumerate(PLAIN) for r in (r, row(str(i) + "x", "1", i, "lighteval/MATH"))]
    for twist in TWISTS:
        found = slow(lines([PLAIN[0], twist]))
        assert scan(lines([*rows[:401], twist, *rows[401:]]))[1] == {p: (count, 402) for p, (count, _) in found.items()}


def test_a_file_where_every_row_is_wrong_is_fast_too():
    scanned, found = scan(lines({"input ": f"q{i}", "output": str(i)} for i in range(20_000)))
    assert {problem.code for problem in found} >= {"DATA-NAME-BLANK", "DATA-NAME-OTHER", "DATA-MISSING"}
    assert all(count == (20_000, 1) for count in found.values())
    assert scanned.parsed < 5


def test_values_that_never_varied_and_then_do():
    rows = [{**r, "ability": "math" if i % 500 else f"topic {i}"} for i, r in enumerate(GOOD * 4)]
    scanned, found = scan(lines(rows))
    assert (found, scanned.tally.rows) == ({}, 12_000)
    assert scanned.parsed < 10


TEXT = st.text(st.sampled_from('a "\\\n/\tué\u3000\ud83d\ude00😀語\x01\x7f~A}]{,:0'), max_size=12)


@given(st.lists(st.builds(row, TEXT, TEXT, st.integers() | st.floats() | TEXT), min_size=1, max_size=30), st.booleans())
def test_fast_equals_slow(rows, ascii_only):
    raw = lines([GOOD[0], *rows, GOOD[1]], ensure_ascii=ascii_only) * 3
    assert scan(raw)[1] == slow(raw)


@given(
    st.lists(st.builds(row, TEXT, TEXT, st.integers())),
    st.integers(0, 10_000),
    st.binary(min_size=1, max_size=3),
    st.booleans(),
)
def test_columns_prove_nothing_that_parsing_denies(rows, place, patch, ascii_only):
    raw = bytearray(lines([*GOOD[:3], *rows], ensure_ascii=ascii_only))
    shape = shape_of(lines(GOOD[:1], ensure_ascii=ascii_only), GOOD[0], [])
    columns = Columns(shape, {0: b"math", 4: b"train"}, 2048) if shape else None
    place %= len(raw)
    raw[place : place + len(patch)] = patch
    block = bytes(raw) if raw.endswith(b"\n") else bytes(raw) + b"\n"
    if columns and (proven := columns.proves(block)):
        assert proven == block.count(b"\n")
        assert columns.proves_lines(block.split(b"\n")[:-1])
        for line in block.split(b"\n")[:-1]:
            value, problem = parse(line)
            assert problem is None
            assert JUDGE.problems(value) == []


def test_head_and_tail_share_no_bytes():
    shape = shape_of(b'{"a": "x"}\n', {"a": "x"}, [])
    columns = Columns(shape, {}, 100)
    assert columns.proves(b'{"a": "x"}\n{"a": ""}\n') == 2
    assert columns.proves_lines([b'{"a": "x"}', b'{"a": ""}'])
    assert not columns.proves(b'{"a": "}\n')
    assert not columns.proves_lines([b'{"a": "}'])


def test_shapes_of_unusual_layouts_are_refused():
    assert shape_of(b'{ "a":1}\n', {"a": 1}, []) is None
    assert shape_of(b'{"a":1}\n', {"a": 1}, []) is not None
    wide = {str(i): i for i in range(300)}
    assert shape_of(json.dumps(wide).encode() + b"\n", wide, []) is None


def test_endless_lines_stay_in_bounds():
    class Endless(io.RawIOBase):
        left = 60 << 20

        def read(self, size=-1):
            self.left -= size
            return b"x" * size if self.left > 0 else b""

    tracemalloc.start()
    blocks = list(lines_of(Endless()))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert blocks == [None]
    assert most < 5 * LONGEST_LINE


def test_a_line_after_an_endless_one_is_judged():
    raw = b"x" * (LONGEST_LINE + data_jsonl.BLOCK * 2) + b"\n" + lines([row()]) + b"{"
    _, found = scan(raw)
    assert {problem.code: count for problem, count in found.items()} == {
        "DATA-LONG-LINE": (1, 1),
        "DATA-NOT-JSON": (1, 3),
    }


def test_memory_does_not_grow_with_the_file():
    block = lines(GOOD)

    class Repeated(io.RawIOBase):
        left = 20

        def read(self, size=-1):
            self.left -= 1
            return block if self.left > 0 else b""

    tracemalloc.start()
    tally = Scan(JUDGE).run(Repeated())
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert tally.rows == 19 * 3000
    assert most < 30 << 20
