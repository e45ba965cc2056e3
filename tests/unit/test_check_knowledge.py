"""The rules as data: each is whole, each is used, and each row of releases hits what it says and no more."""

import re
from pathlib import Path

import pytest
from packaging.version import Version

import verlstack
from verlstack.check import finding, knowledge, releases

RELEASES = knowledge.table("releases")["release"]
CODE = "\n".join(path.read_text(encoding="utf-8") for path in Path(verlstack.__file__).parent.rglob("check/*.py"))


@pytest.mark.parametrize("code", knowledge.rules())
def test_a_rule_is_whole(code):
    row = knowledge.rules()[code]
    assert row["severity"] in finding.SEVERITIES
    assert all(row[key].strip() for key in ("why", "source", "fix"))
    assert set(row) <= {"severity", "why", "source", "fix", "right", "on", "pattern", "unless"}


@pytest.mark.parametrize("code", knowledge.rules())
def test_a_rule_is_used(code):
    assert "pattern" in knowledge.rules()[code] or f'"{code}"' in CODE or code in {row["code"] for row in RELEASES}


def test_only_rules_are_named_in_the_code():
    named = set(re.findall(r"finding\(\s*\"([A-Z][A-Z-]+)\"", CODE))
    assert named
    assert named <= set(knowledge.rules())
    assert {row["code"] for row in RELEASES} <= set(knowledge.rules())


def test_no_table_has_keys_that_nobody_reads():
    allowed = {
        *("code", "package", "versions", "beside", "beside_versions", "shown", "right", "source", "severity"),
    }
    assert all(set(row) <= allowed for row in RELEASES)
    assert all(("beside" in row) == ("beside_versions" in row) for row in RELEASES)


def hit(**versions):
    known = {name.replace("_", "-"): Version(version) for name, version in versions.items()}
    found = releases.troubles(known, frozenset(known), lambda name: name)
    return [(one.severity, one.subject) for one in found]


@pytest.mark.parametrize(
    "versions",
    [
        {"verl": "0.3.0.rc0", "torch": "2.3.1"},
        {"verl": "0.9.0", "torch": "2.3.1+cu121"},
        {"flash_attn": "2.7.0", "transformers": "4.41.2"},
        {"flash_attn": "2.8.3", "verl": "0.2"},
        {"tensordict": "0.5.0", "torch": "2.3.1"},
        {"tensordict": "0.14.3", "verl": "0.2.0.post2"},
        {"peft": "0.21.2", "transformers": "4.41.2"},
        {"datasets": "2.14.4", "pyarrow": "25.0.1"},
        {"click": "8.3.0", "ray": "2.10.0"},
        {"click": "8.3.1", "ray": "2.44.1"},
        {"click": "8.4.0", "ray": "2.44.1"},
        {"vllm": "0.5.1", "torch": "2.3.1"},
        {"vllm": "0.5.3.post1", "transformers": "4.41.2"},
        {"vllm": "0.6.3", "torch": "2.3.1"},
        {"vllm": "0.2.2"},
        {"verl": "0.2"},
    ],
)
def test_what_is_known_to_fail(versions):
    assert "fail" in {severity for severity, _ in hit(**versions)}


@pytest.mark.parametrize(
    "versions",
    [
        {"verl": "0.2.0.post2", "torch": "2.4.1", "transformers": "4.47.1"},
        {"verl": "0.9.0", "torch": "2.11.0"},
        {"flash_attn": "2.6.3", "transformers": "4.41.2", "verl": "0.2.0.post2"},
        {"tensordict": "0.4.0", "torch": "2.3.1"},
        {"tensordict": "0.5.0", "torch": "2.4.0"},
        {"peft": "0.11.1", "transformers": "4.41.2"},
        {"peft": "0.13.2", "transformers": "4.41.2"},
        {"peft": "0.21.2"},
        {"datasets": "2.19.2", "pyarrow": "25.0.1"},
        {"click": "8.2.1", "ray": "2.44.1"},
        {"click": "8.5.1", "ray": "2.10.0"},
        {"click": "8.3.1", "ray": "2.60.0"},
        {"vllm": "0.6.3", "torch": "2.4.0", "transformers": "4.47.1"},
        {"vllm": "0.4.2", "torch": "2.3.0"},
        {"vllm": "0.24.0", "torch": "2.11.0"},
        {"numpy": "2.2.6", "torch": "2.3.1"},
    ],
)
def test_what_ran_is_not_said_to_fail(versions):
    assert [one for one in hit(**versions) if one[0] == "fail"] == []


def test_a_trouble_between_two_others_is_not_this_checks():
    known = {"peft": Version("0.21.2"), "transformers": Version("4.41.2"), "six": Version("1")}
    assert list(releases.troubles(known, frozenset({"six"}), str)) == []
    assert len(list(releases.troubles(known, frozenset({"transformers"}), str))) == 1


def test_the_limits_that_docs_tell_of_are_warnings():
    found = hit(verl="0.2.0.post2", torch="2.3.1", transformers="4.41.2")
    assert found == [("warn", "verl v0.2.0.post2")] * 4


def test_what_is_quoted_from_a_file_shows_no_password_and_speaks_to_no_terminal():
    text = "pip install -i https://user:secret@index.invalid/simple x\x1b[2J"
    found = knowledge.finding("DOCKER-UNPINNED", subject=text, measured=text)
    assert found.subject == found.measured == "pip install -i https://index.invalid/simple x"
