"""The check `devices`: each rule by one dump that breaks it and one that does not; CUDA_VISIBLE_DEVICES; bad input."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verldoctor import batches, devices, visible
from verldoctor.context import Context
from verldoctor.finding import Finding, rules


def cuda(value: str, gpus: int = 4, **more: Any) -> dict[str, Any]:
    return {"env": {"CUDA_VISIBLE_DEVICES": value}, "gpus": gpus, **more}


GOOD = cuda("0,1", nproc_per_node=2)
BATCH = {"gpus": 8, "micro_batch": 3, "train_batch": 24, "n": 1}
PLACED = {"gpus": 8, "placement": {"actor": [0, 1, 2, 3], "critic": [4, 5, 6, 7]}}

BOTH: dict[str, tuple[Any, Any]] = {
    "DEVICES-EMPTY": (cuda(""), GOOD),
    "DEVICES-DUPLICATE": (cuda("1,1"), GOOD),
    "DEVICES-RANGE": (cuda("0,9"), GOOD),
    "DEVICES-SYNTAX": (cuda("0,one"), GOOD),
    "DEVICES-TRAILING": (cuda("0;1"), GOOD),
    "DEVICES-MIXED": (cuda("0,GPU-1234"), cuda("GPU-1234,GPU-5678")),
    "DEVICES-MIG": (cuda("MIG-12,MIG-34"), cuda("MIG-12")),
    "DEVICES-NPROC": ({"gpus": 4, "nproc_per_node": 8}, {"gpus": 4, "nproc_per_node": 4}),
    "DEVICES-IDLE": ({"gpus": 4, "nproc_per_node": 2}, {"gpus": 4, "nproc_per_node": "gpu"}),
    "DEVICES-SP": ({"gpus": 8, "sp": 3}, {"gpus": 8, "sp": 4, "tp": 2}),
    "DEVICES-TRAIN-BATCH": ({"gpus": 8, "train_batch": 20, "n": 1}, {"gpus": 8, "train_batch": 20, "n": 2}),
    "DEVICES-MINI-ZERO": (
        {"gpus": 8, "mini_batch": 4, "train_batch": 8},
        {"gpus": 8, "mini_batch": 4, "train_batch": 8, "n": 2},
    ),
    "DEVICES-MINI": ({"gpus": 8, "mini_batch": 12, "train_batch": 24}, {"gpus": 8, "mini_batch": 8, "train_batch": 24}),
    "DEVICES-MICRO": ({**BATCH, "train_batch": 8}, BATCH),
    "DEVICES-MICRO-TOTAL": (
        {"gpus": 8, "ppo_micro_batch_size": 4, "ppo_mini_batch_size": 32},
        {"gpus": 8, "ppo_micro_batch_size": 16, "ppo_mini_batch_size": 32},
    ),
    "DEVICES-MICRO-BOTH": ({**BATCH, "ppo_micro_batch_size": 24}, BATCH),
    "DEVICES-GROUP": ({"gpus": 4, "placement": {"actor": [0, 1, 1]}}, PLACED),
    "DEVICES-OVERLAP": ({"gpus": 8, "placement": {"actor": [0, 1, 2], "critic": [2, 3]}}, PLACED),
    "DEVICES-COLOCATED": ({"gpus": 2, "placement": {"actor": [0, 1], "critic": [1, 0]}}, PLACED),
    "DEVICES-HYBRID": (
        {"gpus": 4, "placement": {"actor": [0, 1], "rollout": [2, 3]}},
        {"gpus": 4, "placement": {"actor": [0, 1], "rollout": [0, 1]}},
    ),
    "DEVICES-POOL": ({"gpus": 8, "pools": {"a": [8], "b": [4]}}, {"gpus": 8, "pools": {"a": [8, 8]}, "nnodes": 2}),
    "DEVICES-MAPPING": (
        {"gpus": 8, "pools": {"a": [8]}, "mapping": {"critic": "b"}},
        {"gpus": 8, "pools": {"a": [8]}, "mapping": {"critic": "a"}},
    ),
    "DEVICES-NUMBER": ({"gpus": 8, "micro_batch": 0}, {"gpus": 0}),  # of a machine; a run: see below
    "DEVICES-VALUE": ({"gpus": "many"}, {"gpus": "8"}),
    "DEVICES-DUMP": ({"colour": "red"}, {"gpus": 8}),
}


def judged(tmp_path: Path, table: Any) -> list[Finding]:
    file = tmp_path / "devices.json"
    file.write_text(table if isinstance(table, str) else json.dumps(table))
    return devices.check([file], Context(env={}))


def codes(tmp_path: Path, table: Any) -> list[str]:
    return [finding.code for finding in judged(tmp_path, table)]


@pytest.mark.parametrize("code", BOTH)
def test_each_rule_speaks_where_it_should_and_is_silent_where_not(code: str, tmp_path: Path) -> None:
    bad, good = BOTH[code]
    assert code in codes(tmp_path, bad)
    assert code not in codes(tmp_path, good)


def test_every_rule_has_a_case_both_ways() -> None:
    assert set(rules("devices")) == {*BOTH, "DEVICES-NONE"}


@pytest.mark.parametrize(
    ("value", "gpus", "count", "rule"),
    [
        (None, 4, 4, ""),
        ("2,3", 4, 2, ""),  # a start other than 0 is fine
        (" 0 , 1", 4, 2, ""),
        ("3,1,", 4, 2, ""),
        ("-1", 4, 0, "EMPTY"),
        ("NoDevFiles", 4, 0, "EMPTY"),
        ("all", 4, 0, "EMPTY"),
        ("-1", 0, 0, ""),  # no GPU to hide
        ("0,-1,2", 4, 1, "RANGE"),
        ("0,1,99999999999", None, 2, "RANGE"),
        ("5", None, 1, ""),
        ("0,00", 4, 0, "DUPLICATE"),
        ("0,-1,0", 4, 1, "RANGE"),  # the list ends before the repetition
        ("0;1", 4, 1, "TRAILING"),
        ("1gpu2,2ampere", 4, 2, "TRAILING"),
        ("GPU-aa, GPU-bb", 4, 1, "SYNTAX"),  # a blank ends a list of UUIDs
        ("GPU-aa,GPU-AA", 4, 0, "DUPLICATE"),
        ("1,,2", 4, 1, "SYNTAX"),
        ("0,one", 4, 1, "SYNTAX"),
        ("GPU-aaaa,MIG-bb", 4, 1, "MIXED"),
        ("MIG-GPU-aaaa/1/0", 4, 1, ""),
    ],
)
def test_visible_devices_as_the_driver_reads_them(value: str | None, gpus: int | None, count: int, rule: str) -> None:
    seen = visible.read(value, gpus)
    assert seen.count == count
    assert [finding.code for finding in seen.findings] == [f"DEVICES-{rule}"] * bool(rule)


@pytest.mark.parametrize(("value", "count"), [("GPU-aa11", 1), ("GPU-aa", 0), ("GPU-cc", 0), ("GPU-bb22,GPU-aa1", 2)])
def test_uuids_may_be_shortened_as_long_as_they_name_one(value: str, count: int) -> None:
    assert visible.read(value, 3, ["GPU-aa11", "GPU-aa22", "GPU-bb22"]).count == count


def torch_reads(value: str) -> list[str]:
    """What torch 2.3.1's parser keeps: digits as strtoul reads them up to a negative; nothing if one is repeated."""
    kept: list[str] = []
    for entry in value.split(","):
        digits = re.match(r"[+-]?\d+", entry.strip())
        number = int(digits[0]) if digits else -1
        if str(number) in kept:
            return []
        if number < 0:
            break
        kept.append(str(number))
    return kept


@given(st.lists(st.sampled_from(["0", "1", "2", "3", " 1", "-1", "x", "", "2b", "03"]), min_size=1, max_size=5))
def test_indices_are_counted_as_torch_counts_them(entries: list[str]) -> None:
    value = ",".join(entries)
    assert visible.read(value, 8).count == len(torch_reads(value))


def test_the_fix_names_as_many_gpus_as_were_asked_for() -> None:
    assert visible.read("0,9", 4).findings[0].right == "0,1"
    assert visible.read("2,2", 4).findings[0].right == "2"


@pytest.mark.parametrize(
    ("table", "silent"),
    [
        ({"gpus": 8, "train_batch": 8, "n": 3, "micro_batch": 3}, True),  # mini batches count prompts, n answers each
        ({"gpus": 8, "train_batch": 16, "micro_batch": 4, "sp": 2}, True),  # 4 data-parallel ranks of 4
        ({"gpus": 8, "train_batch": 16, "micro_batch": 4, "sp": 1}, False),
        ({"gpus": 8, "train_batch": 16, "micro_batch": 4, "use_dynamic_bsz": True}, True),
        ({"gpus": 4, "nnodes": 2, "train_batch": 12}, False),
        ({"gpus": 8, "n_gpus_per_node": 8, "train_batch_size": 1024, "ppo_mini_batch_size": 256}, True),
        ({"gpus": 8, "train_batch": 1024, "mini_batch": 384}, False),  # 1024 = 2 x 384 + 256
        ({"gpus": 8, "train_batch": 8, "critic": {"ppo_mini_batch_size": 8, "micro_batch": 2}}, False),
        ({"gpus": 8, "train_batch": 8, "critic": {"ppo_mini_batch_size": 8, "micro_batch": 1}}, True),
    ],
)
def test_batches_by_verls_own_arithmetic(table: dict[str, Any], silent: bool, tmp_path: Path) -> None:  # noqa: FBT001
    assert (codes(tmp_path, table) == []) is silent


def test_the_batch_is_split_over_the_group_of_each_role(tmp_path: Path) -> None:
    table = {"gpus": 8, "train_batch": 8, "placement": {"actor": [0, 1, 2, 3], "critic": [4, 5, 6]}}
    found = judged(tmp_path, table)
    assert [finding.code for finding in found] == ["DEVICES-TRAIN-BATCH"]
    assert "critic" in found[0].message


def test_sharing_gpus_says_what_it_costs(tmp_path: Path) -> None:
    table = {"gpus": 4, "placement": {key: [0, 1, 2, 3] for key in ("actor", "rollout", "critic", "reference")}}
    found = judged(tmp_path, table)
    assert [finding.code for finding in found] == ["DEVICES-COLOCATED"]
    assert "34/4 bytes a parameter" in found[0].message  # 16 + 16 + 2


def test_live_and_dumped_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from verldoctor import machine

    assert [finding.code for finding in devices.check([], Context(env={}))] in (["DEVICES-NONE"], [])
    rows = [{"uuid": "GPU-aa"}, {"uuid": "GPU-bb"}]
    monkeypatch.setattr(machine, "facts", lambda env: {"gpus": 2, "smi": rows})
    context = Context(env={"CUDA_VISIBLE_DEVICES": "0,2", "LOCAL_WORLD_SIZE": "2"})
    live = [finding.code for finding in devices.check([], context)]
    assert live == ["DEVICES-RANGE", "DEVICES-NPROC"]
    assert codes(tmp_path, devices.dump(context)) == live


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000, "\0"])
def test_nonsense_is_an_unknown_finding(content: str, tmp_path: Path) -> None:
    assert {finding.severity for finding in judged(tmp_path, content)} == {"unknown"}


def test_escape_codes_are_shown_not_sent(tmp_path: Path) -> None:
    table = cuda("0,\x1b[31m", placement={"\x1b[2Jactor": "x"}, pools={"\x1b": [1]}, mapping={"\x1b": "\x1b]"})
    assert all("\x1b" not in f"{finding}" for finding in judged(tmp_path, table))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(0, 9) | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
KEYS = sorted(devices._OTHERS.union(*devices._ALIASES.values()))


@given(st.dictionaries(st.sampled_from(KEYS), VALUES))
def test_no_dump_of_known_keys_breaks_the_check(table: dict[str, Any]) -> None:
    assert all(isinstance(finding, Finding) for finding in devices.judge(table, "x"))


@given(st.text(alphabet="0123456789,-GPUMIG abc\x1b", max_size=40), st.none() | st.integers(0, 9))
def test_no_list_breaks_the_reader_and_it_never_sees_more_than_there_are(value: str, gpus: int | None) -> None:
    seen = visible.read(value, gpus)
    assert seen.count is not None
    if gpus is not None and not value.startswith(("GPU-", "MIG-")):
        assert 0 <= seen.count <= gpus


@given(st.integers(1, 8), st.integers(1, 64), st.integers(1, 16), st.integers(1, 4), st.integers(1, 4))
def test_silence_means_that_verls_assertions_hold(dp: int, mini: int, micro: int, sp: int, n: int) -> None:
    role = batches.Role("actor", mini, micro, None, sp, n, dynamic=False)
    if not list(batches.judge(role, mini, dp * sp, "x")):
        per_gpu = mini * n // dp
        assert per_gpu % micro == 0
        assert per_gpu // micro >= 1
        assert mini * n % dp == 0


def test_a_run_needs_a_gpu_and_a_machine_does_not() -> None:
    table: dict[str, Any] = {"gpus": 0, "train_batch": 24, "micro_batch": 3}
    assert "DEVICES-NUMBER" in {finding.code for finding in devices.judge(table, "x")}
    assert "DEVICES-NUMBER" not in {finding.code for finding in devices.judge({"gpus": 0}, "x")}


@pytest.mark.parametrize("key", ["placement", "pools", "mapping"])
def test_what_is_no_object_of_roles_is_not_passed_over(key: str) -> None:
    assert "DEVICES-VALUE" in {finding.code for finding in devices.judge({"gpus": 8, key: "all"}, "x")}
    assert not {finding.code for finding in devices.judge({"gpus": 8, key: None}, "x")}
