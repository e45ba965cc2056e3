"""Training data: verl's fields pass; each fault is found with its line, whatever the file is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verldoctor import data, data_parquet
from verldoctor.context import Context
from verldoctor.finding import rules

CASES = Path(__file__).with_name("cases") / "data"
STACK = {"torch": "2.3.1+cu121", "transformers": "4.41.2", "verl": "0.2.0.post2"}


def context(verl="0.9.0", **env):
    """A verl that reads JSONL, so that the rows alone decide; sources are checked for v0.2 only."""
    return Context(env=env, stack={**STACK, "verl": verl})


def row(**changes):
    base = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "2+2="}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"split": "train", "index": 0},
    }
    return {key: value for key, value in {**base, **changes}.items() if value is not Ellipsis}


def write(tmp_path, *rows, name="a.jsonl"):
    path = tmp_path / name
    path.write_bytes(b"".join(r if isinstance(r, bytes) else json.dumps(r).encode() + b"\n" for r in rows))
    return path


def codes(path, verl="0.9.0", **env):
    return {f.code for f in data.check([path], context(verl, **env))}


def text(path, verl="0.2.0.post2"):
    return "\n".join(
        f"{f.subject} {f.message} {f.measured} {f.right} {f.fix}" for f in data.check([path], context(verl))
    )


def test_case_blank_in_name():
    found = data.check([CASES / "a1.jsonl"], context("0.2.0.post2"))
    assert any(f.severity == "fail" for f in found)
    assert "input " in text(CASES / "a1.jsonl")
    assert "prompt" in text(CASES / "a1.jsonl")


def test_case_jsonl_and_case_parquet():
    assert codes(CASES / "a2.jsonl", "0.2.0.post2") == {"DATA-JSONL"}
    assert rules("data")["DATA-JSONL"].severity == "warn"
    assert "parquet" in text(CASES / "a2.jsonl")
    assert codes(CASES / "a2.jsonl", "0.9.0") == set()
    assert codes(CASES / "a3.parquet", "0.2.0.post2") == set()


PROMPTS = ("question", "input", "instruction", "messages", "Query")
ANSWERS = ("answer", "output", "response", "Solution")
TALK = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
FAULTS = [
    (row(prompt=..., Prompt=[{"role": "user", "content": "x"}]), "DATA-NAME-CASE", "prompt"),
    (row(data_source=..., DataSource="openai/gsm8k"), "DATA-NAME-CASE", "data_source"),
    (row(**{"data_source": ..., "data-source": "openai/gsm8k"}), "DATA-NAME-CASE", "data_source"),
    (row(**{"data_source": ..., " data_source": "openai/gsm8k"}), "DATA-NAME-BLANK", " data_source"),
    (row(**{"prompt": ..., "prompt\t": []}), "DATA-NAME-BLANK", "prompt"),
    (row(**{"prompt": ..., "\ufeffprompt": []}), "DATA-NAME-BLANK", "prompt"),
    *((row(**{"prompt": ..., name: "x"}), "DATA-NAME-OTHER", "prompt") for name in PROMPTS),
    *((row(**{"reward_model": ..., name: "4"}), "DATA-NAME-OTHER", "reward_model.ground_truth") for name in ANSWERS),
    (row(reward_model={"style": "rule", "answer": "4"}), "DATA-NAME-OTHER", "reward_model.ground_truth"),
    (row(reward_model={"style": "rule", "Ground_Truth": "4"}), "DATA-NAME-OTHER", "reward_model.ground_truth"),
    (row(prompt=[{"from": "human", "value": "x"}]), "DATA-NAME-OTHER", "prompt[].role"),
    (row(prompt=...), "DATA-MISSING", "prompt"),
    (row(data_source=...), "DATA-MISSING", "data_source"),
    (row(reward_model=...), "DATA-MISSING", "reward_model"),
    (row(reward_model={"style": "rule"}), "DATA-MISSING", "ground_truth"),
    (row(prompt=[{"role": "user"}]), "DATA-MISSING", "content"),
    (row(ability=...), "DATA-OPTIONAL", "ability"),
    (row(extra_info=...), "DATA-OPTIONAL", "extra_info"),
    (row(ability=..., Ability="math"), "DATA-OPTIONAL-NAME", "ability"),
    (row(prompt=None), "DATA-NULL", "prompt"),
    (row(data_source=None), "DATA-NULL", "data_source"),
    (row(reward_model={"style": "rule", "ground_truth": None}), "DATA-NULL", "ground_truth"),
    (row(reward_model={"style": "rule", "ground_truth": float("nan")}), "DATA-NULL", "ground_truth"),
    (row(reward_model=None), "DATA-NULL", "reward_model"),
    (row(extra_info=None), "DATA-NULL", "extra_info"),
    (row(prompt=[{"role": "user", "content": None}]), "DATA-NULL", "content"),
    (row(prompt=[{"role": None, "content": "x"}]), "DATA-NULL", "role"),
    (row(prompt=[{"role": "user", "content": " \n"}]), "DATA-BLANK", "content"),
    (row(prompt=[{"role": "user", "content": "\u3000"}]), "DATA-BLANK", "content"),
    (row(reward_model={"style": "rule", "ground_truth": ""}), "DATA-BLANK", "ground_truth"),
    (row(data_source=" "), "DATA-BLANK", "data_source"),
    (row(prompt="2+2="), "DATA-PROMPT-TYPE", "role"),
    (row(prompt={"role": "user", "content": "x"}), "DATA-PROMPT-TYPE", "object"),
    (row(prompt=["x"]), "DATA-PROMPT-TYPE", "list of string"),
    (row(prompt=[]), "DATA-PROMPT-EMPTY", "empty"),
    (row(prompt=[{"role": "human", "content": "x"}]), "DATA-ROLE", "user"),
    (row(prompt=[{"role": "User", "content": "x"}]), "DATA-ROLE", "user"),
    (row(prompt=[{"role": 1, "content": "x"}]), "DATA-TYPE", "role"),
    (row(prompt=[{"role": "user", "content": [{"type": "text", "text": "x"}]}]), "DATA-TYPE", "content"),
    (row(data_source=1), "DATA-TYPE", "data_source"),
    (row(reward_model="4"), "DATA-TYPE", "reward_model"),
    (row(extra_info="x"), "DATA-TYPE", "extra_info"),
    (
        row(prompt=TALK),
        "DATA-LAST-ASSISTANT",
        "assistant",
    ),
    (row(prompt=[{"role": "user", "content": "word " * 1000}]), "DATA-LONG", "512"),
    (row(reward_model={"ground_truth": "4"}), "DATA-STYLE", "style"),
    (row(reward_model={"style": "rule", "ground_truth": 4}), "DATA-TRUTH-TYPE", "number"),
    (row(prompt=[{"role": "user", "content": "\ud800"}]), "DATA-SURROGATE", "surrogate"),
    ({"prompt": "q", "response": "a"}, "DATA-SFT", "response"),
    ({"extra_info": {"question": "q", "answer": "a"}}, "DATA-SFT", "extra_info.question"),
    ({"prompt": "q", "chosen": "a", "rejected": "b"}, "DATA-RM", "rejected"),
    ([1], "DATA-NOT-OBJECT", "list"),
    (b'{"data_source": "a\n', "DATA-NOT-JSON", "JSON"),
    (b'{"a": "\xff\xfe"}\n', "DATA-UTF8", "UTF-8"),
    (b'{"a": ' + b"[" * 200_000 + b"\n", "DATA-DEEP", "nested"),
]


@pytest.mark.parametrize(("bad", "code", "says"), FAULTS)
def test_each_fault_of_a_row(tmp_path, bad, code, says):
    good = [row(extra_info={"split": "train", "index": i}) for i in range(30)]
    path = write(tmp_path, *good, bad, *good)
    found = [f for f in data.check([path], context()) if f.code == code]
    assert found, codes(path)
    assert found[0].subject.endswith(":31")
    assert says.strip() in f"{found[0].message} {found[0].measured} {found[0].right}"
    assert codes(write(tmp_path, *good, name="good.jsonl")) == set()


def test_good_variants_pass(tmp_path):
    long_talk = [{"role": r, "content": "x"} for r in ("system", "user", "assistant", "user", "tool")]
    variants = [
        row(prompt=long_talk), row(prompt=[{"role": "system", "content": ""}, {"role": "user", "content": "x"}]),
        row(prompt=[{"role": "user", "content": '数学 😀 \\ " \n'}]), row(extra_info={}), row(images=[]),
        row(prompt=[{"role": "user", "content": "x", "name": None}]), row(extra_info={"index": 1, "note": None}),
    ]  # fmt: skip
    assert codes(write(tmp_path, *variants)) == set()
    assert (
        codes(write(tmp_path, b"\n", json.dumps(row()).encode() + b"\r\n", b"\r\n", json.dumps(row()).encode()))
        == set()
    )
    assert (
        codes(
            write(
                tmp_path,
                row(data_source="codecontests", reward_model={"style": "rule", "ground_truth": {"inputs": []}}),
            )
        )
        == set()
    )


def test_data_source_without_score_function(tmp_path):
    path = write(tmp_path, row(data_source="my/own"))
    assert codes(path, "0.2.0.post2") == {"DATA-SOURCE", "DATA-JSONL"}
    assert codes(path, "0.9.0") == set()


def test_mixed_types(tmp_path):
    odd = row(extra_info={"split": "train", "index": "1"})
    assert codes(write(tmp_path, row(), odd)) == {"DATA-MIXED"}
    assert codes(write(tmp_path, row(), row(extra_info={"split": None, "index": 1.5}))) == set()


def test_length_limit_from_the_environment(tmp_path):
    path = write(tmp_path, row(prompt=[{"role": "user", "content": "word " * 1000}]))
    assert codes(path, VERLDOCTOR_MAX_PROMPT_LENGTH="2048") == set()
    assert codes(path, VERLDOCTOR_MAX_PROMPT_LENGTH="much") == {"DATA-LONG"}


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "DATA-EMPTY"), (b" \n\n", "DATA-EMPTY"), (b"\x1f\x8b\x08" + b"x" * 99, "DATA-PACKED"),
        (b"version https://git-lfs.github.com/spec/v1\noid x\n", "DATA-LFS"), (b"\x7fELF\0\0\1", "DATA-BINARY"),
        ('{"a": 1}'.encode("utf-16"), "DATA-ENCODING"), (b'[{"prompt": 1},\n{"prompt": 2}]', "DATA-ARRAY"),
        (b"question,answer\n1,2\n", "DATA-NO-OBJECT"), (b"PAR1xxxx", "DATA-PARQUET-BROKEN"),
        (b"PAR1" + b"\xff" * 40 + b"\x28\0\0\0PAR1", "DATA-PARQUET-BROKEN"),
        (b"PAR1" + b"\xff" * 40 + b"\xff\xff\xff\xffPAR1", "DATA-PARQUET-BROKEN"),
    ],
)  # fmt: skip
def test_files_that_hold_no_rows(tmp_path, raw, code):
    assert codes(write(tmp_path, raw)) == {code}


def test_byte_order_mark(tmp_path):
    path = write(tmp_path, b"\xef\xbb\xbf", row(), row())
    assert codes(path) == {"DATA-BOM"}


def test_directories_links_and_devices(tmp_path):
    assert codes(tmp_path) == {"DATA-NONE"}
    write(tmp_path, row(), name="b.jsonl")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "gone.jsonl").symlink_to("nowhere.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert codes(tmp_path) == {"DATA-UNREADABLE"}
    (tmp_path / "self.jsonl").symlink_to("self.jsonl")
    assert codes(tmp_path / "self.jsonl") == {"DATA-UNREADABLE"}


def test_nothing_is_echoed_raw_and_the_list_is_bounded(tmp_path):
    rows = [{f"input\x1b[2J{i} ": "x", "prompt ": i} for i in range(300)]
    path = write(tmp_path, {"prompt\x1b]0;x\x07 ": 1}, row(prompt=[{"role": "\x1b[31mhuman", "content": "x"}]), *rows)
    assert "\x1b" not in text(path)
    assert "\x07" not in text(path)
    many = write(tmp_path, *(row(data_source=f"s{i}") for i in range(300)))
    found = data.check([many], context("0.2.0.post2"))
    assert len(found) < 110
    assert "DATA-MORE" in {f.code for f in found}


def test_truncated_parquet(tmp_path):
    raw = (CASES / "a3.parquet").read_bytes()
    for size in (4, 100, len(raw) - 4, len(raw) - 1):
        assert codes(write(tmp_path, raw[:size])) == {"DATA-PARQUET-BROKEN"}


def test_footer_without_pyarrow(monkeypatch):
    monkeypatch.setattr(data, "has_pyarrow", lambda: False)
    with (CASES / "a3.parquet").open("rb") as stream:
        footer = data_parquet.read_footer(stream)
    assert footer.rows == 2
    assert footer.row["prompt"] == [{"role": "user", "content": "x"}]
    assert footer.row["reward_model"] == {"style": "x", "ground_truth": "x"}
    assert codes(CASES / "a3.parquet") == set()
    bad = data_parquet.Footer(
        3, {**footer.row, "prompt": "x"}, {"data_source": 2}, frozenset({"prompt.list.element.content"}), {}
    )
    found = data_parquet.judge_footer(bad, data.Judge())
    assert {p.code for p in found.counts} == {"DATA-PROMPT-TYPE", "DATA-NULL"}
    good = data_parquet.judge_footer(footer, data.Judge())
    assert not good.counts


def test_features_of_newer_datasets():
    def footer(table):
        return data_parquet.Footer(1, {}, {}, frozenset(), {"huggingface": table})

    new = {
        "info": {"features": {"prompt": {"feature": {"role": {"dtype": "string", "_type": "Value"}}, "_type": "List"}}}
    }
    old = {"info": {"features": {"prompt": [{"role": {"dtype": "string", "_type": "Value"}}]}}}
    assert data_parquet.new_features(footer(json.dumps(new).encode())) == ["List"]
    assert data_parquet.new_features(footer(json.dumps(old).encode())) == []
    assert data_parquet.new_features(footer(b"\xff{")) == []
    assert data_parquet.new_features(footer(b"[" * 100_000)) == []


@given(st.integers(0, 4928), st.binary(min_size=1, max_size=4))
def test_damaged_parquet_never_raises(tmp_path, place, patch):
    raw = bytearray((CASES / "a3.parquet").read_bytes())
    raw[place : place + len(patch)] = patch
    data.check([write(tmp_path, bytes(raw))], context())


@given(st.binary(max_size=200), st.sampled_from([b"", b"{", b'{"prompt": [', b"\xef\xbb\xbf{", b"PAR1", b'{"a":1}\n']))
def test_garbage_never_raises(tmp_path, raw, head):
    for finding in data.check([write(tmp_path, head + raw)], context()):
        assert finding.message.isprintable()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(["prompt", "data_source", "reward_model", "extra_info", "ability", "prompt ", "answer"]), JSON
    ),
    JSON,
)
def test_any_json_is_judged(tmp_path, table, other):
    data.check(
        [write(tmp_path, table, other, row(prompt=[other]), row(reward_model={"ground_truth": other}))], context()
    )


def test_pyarrow_reads_the_rows(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [row() for _ in range(5)] + [row(prompt=[{"role": "user", "content": " "}])]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert codes(tmp_path / "a.parquet") == {"DATA-BLANK"}
    parquet.write_table(pyarrow.Table.from_pylist(rows[:5]), tmp_path / "a.parquet")
    assert codes(tmp_path / "a.parquet") == set()
    parquet.write_table(pyarrow.Table.from_pylist(rows[:5])[:0], tmp_path / "a.parquet")
    assert codes(tmp_path / "a.parquet") == {"DATA-EMPTY"}
    parquet.write_table(pyarrow.Table.from_pylist([{"question": "q", "answer": b"x"}]), tmp_path / "a.parquet")
    assert "DATA-NAME-OTHER" in codes(tmp_path / "a.parquet")


def test_schema_agrees_with_pyarrow(tmp_path):
    """The made-up row of the footer has the types that pyarrow's rows have."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [
        {"a": [1], "b": {"c": [["x"]], "d": [{"e": b"x", "f": True}]}, "g": 1.5, "h": "x", "i": {"j": {"k": ["x"]}}}
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    with (tmp_path / "a.parquet").open("rb") as stream:
        assert data_parquet.read_footer(stream).row == {
            "a": [0],
            "b": {"c": [["x"]], "d": [{"e": b"x", "f": True}]},
            "g": 0,
            "h": "x",
            "i": {"j": {"k": ["x"]}},
        }
