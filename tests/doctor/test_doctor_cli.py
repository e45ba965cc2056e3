"""The command: words, exit codes, output for people and programs, crashes, interrupts, sorting of paths, safe text."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verldoctor import cli, context, dispatch, run
from verldoctor.finding import Finding, rules
from verldoctor.report import as_json, as_text, exit_code
from verldoctor.stackfile import Image
from verldoctor.text import safe

SOURCE = Path(cli.__file__).parents[1]


def finding(severity: Any, subject: str = "x") -> Finding:
    return Finding("CODE", severity, subject, "message", "1", "2", "mend it")


def put_check(monkeypatch: pytest.MonkeyPatch, check: Any) -> None:
    module = SimpleNamespace(check=check)
    monkeypatch.setattr(run, "importlib", SimpleNamespace(import_module=lambda name: module))


@given(st.text() | st.binary(), st.integers(min_value=1, max_value=300))
def test_safe_text_is_one_printable_line_within_its_limit(text: str | bytes, limit: int) -> None:
    shown = safe(text, limit)
    assert shown.isprintable()
    assert len(shown) <= limit


def test_safe_text_shows_escapes_instead_of_sending_them() -> None:
    assert safe("\x1b[31mred\r\n\u202e\udc80") == "\\x1b[31mred\\r\\n\\u202e\\udc80"
    assert safe("plain words") == "plain words"


@pytest.mark.parametrize(
    ("severities", "code"),
    [
        ([], 0),
        (["warn"], 0),
        (["note"], 0),
        (["note", "unknown"], 2),
        (["unknown", "warn"], 2),
        (["unknown", "fail"], 1),
        (["fail"], 1),
    ],
)
def test_exit_code_is_the_worst_severity_with_fail_before_unknown(severities: list[str], code: int) -> None:
    assert exit_code([finding(severity) for severity in severities]) == code


def test_text_has_a_block_for_each_finding_and_a_count() -> None:
    text = as_text([finding("fail", "a\x1b[2J"), finding("warn")])
    assert "FAIL  CODE  a\\x1b[2J\n  message\n  1 → 2\n  fix: mend it\n" in text
    assert text.endswith("verldoctor: 1 fail, 1 warn, 0 unknown: will break\n")


def test_a_note_is_said_and_is_no_warning() -> None:
    text = as_text([finding("note")])
    assert text.startswith("NOTE  CODE")
    assert text.endswith("verldoctor: 0 fail, 0 warn, 0 unknown: nothing found\n")


def test_json_is_a_list_of_objects_in_ascii() -> None:
    text = as_json([finding("fail", "ä\x1b")])
    assert text.isascii()
    assert "\x1b" not in text
    assert json.loads(text)[0] == {
        "code": "CODE",
        "severity": "fail",
        "subject": "ä\x1b",
        "message": "message",
        "measured": "1",
        "right": "2",
        "fix": "mend it",
    }


@pytest.mark.parametrize(
    ("words", "kinds", "paths"),
    [
        ([], ["all"], []),
        (["env", "host"], ["env", "host"], []),
        (["all", "x.yaml"], ["all"], ["x.yaml"]),
        (["x.yaml"], ["all"], ["x.yaml"]),
        (["model", "model"], ["model"], ["model"]),
        (["data", "./host"], ["data"], ["host"]),
    ],
)
def test_leading_words_are_kinds_and_the_rest_are_paths(words: list[str], kinds: list[str], paths: list[str]) -> None:
    assert cli.split_words(words) == (kinds, [Path(path) for path in paths])


@pytest.mark.parametrize(
    "argv",
    [["model"], ["--fix", "out", "host"], ["--fix", "out", "data", "a", "b"], ["env", "--dump"], ["all", "--dump"]],
)
def test_misuse_is_said_in_one_line_with_exit_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    assert capsys.readouterr().err.startswith("verldoctor: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fspd run.sh", "fspd is no kind of check and no path that is there; did you mean fsdp?"),
        ("evn", "evn is no kind of check and no path that is there; did you mean env?"),
        ("env hots", "hots is no kind of check and no path that is there; did you mean host?"),
        ("fsdp modle run.sh", "modle is no kind of check and no path that is there; did you mean model?"),
        ("doctor", f"doctor is no kind of check and no path that is there; kinds: all, {', '.join(cli.KINDS)}"),
    ],
)
def test_a_kind_that_is_none_is_said_and_nothing_else(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text("true")
    assert cli.main(words.split()) == 2
    assert capsys.readouterr() == ("", f"verldoctor: {said}\n")


def test_what_is_there_or_can_only_be_a_path_is_no_wrong_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    Path("hots").symlink_to("gone")
    put_check(monkeypatch, lambda paths, context: [])
    for words in (["models"], ["hots"], ["./evn"], ["env.txt"], ["fsdp", "training"], ["fsdp", "~critic"]):
        cli.main(words)
        said = capsys.readouterr()
        assert (bool(said.out), said.err) == (True, "")


def test_findings_on_what_was_named_come_before_those_on_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("trainer: {nnodes: 1}")
    put_check(monkeypatch, lambda paths, context: [finding("warn", str(paths[0]) if paths else "machine")])
    for words in ([str(file)], ["host", "fsdp", str(file)]):
        cli.main([*words, "--json"])
        assert [f["subject"] for f in json.loads(capsys.readouterr().out)] == [str(file), "machine"]


DEFAULT = "torch 2.3.1+cu121, transformers 4.41.2, verl 0.2.0.post2"


@pytest.mark.parametrize(
    ("words", "found", "image", "told"),
    [
        (["fsdp", "run.yaml"], [], None, f"nothing found (judged for {DEFAULT})"),
        (["run.yaml"], [finding("note")], None, f"nothing found (judged for {DEFAULT})"),
        (
            ["fsdp", "run.yaml"],
            [finding("warn")],
            None,
            "goes, except for what the warnings name",
        ),  # findings name the versions that they are about
        (["fsdp", "run.yaml"], [], Image(name="cu121"), "nothing found"),
        (["host", "run.yaml"], [], None, "nothing found"),  # no version of these matters there
        (["env", "host"], [], None, "nothing found"),
    ],
)
def test_outside_an_image_nothing_found_says_for_which_versions(
    words: list[str],
    found: list[Finding],
    image: Image | None,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text("trainer: {nnodes: 1}")
    put_check(monkeypatch, lambda paths, context: found)
    monkeypatch.setattr(context, "here", lambda **_: context.Context(env={}, image=image))
    assert cli.main(words) == 0
    assert capsys.readouterr().out.splitlines()[-1].partition("unknown: ")[2] == told


def test_unknown_options_are_refused_without_echoing_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--nosuch\x1b[31m"])
    assert stopped.value.code == 2
    assert "\x1b" not in capsys.readouterr().err


def test_options_may_stand_between_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "limits.json"
    file.write_text('{"nofile": 100}')
    assert cli.main(["host", "--json", str(file)]) == 1
    assert json.loads(capsys.readouterr().out)[0]["code"] == "HOST-NOFILE"


def test_a_crash_in_a_check_is_an_unknown_finding_that_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(paths: object, context: object) -> list[Finding]:
        raise KeyError("gone\x1b[31m")

    put_check(monkeypatch, check)
    monkeypatch.delenv("VERLDOCTOR_DEBUG", raising=False)
    assert cli.main(["host"]) == 2
    said = capsys.readouterr().out
    assert "DOCTOR-BUG  host" in said
    assert "KeyError" in said
    assert "\x1b" not in said
    monkeypatch.setenv("VERLDOCTOR_DEBUG", "1")
    with pytest.raises(KeyError):
        cli.main(["host"])


def test_a_module_that_verldoctor_lacks_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(paths: object, context: object) -> list[Finding]:
        raise ModuleNotFoundError("No module named 'yaml'", name="yaml")

    put_check(monkeypatch, check)
    assert cli.main(["host"]) == 2
    assert "pip install PyYAML" in capsys.readouterr().out


def test_ctrl_c_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def check(paths: object, context: object) -> list[Finding]:
        raise KeyboardInterrupt

    put_check(monkeypatch, check)
    assert cli.main(["host"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_equal_findings_are_said_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    put_check(monkeypatch, lambda paths, context: [finding("warn"), finding("warn")])
    assert cli.main(["host"]) == 0
    assert "1 warn" in capsys.readouterr().out


@pytest.mark.parametrize("make", ["missing", "loop", "fifo", "nul", "unreadable"])
def test_paths_that_cannot_be_read_never_reach_a_check(
    make: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.jsonl"
    if make == "loop":
        path.symlink_to(path)
    elif make == "fifo":
        os.mkfifo(path)
    elif make == "unreadable":
        path.write_text("{}")
        monkeypatch.setattr(os, "access", lambda *args: False)
    word = f"{path}\0" if make == "nul" else str(path)
    put_check(monkeypatch, lambda paths, context: pytest.fail("it was called"))
    for kind in ("data", "host"):
        assert cli.main([kind, word]) == 2
        assert "DOCTOR-PATH" in capsys.readouterr().out


def test_all_sorts_paths_and_adds_env_and_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    called: list[tuple[str, int]] = []

    def load(name: str) -> Any:
        def check(paths: Any, context: object) -> list[Finding]:
            called.append((name.rpartition(".")[2], len(paths)))
            return []

        return SimpleNamespace(check=check)

    monkeypatch.setattr(run, "importlib", SimpleNamespace(import_module=load))
    for name in ("a.yaml", "b.parquet"):
        (tmp_path / name).write_text("")
    assert run.check_all(["all"], [tmp_path / "a.yaml", tmp_path / "b.parquet"], context.Context()) == []
    assert called == [("fsdp", 1), ("data", 1), ("env", 0), ("host", 0)]
    called.clear()
    run.check_all(["env", "host"], [], context.Context())
    assert called == [("env", 0), ("host", 0)]


def test_a_path_that_fits_no_kind_is_said(tmp_path: Path) -> None:
    odd = tmp_path / "odd.bin"
    odd.write_bytes(b"\x00\x01")
    found = run.check_all(["fsdp", "model"], [odd], context.Context())
    assert [finding.code for finding in found] == ["DOCTOR-KIND"]


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("c.yml", b"", "fsdp"),
        ("x.parquet", b"", "data"),
        ("x", b"PAR1", "data"),
        ("x.jsonl", b"", "data"),
        ("smi.csv", b"driver_version, name\n", "host"),
        ("h.json", b'{"shm_bytes": 1, "gpus": 8}', "host"),
        ("u.json", b'{"uid": 1, "env": {}}', "host"),
        ("d.json", b'{"gpus": 8, "micro_batch": 3}', "devices"),
        ("v.json", b'{"env": {}, "gpus": 4}', "devices"),
        ("config.json", b'{"model_type": "llama"}', "model"),
        ("k.json", b'{"kind": "devices"}', "devices"),
        ("rows.json", b'[{"prompt": 1}]', "data"),
        ("rows.json", b'{"a": 1}\n{"a": 2}', "data"),
        ("run.log", b"", "explain"),
        ("x.txt", b"Traceback (most recent call last):", "explain"),
        ("requirements.txt", b"torch", "env"),
        ("Dockerfile", b"FROM x", "env"),
        ("x.json", b'{"other": 1}', ""),
        ("x.json", b"[" * 100_000, ""),
        ("x.csv", b"a,b", ""),
    ],
)
def test_files_are_sorted_by_name_and_content(name: str, content: bytes, kind: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert dispatch.kind_of(tmp_path / name)[0] == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("config.json", "model"),
        ("tokenizer_config.json", "model"),
        ("model_world_size_2_rank_0.pt", "checkpoint"),
        ("latest_checkpointed_iteration.txt", "checkpoint"),
        ("a.parquet", "data"),
        ("torch-2.3.1.dist-info", "env"),
        ("other", ""),
    ],
)
def test_directories_are_sorted_by_what_they_hold(name: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    assert dispatch.kind_of(tmp_path)[0] == kind


def test_the_stack_is_default_then_the_images_then_what_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    image = Image(name="x", cuda="12.4", pins={"torch": "2.3.1", "verl": "0.9.0", "ray": "2.60.0"})
    assert context.pins_of(image) == {**image.pins, "torch": "2.3.1+cu121", "cuda": "12.4", "name": "x"}
    assert "ray" not in context.pins_of(replace(image, left_out=frozenset({"ray"})))
    (tmp_path / "torch-2.4.1.dist-info").mkdir()
    monkeypatch.setattr(context, "search_path", lambda: [tmp_path])
    monkeypatch.setattr(context.stackfile, "read", lambda env: image)
    stack = context.here().stack
    assert (stack["torch"], stack["verl"], stack["transformers"]) == ("2.4.1", "0.9.0", "4.41.2")
    assert context.Context().stack["verl"] == "0.2.0.post2"


def test_fix_prints_the_report_and_refuses_what_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Report:
        findings = (finding("warn"),)

        def __str__(self) -> str:
            return "kept 3\ndropped 1\x1b"

    file = tmp_path / "x.jsonl"
    file.touch()
    module = SimpleNamespace(fix=lambda path, out: Report())
    monkeypatch.setattr(run, "importlib", SimpleNamespace(import_module=lambda name: module))
    assert cli.main(["data", str(file), "--fix", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.startswith("kept 3\ndropped 1\\x1b\n")
    assert cli.main(["data", str(tmp_path / "no"), "--fix", "out"]) == 2


def test_python_m_verldoctor_and_a_closed_pipe_end_without_a_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "verldoctor", "host", str(tmp_path / "missing")]
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=env, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (2, b"")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, env=env, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (2, b"")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("host missing >&-", b"standard output is closed"),
        ("host missing >&- 2>&-", b""),
        ("data 2>&-", b""),
        ("explain <&-", b"standard input is closed"),
    ],
)
def test_a_stream_that_the_caller_closed_ends_without_a_traceback(words: str, said: bytes) -> None:
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    line = ["sh", "-c", f'exec "$0" -m verldoctor {words}', sys.executable]
    done = subprocess.run(line, env=env, capture_output=True, check=False)
    assert done.returncode == 2
    assert said in done.stdout + done.stderr
    assert b"Traceback" not in done.stderr
    assert b"DOCTOR-BUG" not in done.stdout


def test_help_loads_no_check_and_nothing_heavy() -> None:
    code = (
        "import sys\nfrom verldoctor.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'transformers', 'pyarrow', 'yaml', 'packaging', 'verldoctor.host', 'verldoctor.env'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("kind", ["doctor", "env", "host", "devices"])
def test_every_rule_is_complete_and_names_no_machine_path(kind: str) -> None:
    for rule in rules(kind).values():
        assert all((rule.title, rule.fix, rule.why, rule.source))
        assert rule.severity in ("fail", "warn", "unknown", "note")
        assert "/work" not in f"{rule}"
    assert importlib.import_module("verldoctor.finding").rules(kind)
