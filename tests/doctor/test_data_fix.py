"""The fix: verl's format, every row kept or named, the input untouched, the output whole or absent."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verldoctor import data, data_fix
from verldoctor.context import Context

CONTEXT = Context(env={}, stack={"verl": "0.9.0"})


@pytest.fixture(autouse=True)
def _no_pyarrow(monkeypatch, request):
    if request.node.name != "test_parquet_with_pyarrow":
        monkeypatch.setattr(data_fix, "has_pyarrow", lambda: False)


def write(tmp_path, *rows, name="in.jsonl"):
    path = tmp_path / name
    path.write_bytes(b"".join(r if isinstance(r, bytes) else json.dumps(r).encode() + b"\n" for r in rows))
    return path


def fixed(tmp_path, *rows):
    path = write(tmp_path, *rows)
    before = path.read_bytes()
    report = data.fix(path, tmp_path / "out.jsonl")
    assert path.read_bytes() == before
    out = tmp_path / "out.jsonl"
    result = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    if result:
        assert {f.code for f in data.check([out], CONTEXT)} <= {"DATA-LONG"}
    return report, result


WAYS = [
    {"input ": "2+2=", "output": "4"},
    {"question": "2+2=", "answer": "two plus two\n#### 4"},
    {"Instruction": "2+2=", "Response": "4"},
    {"messages": [{"role": "user", "content": "2+2="}, {"role": "assistant", "content": "4"}], "label": 4},
    {"conversations": [{"from": "human", "value": "2+2="}, {"from": "gpt", "value": "x"}], "answer": "4"},
    {"prompt": "2+2=", "reward_model": {"answer": 4}},
    {"prompt": {"role": "User", "content": "2+2="}, "reward_model": {"ground_truth": "4"}},
    {"extra_info": {"question": "2+2=", "answer": "4"}},
    {"\ufeffprompt": "2+2=", "ground_truth": "4"},
]


@pytest.mark.parametrize("row", WAYS)
def test_other_names_become_verls(tmp_path, row):
    report, result = fixed(tmp_path, row)
    assert result[0]["prompt"] == [{"role": "user", "content": "2+2="}]
    assert result[0]["reward_model"] == {"style": "rule", "ground_truth": "4"}
    assert result[0]["data_source"] == "in"
    assert report.written == 1
    assert "DATA-FIX-GUESSED" in {f.code for f in report.findings}


def test_right_rows_stay_and_other_fields_are_kept(tmp_path):
    row = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"split": "test", "index": 7, "answer": "a"},
    }
    report, result = fixed(tmp_path, {**row, "level": 3, "tags": ["x"]})
    assert {**result[0], "extra_info": None} == {**row, "extra_info": None}
    extra = result[0]["extra_info"]
    assert (extra["split"], extra["index"], extra["answer"]) == ("test", 7, "a")
    assert json.loads(extra["rest"]) == {"level": 3, "tags": ["x"]}
    assert {f.code for f in report.findings} == {"DATA-FIX-JSONL"}


def test_every_dropped_line_is_named(tmp_path):
    good = {"question": "q", "answer": "a"}
    bad = [
        b"{\n",
        b"\xff\n",
        b"[1]\n",
        {"question": " ", "answer": "a"},
        {"question": "q"},
        {"question": "q", "answer": None},
        b'{"question": "\\ud800", "answer": "a"}\n',
    ]
    report, result = fixed(tmp_path, good, *bad, b"\n", good)
    assert len(result) == 2
    assert report.dropped == len(bad)
    log = (tmp_path / "out.jsonl.dropped").read_text()
    for number in range(2, 2 + len(bad)):
        assert f"line {number}: dropped, " in log
        assert f"line {number}: dropped, " in str(report)
    assert "no ground truth" in log
    assert "DATA-FIX-DROPPED" in {f.code for f in report.findings}


def test_nothing_is_written_when_nothing_is_left(tmp_path):
    report, result = fixed(tmp_path, b"{\n")
    assert result == []
    assert {f.code for f in report.findings} == {"DATA-FIX-REFUSED"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.jsonl"]


def test_the_input_is_never_overwritten(tmp_path):
    path = write(tmp_path, {"question": "q", "answer": "a"})
    before = path.read_bytes()
    (tmp_path / "soft.jsonl").symlink_to(path)
    os.link(path, tmp_path / "hard.jsonl")
    (tmp_path / "folder").mkdir()
    (tmp_path / "way").symlink_to(tmp_path)
    for out in (
        path,
        tmp_path / "soft.jsonl",
        tmp_path / "hard.jsonl",
        tmp_path / "way/in.jsonl",
        tmp_path / "folder/../in.jsonl",
    ):
        assert {f.code for f in data.fix(path, out).findings} == {"DATA-FIX-REFUSED"}
    named = write(tmp_path, {"question": "q", "answer": "a"}, name="x.jsonl.dropped")
    assert {f.code for f in data.fix(named, tmp_path / "x.jsonl").findings} == {"DATA-FIX-REFUSED"}
    assert {f.code for f in data.fix(path, tmp_path / "folder").findings} == {"DATA-FIX-REFUSED"}
    assert {f.code for f in data.fix(path, tmp_path / "none/out.jsonl").findings} == {"DATA-FIX-REFUSED"}
    assert {f.code for f in data.fix(tmp_path / "gone", tmp_path / "o.jsonl").findings} == {"DATA-FIX-REFUSED"}
    assert path.read_bytes() == before


def test_a_failing_write_leaves_nothing(tmp_path, monkeypatch):
    path = write(tmp_path, {"question": "q", "answer": "a"})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(data_fix, "_synced", full)
    report = data.fix(path, tmp_path / "out.jsonl")
    assert "No space left" in report.findings[0].message
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.jsonl"]


@pytest.mark.parametrize("name", ["out.parquet", "out.PARQUET", "out.pq"])
def test_without_pyarrow_no_parquet_is_promised(tmp_path, monkeypatch, name):
    """Before any work, and nothing of another name is written in its place."""
    path = write(tmp_path, {"question": "q", "answer": "a"})
    monkeypatch.setattr(data_fix, "_write", lambda *_, **__: pytest.fail("it began"))
    (refused,) = data.fix(path, tmp_path / name).findings
    assert (refused.code, refused.severity) == ("DATA-FIX-REFUSED", "fail")
    assert "needs pyarrow" in refused.message
    assert refused.fix == f"--fix {tmp_path}/out.jsonl, or the same command in the image, which has pyarrow"
    assert [p.name for p in tmp_path.iterdir()] == ["in.jsonl"]


def test_without_pyarrow_it_says_so(tmp_path):
    path = write(tmp_path, {"question": "q", "answer": "a"})
    report = data.fix(path, tmp_path / "out")
    assert {"DATA-FIX-JSONL"} <= {f.code for f in report.findings}
    assert f"{tmp_path}/out as JSONL" in str(report)
    parquet = write(tmp_path, b"PAR1xxxx", name="a.parquet")
    assert "needs pyarrow" in data.fix(parquet, tmp_path / "b.jsonl").findings[0].message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda x: (
        st.lists(x, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "from", "x", "answer"]), x, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["prompt", "question", "answer", "reward_model", "extra_info", "rest", "x "]), JSON
        ),
        max_size=5,
    ),
    st.binary(max_size=20),
)
def test_any_rows_are_kept_or_named(tmp_path, rows, noise):
    raw = noise.replace(b"\n", b"") + b"\n"
    report, result = fixed(tmp_path, *rows, raw)
    for name in ("out.jsonl", "out.jsonl.dropped"):
        (tmp_path / name).unlink(missing_ok=True)
    lines = len(rows) + bool(raw.strip())
    assert lines == (report.written + report.dropped if result or report.dropped else lines)


def test_parquet_with_pyarrow(tmp_path):
    pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"question": f"q{i}", "answer": f"#### {i}", "level": i, "note": "n"} for i in range(3000)]
    path = write(tmp_path, *rows, {"question": "q", "answer": "1", "late": "text"})
    report = data.fix(path, tmp_path / "out.parquet")
    assert report.written == 3001
    table = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert table[5]["prompt"] == [{"role": "user", "content": "q5"}]
    assert table[5]["reward_model"] == {"style": "rule", "ground_truth": "5"}
    assert json.loads(table[5]["extra_info"]["rest"]) == {"level": 5}
    assert json.loads(table[3000]["extra_info"]["rest"]) == {"late": "text"}
    assert not [f for f in data.check([tmp_path / "out.parquet"], CONTEXT) if f.severity == "fail"]
    again = data.fix(tmp_path / "out.parquet", tmp_path / "again.parquet")
    assert (again.written, again.dropped) == (3001, 0)
