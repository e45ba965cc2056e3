"""The line on what was run: counted from the runs, and never more than that."""

import pytest

from support import smoke_report
from verlstack.smoke import said


def report(*runs, findings=()):
    return {"headline": "GPU: passed", "ok": True, "runs": list(runs), "doctor": [{"node": 0, "findings": findings}]}


def test_ranks_and_counts_are_those_of_the_runs():
    skipped = [smoke_report.result(), smoke_report.result(outcome="not run")]
    line = said.line(report(smoke_report.run(1, skipped), smoke_report.run(4, skipped)))
    assert line == "on CPU, ranks 1, 4: 2 passed, 0 failed, 2 not run"


def test_gpus_only_where_every_run_was_on_them():
    assert said.line(report(smoke_report.run(1, device="cuda"))).startswith("on GPUs, ranks 1:")
    mixed = report(smoke_report.run(1, device="cuda"), smoke_report.run(2))
    assert said.line(mixed).startswith("on CPU, ranks 1, 2:")


def test_what_verldoctor_found_is_told_though_the_tests_passed():
    findings = [
        {"code": code, "severity": severity} for code, severity in (("B", "fail"), ("A", "fail"), ("C", "warn"))
    ]
    assert said.line(report(smoke_report.run(), findings=findings)).endswith("; verldoctor found what fails: A, B")


@pytest.mark.parametrize("strange", [None, [], {}, {"runs": 1}, {"runs": [{}]}, {"runs": [1], "doctor": []}])
def test_a_strange_report_says_nothing(strange):
    assert said.line(strange) == "what was run is not told in a form that is known here"


def test_a_long_one_is_cut():
    findings = [{"code": "X" * 400, "severity": "fail"}]
    assert len(said.line(report(smoke_report.run(), findings=findings))) == 300
