"""The verb on the command line: what it prints, as text and as JSON, and with which exit code it ends."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from verlstack import cli
from verlstack.check.finding import Finding, Report
from verlstack.cli import check

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "cases"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("VERLSTACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(ROOT)


def run(capsys, *words):
    code = cli.main(["check", *map(str, words)])
    return code, capsys.readouterr()


def test_findings_say_where_what_and_what_to_do(capsys):
    code, out = run(capsys, CASES / "dockerfile" / "d02.Dockerfile")
    assert code == 1
    assert "FAIL    DOCKER-STUBS  LD_LIBRARY_PATH=" in out.out
    for word in ("where:", "so:", "right:", "why:", "fix:"):
        assert f"\n  {word}" in out.out
    assert "d02.Dockerfile:5" in out.out
    assert out.out.splitlines()[-1].endswith("(dockerfile, against cu121): it would break; 3 fail")


def test_what_an_earlier_report_has_is_counted_and_not_said_again(capsys):
    """As `verlstack pin` shows it: a line number that moved makes no finding new."""
    old = finding("OLD")
    now = Report(target="s", kind="stack", stack="s", findings=(replace(old, where="f:9"), finding("NEW")))
    check.show(now, known=replace(now, findings=(old, finding("GONE"))))
    out = capsys.readouterr().out
    assert "NEW" in out
    assert "OLD" not in out
    assert "1 more were found before, too: `verlstack check s` prints them" in out
    assert out.splitlines()[-1] == "s (stack, against s): it would break; 2 fail"
    check.show(now)
    out = capsys.readouterr().out
    assert "OLD" in out
    assert "before" not in out


def finding(code):
    words = dict.fromkeys(("subject", "measured", "right", "why", "source", "fix"), "x")
    return Finding(code=code, severity="fail", where="f:1", **words)


def test_json(capsys):
    code, out = run(capsys, CASES / "dockerfile" / "d02.Dockerfile", "--json")
    document = json.loads(out.out)
    assert (code, document["exit"], document["report"]["kind"]) == (1, 1, "dockerfile")
    keys = {"code", "severity", "subject", "measured", "right", "why", "source", "fix", "where"}
    assert all(set(one) == keys for one in document["report"]["findings"])


def test_a_clean_file(capsys):
    code, out = run(capsys, "Dockerfile")
    assert code == 0
    assert out.out == "Dockerfile (dockerfile, against cu121): nothing breaks; no findings\n"


def test_a_file_of_which_the_index_says_nothing(capsys, tmp_path):
    path = tmp_path / "pins.in"
    path.write_text("six==1.17.0\n")
    code, out = run(capsys, path, "--offline")
    assert code == 2
    assert "UNKNOWN INDEX-UNASKED" in out.out
    assert out.out.splitlines()[-1].endswith("it cannot be told; 1 unknown")


def test_a_files_name_speaks_to_no_terminal(capsys, tmp_path):
    path = tmp_path / "x\x1b[31m.in"
    path.write_text("this is bad\n")
    _, out = run(capsys, path)
    assert "\x1b" not in out.out
    assert out.out.count(r"x\x1b[31m.in") == 2  # the line, and the verdict


@pytest.mark.parametrize("target", ["nowhere.txt", "no-such-stack", "docs"])
def test_what_cannot_be_checked(capsys, target):
    code, out = run(capsys, target)
    assert code == 2
    assert out.err.startswith("verlstack: error: ")
    assert "Traceback" not in out.err


@pytest.mark.parametrize(("target", "code"), [("cu121", 1), ("x-1-py3-none-any.whl", 2)])
def test_pins_that_cannot_be_read(capsys, tmp_path, target, code):
    shutil.copytree(ROOT / "constraints", tmp_path / "constraints")
    pins = tmp_path / "constraints" / "stacks.toml"
    pins.write_text(pins.read_text().replace('python = "3.10"', "python = 3.10"))
    found, out = run(capsys, target, "--constraints", tmp_path / "constraints")
    assert found == code
    assert "PINS-INVALID" in out.out
    assert "python" in out.out
