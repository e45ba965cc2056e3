"""Every case of tests/cases comes out with its verdict; what the resolver answers is recorded here, from a real run."""

import tomllib
from pathlib import Path

import pytest

from support.fake_uv import FakeUv
from verlstack import pins
from verlstack.cache import Cache
from verlstack.check import run
from verlstack.progress import Silent
from verlstack.workshop import Workshop

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "cases"
TABLE = tomllib.loads((CASES / "cases.toml").read_text())["case"]
TORCH = ("torch", "2.3.1", "2024-06-05")
TRANSFORMERS = ("transformers", "4.41.2", "2024-05-30")


def lines(*extra):
    return frozenset({"torch==2.3.1", "transformers==4.41.2", *extra})


UV = FakeUv(
    answers={
        lines("vllm<=0.6.3"): [TORCH, TRANSFORMERS, ("vllm", "0.2.2", "2023-11-19")],
        frozenset({"vllm<=0.6.3"}): [("vllm", "0.6.3", "2024-10-14")],
        lines("peft==0.21.2"): [TORCH, TRANSFORMERS, ("peft", "0.21.2", "")],
        lines("peft==0.11.1"): [TORCH, TRANSFORMERS, ("peft", "0.11.1", "")],
        lines(): [TORCH, TRANSFORMERS],
        frozenset({"transformers==4.41.2"}): [TRANSFORMERS],
    },
    conflicts={
        lines("tensordict==0.5.0"): "cause: Because tensordict==0.5.0 depends on torch>=2.4.0 and you require "
        "torch==2.3.1, we can conclude that your requirements and tensordict==0.5.0 are incompatible.",
        lines("vllm==0.5.2"): "cause: Because vllm==0.5.2 depends on transformers>=4.42.4 and you require "
        "transformers==4.41.2, we can conclude that your requirements and vllm==0.5.2 are incompatible.",
    },
)


def report(target, tmp_path, uv):
    shop = Workshop(
        constraints=ROOT / "constraints",
        smoke_tests=ROOT / "smoke_tests",
        cache=Cache(tmp_path / "cache"),
        env={"HOME": str(tmp_path)},
        progress=Silent(),
        workers=1,
    )
    default = pins.load(ROOT / "constraints" / "stacks.toml", "cu121")
    return run.check(str(target), default, shop, tmp_path / "dist", uv)


def test_all_kinds_are_there():
    assert {case["kind"] for case in TABLE} == {"pins", "wheel", "dockerfile"}


@pytest.mark.parametrize("case", TABLE, ids=lambda c: f"{c['file']}-{c.get('line', 0)}")
def test_a_case(case, tmp_path):
    target = CASES / case["file"]
    if "line" in case:
        target = target.read_text().splitlines()[case["line"] - 1]
    found = report(target, tmp_path, UV)
    said = " ".join(f"{one.subject} {one.measured} {one.right} {one.why} {one.fix}" for one in found.findings).lower()
    if case["verdict"] == "pass":
        assert found.findings == ()
        assert found.exit_code == 0
    else:
        assert found.exit_code == 1
        assert [name for name in case["must_name"] if name.lower() not in said] == []
        assert all(one.why and one.source and one.fix and one.right for one in found.findings)


def test_each_fault_of_a_list_of_wheels_is_told_with_its_line(tmp_path):
    found = report(CASES / "wheels" / "names.txt", tmp_path, UV)
    assert {one.where.rpartition(":")[2] for one in found.findings} == {"1", "2", "3", "4"}


def test_the_second_time_nobody_is_asked(tmp_path):
    uv = FakeUv(answers=UV.answers)
    first = report(CASES / "pins" / "p04.in", tmp_path, uv)
    count = len(uv.asked)
    assert count
    assert report(CASES / "pins" / "p04.in", tmp_path, uv).findings == first.findings
    assert len(uv.asked) == count
