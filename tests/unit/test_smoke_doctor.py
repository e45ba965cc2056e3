"""What the smoke tests make of verldoctor: which findings stop a run, and that no answer of it stops one."""

import json
import subprocess
import types

import pytest

import support.smoke_report  # noqa: F401  puts the smoke tests on the path

# isort: split
import launch
import run
from smoke import doctor, together

ROW = {
    "code": "ENV-PIN",
    "severity": "fail",
    "subject": "numpy",
    "message": "numpy is 2",
    "measured": "2",
    "right": "1",
}
ROW |= {"fix": "pip install numpy==1"}


def row(code, severity):
    return {**ROW, "code": code, "severity": severity}


@pytest.fixture
def answer(monkeypatch, tmp_path):
    """A function: `examine` where verldoctor writes such a text, or raises such an error; and how it was called."""
    program = tmp_path / "verldoctor"
    program.touch()

    def examined(said, status=0):
        def started(words, **how):
            examined.words, examined.how = words, how
            if isinstance(said, Exception):
                raise said
            return types.SimpleNamespace(stdout=said, stderr=b"", returncode=status)

        monkeypatch.setattr(doctor.subprocess, "run", started)
        return doctor.examine(program)

    return examined


def test_findings_come_the_gravest_first(answer):
    rows = [row("ENV-A", "note"), row("HOST-B", "warn"), row("ENV-C", "unknown"), row("HOST-D", "fail")]
    found = answer(json.dumps(rows).encode(), status=1)
    assert [f.code for f in found] == ["HOST-D", "ENV-C", "HOST-B", "ENV-A"]
    assert answer.words[2:] == ["env", "host", "--json"]
    assert answer.how["stdin"] == subprocess.DEVNULL
    assert answer.how["timeout"] == doctor.PATIENCE


@pytest.mark.parametrize(
    ("code", "severity", "stops"),
    [
        ("ENV-PIN", "fail", True),
        ("ENV-MISSING", "fail", True),
        ("ENV-FLASH-ATTN", "fail", False),
        ("ENV-FLASH-LEFT-OUT", "warn", False),
        ("ENV-STACK-FILE", "unknown", False),
        ("HOST-SHM", "fail", False),
        ("HOST-DRIVER", "fail", False),
        ("DOCTOR-BUG", "unknown", False),
    ],
)
def test_which_finding_stops_a_run(answer, code, severity, stops):
    (found,) = answer(json.dumps([row(code, severity)]))
    assert found.stops is stops
    assert launch.Member(node=0, host="a", gpus=0, findings=(found,)).stops is stops


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"Traceback",
        b"{}x",
        b"1",
        b"[1]",
        b'["ab"]',
        b'[{"code": "ENV-PIN"}]',
        b"[" * 100_000,
        b"\xff",
        PermissionError(13, "denied"),
        subprocess.TimeoutExpired(["verldoctor"], 60.0),
    ],
    ids=lambda said: repr(said)[:20],
)
def test_no_answer_is_said_and_stops_nothing(answer, said):
    (found,) = answer(said)
    assert found.severity == "unknown"
    assert found.message.startswith("verldoctor does not answer: ")
    assert not found.stops


def test_where_it_is_not_there_one_line_says_so(tmp_path):
    (found,) = doctor.examine(tmp_path / "verldoctor")
    assert (found.severity, found.stops) == ("note", False)
    assert list(doctor.lines([found])) == [
        "verldoctor: note VERLDOCTOR: verldoctor is not there, so nothing looked at the environment and the host"
    ]


def test_a_finding_is_one_line_with_its_fix():
    (found,) = doctor.read([ROW])
    assert list(doctor.lines([found])) == ["verldoctor: fail ENV-PIN: numpy is 2; fix: pip install numpy==1"]
    (found,) = doctor.read([{**ROW, "severity": "warn"}])
    assert list(doctor.lines([found])) == ["verldoctor: warn ENV-PIN: numpy is 2"]
    assert list(doctor.lines([])) == ["verldoctor: environment and host: nothing found"]


def test_keys_that_a_later_verldoctor_adds_do_no_harm():
    assert doctor.read([{**ROW, "why": "x"}]) == doctor.read([ROW])


# -- the run


@pytest.fixture
def stopped(monkeypatch, tmp_path):
    """`run.main` in an environment that has a finding, where torch must not be imported."""
    monkeypatch.setattr(run, "_check_modules", lambda: None)
    monkeypatch.setattr(run, "_gpus", lambda: pytest.fail("GPUs were counted"))
    monkeypatch.setattr(run, "Run", lambda *_: pytest.fail("a run was started"))
    monkeypatch.setattr(run.signal, "signal", lambda *_: None)
    monkeypatch.setattr(doctor, "examine", lambda: doctor.read([ROW]))
    return ["--report", str(tmp_path / "report")]


def test_no_test_runs_where_the_environment_is_not_what_it_should_be(stopped, tmp_path, capsys):
    assert run.main(stopped) == 1
    out, err = capsys.readouterr()
    assert "verldoctor: fail ENV-PIN: numpy is 2; fix: pip install numpy==1" in err
    assert out.startswith("FAILED before any test: node 0 (")
    said = json.loads((tmp_path / "report" / "smoke.json").read_text())
    assert (said["ok"], said["gpu_pass"], said["runs"]) == (False, False, [])
    assert said["doctor"][0]["findings"] == [{**ROW, "stops": True}]
    assert (tmp_path / "report" / "smoke.html").is_file()


def test_where_verlstack_started_it_headline_and_image_are_left_to_verlstack(stopped, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VERLSTACK_IMAGE", "cu121@sha256:1")
    assert run.main(stopped) == 1
    assert capsys.readouterr().out.splitlines()[0] == "verldoctor: 1 fail (ENV-PIN)"
    lines = (tmp_path / "report" / "smoke.txt").read_text().splitlines()
    assert (lines[0][:6], lines[1]) == ("FAILED", "image: cu121@sha256:1")


@pytest.mark.parametrize("sick", [0, 1])
def test_one_node_stops_all_and_each_hears_why(monkeypatch, capsys, sick):
    both = [
        launch.Member(node=n, host=f"h{n}", gpus=0, findings=doctor.read([ROW]) if n == sick else ()) for n in (0, 1)
    ]
    told = []
    line = types.SimpleNamespace(say=lambda **message: told.append(message))
    monkeypatch.setattr(together, "Run", lambda *_: pytest.fail("a run was started"))
    here = types.SimpleNamespace(me=both[0])
    assert together._lead(here, {both[1]: line}, lambda members, documents: f"{len(members)} {documents}\n") == 1
    assert told == [{"verdict": False, "text": "2 []\n"}]
    assert capsys.readouterr().out == "2 []\n"
