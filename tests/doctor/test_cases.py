"""Every shared case through the command, in this process: exit code and words are as its verdict says."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from verldoctor.cli import main

HERE = Path(__file__).with_name("cases")
CASES = tomllib.loads((HERE / "cases.toml").read_text(encoding="utf-8"))["case"]


@pytest.mark.parametrize("case", CASES, ids=[case["file"] for case in CASES])
def test_case_is_judged_as_its_verdict_says(
    case: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(HERE)
    code = main([case["kind"], case["file"]])
    said = capsys.readouterr().out
    for name in case.get("must_name", []):
        assert name.lower() in said.lower()
    assert "DOCTOR-BUG" not in said
    if case["verdict"] == "fail":
        assert code == 1
    elif case["verdict"] == "warn":
        assert code == 0
        assert "WARN" in said
    elif case["verdict"] == "pass":
        assert code == 0
        assert "0 fail, 0 warn, 0 unknown" in said
    else:
        assert case["verdict"] == "explained"
        assert "fix:" in said
