"""The smoke tests' runs are planned, and their ends are read, without torch and without starting anything."""

import argparse
import dataclasses
import itertools
import json
import socket
import sys
from pathlib import Path

import pytest

import support.smoke_report  # noqa: F401  puts the smoke tests on the path

# isort: split
import launch
import run
from smoke import ended, nodes

SUMMARY = """
pytest FAILED
------------------------------------------------------
Failures:
[0]:
  time      : 2026-11-30_21:22:06
  host      : localhost
  rank      : 2 (local_rank: 0)
  exitcode  : -15 (pid: 31163)
  error_file: <N/A>
------------------------------------------------------
Root Cause (first observed failure):
[1]:
  time      : 2026-11-30_21:22:06
  host      : localhost
  rank      : 3 (local_rank: 1)
  exitcode  : -9 (pid: 31164)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 31164
"""
ZERO, ONE = launch.Member(node=0, host="a", gpus=0), launch.Member(node=1, host="b", gpus=0)
MEETING = launch.Meeting(
    nodes=2, node=1, host="fd00::1", port=29401, id="smoke-4-ab", address="fd00::2", patience=120.0
)


def members(*gpus):
    return [launch.Member(node=node, host=f"h{node}", gpus=number) for node, number in enumerate(gpus)]


@pytest.mark.parametrize(
    ("asked", "gpus", "chosen", "left"),
    [
        (None, [0], [1, 2, 4], []),
        (None, [0, 0], [2, 4], []),
        (None, [0, 0, 0], [3, 6], []),
        (None, [1], [1], []),
        (None, [8], [1, 2, 4, 8], []),
        (None, [6], [1, 2, 4], []),
        (None, [8, 4], [2, 4, 8], []),
        ([1, 2, 4], [0, 0], [2, 4], [1]),
        ([4, 4, 2], [0], [4, 2], []),
        ([16], [8, 8], [16], []),
    ],
)
def test_which_numbers_of_ranks_are_run(asked, gpus, chosen, left):
    assert launch.runs(asked, members(*gpus)) == (chosen, left)


@pytest.mark.parametrize(
    ("asked", "gpus", "says"),
    [
        ([1, 3], [0, 0], "--ranks 1,3: none is a multiple of the 2 nodes"),
        ([8], [8, 2], "8 ranks are 4 on each node, but node 1 (h1) has 2 GPUs"),
        (None, [8, 0], "node 1 (h1) has no GPU, node 0 (h0) has 8"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line(asked, gpus, says):
    with pytest.raises(launch.PlanError) as caught:
        launch.runs(asked, members(*gpus))
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)


def test_one_rank_is_pytest_alone():
    assert launch.command(1, ["pytest", "-x"], Path("logs"), None) == [sys.executable, "-m", "pytest", "-x"]


def test_several_ranks_on_one_machine_stand_alone():
    words = launch.command(4, ["pytest"], Path("logs"), None)
    assert words[1:6] == ["-m", "torch.distributed.run", "--standalone", "--local-addr", "localhost"]
    assert words[words.index("--nproc-per-node") + 1] == "4"
    assert words[-2:] == ["-m", "pytest"]


def test_several_nodes_meet_at_node_0_and_give_their_own_address():
    words = launch.command(4, ["pytest"], Path("logs"), MEETING)
    given = dict(itertools.pairwise(words))
    assert {name: given[name] for name in given if name.startswith(("--nn", "--nproc", "--rdzv", "--local"))} == {
        "--nnodes": "2",
        "--nproc-per-node": "2",
        "--rdzv-backend": "c10d",
        "--rdzv-endpoint": "[fd00::1]:29401",
        "--rdzv-id": "smoke-4-ab",
        "--rdzv-conf": "join_timeout=120,read_timeout=120,is_host=0",
        "--local-addr": "fd00::2",
    }


@pytest.mark.parametrize(("here", "cores", "threads"), [(2, 8, "4"), (4, 2, "1"), (1, 2, "2")])
def test_ranks_share_the_cores_and_gloo_takes_the_nodes_own_interface(here, cores, threads):
    found = launch.environment({"HOME": "/x"}, here, cores, "eth1")
    assert found["OMP_NUM_THREADS"] == threads
    assert found["GLOO_SOCKET_IFNAME"] == "eth1"
    assert "GLOO_SOCKET_IFNAME" not in launch.environment({}, here, cores, None)
    assert found["PYTHONUNBUFFERED"] == "1"


def test_what_the_user_has_set_stays():
    found = launch.environment({"OMP_NUM_THREADS": "7", "GLOO_SOCKET_IFNAME": "ib0"}, 2, 8, "eth1")
    assert (found["OMP_NUM_THREADS"], found["GLOO_SOCKET_IFNAME"]) == ("7", "ib0")


def test_options_of_pytest_that_the_report_would_not_tell_of_do_not():
    found = launch.environment({"PYTEST_ADDOPTS": "-k nothing", "PYTEST_PLUGINS": "x", "A": "1"}, 2, 8, None)
    assert not {"PYTEST_ADDOPTS", "PYTEST_PLUGINS"} & set(found)
    assert found["A"] == "1"


@pytest.mark.parametrize(
    ("text", "is_"), [("a:1", ("a", 1)), ("[fd00::1]:29400", ("fd00::1", 29400)), ("10.0.0.1:80", ("10.0.0.1", 80))]
)
def test_a_rendezvous(text, is_):
    assert launch.endpoint(text) == is_


@pytest.mark.parametrize("text", ["a", "a:", ":1", "a:b", "a:0", "a:65536", ""])
def test_no_rendezvous(text):
    with pytest.raises(argparse.ArgumentTypeError):
        launch.endpoint(text)


@pytest.mark.parametrize("text", ["", "0", "1,", "a", "-1"])
def test_no_numbers_of_ranks(text):
    with pytest.raises(argparse.ArgumentTypeError):
        launch.numbers(text)


def test_little_shared_memory_is_a_warning_on_gpus_alone():
    (line,) = launch.warnings(gpus=1, shared_memory=64 << 20)
    assert "64 MB" in line
    assert launch.warnings(gpus=0, shared_memory=64 << 20) == []
    assert launch.warnings(gpus=1, shared_memory=1 << 30) == []


def test_no_shared_memory_is_a_warning_and_no_traceback(tmp_path):
    assert launch.size_of(str(tmp_path)) > 0
    assert launch.size_of(str(tmp_path / "none")) == 0
    (line,) = launch.warnings(gpus=0, shared_memory=0)
    assert line.startswith("there is no /dev/shm")


# -- how ranks ended


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (-9, "killed by SIGKILL"),
        (-99, "killed by signal 99"),
        (124, "hung: no end of a test after 5 s"),
        (3, "ended with exit status 3"),
    ],
)
def test_an_exit_status_in_words(status, says):
    assert launch.how(status, 5.0) == says


def test_torchruns_summary_is_read_the_first_failure_first():
    assert list(ended.summary(SUMMARY).items()) == [(3, (1, -9)), (2, (0, -15))]
    assert ended.summary("all is well\n") == {}


@pytest.fixture
def killed(tmp_path):
    """What rank 3 of 4 leaves on node 1 when it is killed in a test."""
    logs = tmp_path / "ranks-4-logs"
    for rank, local_rank in ((2, 0), (3, 1)):
        ended.note(logs, rank, local_rank, "t.py::test_one")
        ended.note(logs, rank, local_rank, "t.py::test_two")
        written = logs / "smoke-4-ab_x" / "attempt_0" / str(local_rank)
        written.mkdir(parents=True)
        (written / "stderr.log").write_text(f"first of {rank}\n\n" + "more\n" * 20 + f"last of {rank}\n")
    return {"status": 1, "document": None, "whole": False, "ends": ended.ranks(logs, SUMMARY, 5.0)}


def test_a_killed_rank_is_named_with_node_reason_test_and_last_lines(killed):
    found = ended.joined(4, [(ZERO, {"status": -15, "ends": []}), (ONE, killed)])
    assert found["ok"] is False
    assert (
        "no report from 4 ranks; 2 nodes: a, b; rank 3 on node 1 (b) killed by SIGKILL in t.py::test_two"
        in (found["headline"])
    )
    assert list(found["last_lines"]) == ["rank 3, stderr", "rank 2, stderr"]
    assert found["last_lines"]["rank 3, stderr"][-1] == "last of 3"
    assert "first of 3" not in found["last_lines"]["rank 3, stderr"]
    assert [(node["host"], node["ranks"]) for node in found["nodes"]] == [("a", []), ("b", [2, 3])]


def test_what_passed_before_the_end_is_reported(tmp_path, killed):
    ended.so_far(tmp_path, 4, {"headline": "CPU, 4 ranks", "device": "cpu", "ranks": 4})
    ended.so_far(tmp_path, 4, {"name": "t.py::test_one", "outcome": "passed", "seconds": 0.5})
    with (tmp_path / "ranks-4-so-far.jsonl").open("a") as file:
        file.write('{"name": "t.py::te')  # killed while it wrote
    document, whole = ended.document(tmp_path, 4)
    found = ended.joined(4, [(ZERO, {"status": 1, "whole": whole, "document": document, "ends": []}), (ONE, killed)])
    assert found["counts"] == {"passed": 1, "failed": 0, "not run": 0}
    assert found["ok"] is False
    ended.forget(tmp_path, 4)
    assert ended.document(tmp_path, 4) == (None, False)


def test_a_rank_that_missed_another_is_not_the_one_to_look_at():
    ends = [
        (ZERO, {"rank": 0, "status": 1, "reason": "ended with exit status 1", "test": "t"}),
        (ONE, {"rank": 1, "status": -11, "reason": "killed by SIGSEGV", "test": "t"}),
    ]
    assert ended.first(ends) == "rank 1 on node 1 (b) killed by SIGSEGV in t"


def report(passed, failed):
    return {"headline": "CPU", "counts": {"passed": passed, "failed": failed, "not run": 0}, "results": []}


@pytest.mark.parametrize(
    ("status", "document", "ok"),
    [
        (0, report(3, 0), True),
        (0, report(0, 0), False),
        (1, report(2, 1), False),
        (1, report(2, 0), False),
        (0, None, False),
    ],
)
def test_a_verdict_needs_a_whole_report_a_pass_and_status_0_everywhere(status, document, ok):
    mine = {"status": 0, "whole": document is not None, "document": document, "ends": []}
    assert ended.joined(2, [(ZERO, mine), (ONE, {"status": status})])["ok"] is ok


def test_a_node_that_is_gone_is_named():
    mine = {"status": -15, "whole": False, "document": None, "ends": []}
    found = ended.joined(2, [(ZERO, mine), (ONE, {"status": 1, "gone": "the connection was closed"})])
    assert "node 1 (b) is gone: the connection was closed" in found["headline"]


# -- lines between nodes


@pytest.fixture
def pair():
    ends = [nodes.Line(end) for end in socket.socketpair()]
    yield ends
    for end in ends:
        end.close()


def test_messages_come_one_by_one(pair):
    pair[0].say(a=1)
    pair[0].say(b="ü\n")
    assert pair[1].hear(1.0) == {"a": 1}
    assert pair[1].hear(1.0) == {"b": "ü\n"}
    assert pair[1].hear(0.0) is None


def test_who_has_hung_up_is_gone(pair):
    pair[0].close()
    with pytest.raises(nodes.GoneError):
        pair[1].hear(1.0)


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"\xff\n"])
def test_a_stranger_is_not_heard(noise):
    one, other = socket.socketpair()
    line = nodes.Line(other)
    one.sendall(noise)
    with pytest.raises(nodes.GoneError):
        line.hear(1.0)
    one.close()
    line.close()


def introduce(pair, came, **changed):
    said = {"hello": "verlstack smoke tests", "nodes": 3, **dataclasses.asdict(ONE)}
    pair[0].say(**{**said, **changed})
    nodes._admit(pair[1], came, 3, ZERO)


def test_a_node_is_let_in(pair):
    came = {}
    introduce(pair, came)
    assert list(came) == [ONE]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"nodes": 2}, "node 1 (b) was started with --nodes 2, node 0 (a) with --nodes 3"),
        ({"node": 0}, "there is a node 0 already: node 0 (a); each node has its own --node"),
    ],
)
def test_a_node_that_does_not_fit_is_told_why(pair, changed, says):
    came = {}
    introduce(pair, came, **changed)
    assert came == {}
    assert pair[0].hear(1.0) == {"refused": says}


def test_a_node_brings_what_verldoctor_found_there(pair):
    came = {}
    row = {
        "code": "ENV-PIN",
        "severity": "fail",
        **dict.fromkeys(("subject", "message", "measured", "right", "fix"), ""),
    }
    introduce(pair, came, findings=[row])
    (who,) = came
    assert who.stops
    assert dataclasses.asdict(who)["findings"] == (row,)


@pytest.mark.parametrize(
    "changed", [{"hello": "?"}, {"node": "x"}, {"gpus": None}, {"findings": 1}, {"findings": [{"code": "x"}]}]
)
def test_nonsense_is_not_let_in(pair, changed):
    came = {}
    introduce(pair, came, **changed)
    assert came == {}
    with pytest.raises(nodes.GoneError):
        pair[0].hear(1.0)


def test_an_address_is_written_as_usual():
    assert nodes.plain("::ffff:10.0.0.1") == "10.0.0.1"
    assert nodes.plain("fd00::1") == "fd00::1"


def test_notes_and_reports_are_plain_json(tmp_path):
    ended.note(tmp_path, 0, 0, "t.py::test")
    assert json.loads((tmp_path / "rank-0.json").read_text())["test"] == "t.py::test"
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0.json"]


def test_clearing_a_report_removes_what_an_earlier_run_wrote_and_nothing_else(tmp_path):
    for name in ("ranks-2.json", "ranks-2.txt", "ranks-4-so-far.jsonl", "ranks-of-nobility.md", "ranks-2.json.bak"):
        (tmp_path / name).touch()
    (tmp_path / "ranks-2-logs" / "x").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "ranks-8-logs").symlink_to(tmp_path / "elsewhere")
    run._clear(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"ranks-of-nobility.md", "ranks-2.json.bak", "elsewhere"}
