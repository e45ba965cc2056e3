"""Logs of several ranks, interleaved or apart: the first real error, and what only followed from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from verldoctor.context import Context
from verldoctor.explain import check, explain
from verldoctor.logs import as_lines
from verldoctor.scan import Scan

CONTEXT = Context(env={}, stack={})
WATCHDOG = (
    "[rank{0}]:[E ProcessGroupNCCL.cpp:563] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600060 milliseconds "
    "before timing out."
)
ABORT = "[rank{0}]:[E ProcessGroupNCCL.cpp:577] [Rank {0}] we are taking the entire process down."
CHILD = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
OOM = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def trace(prefix: str, last: str) -> list[str]:
    frames = ["Traceback (most recent call last):", '  File "a.py", line 3, in <module>', "    step()", last]
    return [prefix + line for line in frames]


def woven(*logs: list[str]) -> list[str]:
    """Line by line from each log in turn, as interleaved processes write them."""
    longest = max(map(len, logs))
    return [log[index] for index in range(longest) for log in logs if index < len(log)]


def followers(*ranks: int) -> list[str]:
    return [line.format(rank) for rank in ranks for line in (WATCHDOG, ABORT)]


def test_time_outs_follow_from_the_rank_that_failed_first() -> None:
    noise = [f"[rank{rank}]: step {step}" for step in range(300) for rank in range(4)]
    items = explain([*noise, *trace("[rank3]: ", OOM), *followers(0, 1, 2), *trace("", CHILD)])
    assert [(item.id, item.secondary) for item in items] == [
        ("cuda-oom", False), ("nccl-watchdog", True), ("nccl-watchdog-abort", True), ("child-failed", True),
    ]  # fmt: skip
    assert (items[0].rank, items[0].line) == ("rank 3", len(noise) + 4)


def test_the_cause_is_found_when_the_consequences_were_written_first() -> None:
    items = explain([*followers(0, 1), *trace("[rank2]: ", "OSError: [Errno 28] No space left on device")])
    assert (items[0].id, items[0].rank) == ("disk-full", "rank 2")


def test_ranks_that_only_lost_their_peer_do_not_stand_before_it() -> None:
    lost = "RuntimeError: Connection closed by peer [10.0.0.2]:1234"
    peers = [line for rank in range(3) for line in trace(f"[rank{rank}]: ", lost)]
    items = explain([*peers, *trace("[rank3]: ", OOM)])
    assert [(item.id, item.secondary) for item in items] == [("cuda-oom", False), ("gloo-peer-closed", True)]


def test_tracebacks_woven_into_each_other_are_told_apart() -> None:
    peers = (
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.1]:28048"
    )
    logs = [trace("[rank0]: ", peers), trace("[rank1]: ", OOM), trace("[rank2]: ", peers), trace("", CHILD)]
    items = explain(woven(*logs))
    assert [(item.id, item.rank) for item in items] == [
        ("cuda-oom", "rank 1"),
        ("gloo-peer-closed", "rank 0"),
        ("child-failed", ""),
    ]


def test_an_unknown_error_that_came_first_is_the_first_error() -> None:
    first, *rest = explain([*trace("[rank1]: ", "my.OwnError: bad sample 17"), *followers(0), *trace("[rank0]: ", OOM)])
    assert (first.id, first.rank, first.evidence) == ("unknown", "rank 1", "my.OwnError: bad sample 17")
    assert all(item.secondary for item in rest)
    assert {item.id for item in rest} == {"nccl-watchdog", "nccl-watchdog-abort", "cuda-oom"}


def test_ray_worker_s_own_error_is_told_before_ray_s() -> None:
    lines = [
        "(WorkerDict pid=11, ip=10.0.0.1) loading",
        "Error executing job with overrides: ['algorithm.adv_estimator=gae']",
        "Traceback (most recent call last):",
        '  File "main_ppo.py", line 25, in main',
        "    run_ppo(config)",
        "ray.exceptions.RayTaskError(ValueError): ray::main_task() (pid=9, ip=10.0.0.1)",
        '  File "ray_trainer.py", line 700, in init_workers',
        (
            "ValueError: Unrecognized configuration class <class 'Qwen2Config'> "
            "for this kind of AutoModel: AutoModelForTokenClassification."
        ),
    ]
    items = explain(lines)
    assert [item.id for item in items] == ["critic-token-classification", "hydra-job-error", "ray-task-error"]


def test_ray_s_oom_killer_is_told_before_the_actor_s_death() -> None:
    lines = [
        *trace("", "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."),
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR",
        (
            "(raylet) [2025-12-07 09:57:19,206 E 393463 393463] (raylet) node_manager.cc:3277: "
            "2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed"
        ),
    ]
    assert explain(lines)[0].id == "ray-node-oom"


def test_a_consequence_alone_is_explained_as_one() -> None:
    items = explain(followers(0, 1))
    assert (items[0].id, items[0].secondary, items[0].real) == ("nccl-watchdog", False, False)
    assert "failed first" in items[0].cause


def test_time_stamps_decide_where_all_have_them() -> None:
    late = [f"2026-01-01 10:00:09,000 {line}" for line in trace("[rank0]: ", OOM)]
    early = [
        f"2026-01-01 10:00:01,000 {line}" for line in trace("[rank1]: ", "OSError: [Errno 28] No space left on device")
    ]
    assert explain([*late, *early])[0].id == "disk-full"


def test_torchrun_s_root_cause_decides() -> None:
    summary = [
        CHILD, "train.py FAILED", "Failures:", "[1]:", "  rank      : 0 (local_rank: 0)", "  exitcode  : 1 (pid: 11)",
        "Root Cause (first observed failure):", "[0]:", "  rank      : 1 (local_rank: 1)", "  exitcode  : 1 (pid: 12)",
    ]  # fmt: skip
    lines = [*trace("[rank0]: ", OOM), *trace("[rank1]: ", "OSError: [Errno 28] No space left on device"), *summary]
    assert explain(lines)[0].rank == "rank 1"


def test_killed_rank_of_the_summary_is_named() -> None:
    summary = [
        CHILD, "Root Cause (first observed failure):", "[0]:", "  rank      : 5 (local_rank: 1)",
        "  exitcode  : -9 (pid: 12)", "  error_file: <N/A>", "  traceback : Signal 9 (SIGKILL) received by PID 12",
    ]  # fmt: skip
    first = explain([*followers(0, 1), *summary])[0]
    assert (first.id, first.rank) == ("host-oom-torchrun", "rank 5")


def test_an_exception_that_its_rank_survived_is_not_the_first_error() -> None:
    lines = [
        *trace("[rank0]: ", "ssl.SSLError: CERTIFICATE_VERIFY_FAILED"),
        *["[rank0]: step"] * 300,
        *trace("[rank1]: ", OOM),
    ]
    assert explain(lines)[0].id == "cuda-oom"


def test_stack_dumps_are_not_taken_for_survival() -> None:
    dump = [f"[rank1]: frame #{index}: c10::Error" for index in range(400)]
    lines = [*trace("[rank1]: ", OOM), *dump, *trace("[rank0]: ", "OSError: [Errno 28] No space left on device")]
    assert explain(lines)[0].id == "cuda-oom"


def test_logs_of_one_directory_are_one_run(tmp_path: Path) -> None:
    for rank, lines in enumerate(([WATCHDOG.format(0)], trace("", OOM), [WATCHDOG.format(2)])):
        (tmp_path / "attempt_0" / str(rank)).mkdir(parents=True)
        (tmp_path / "attempt_0" / str(rank) / "stderr.log").write_text("\n".join(lines), encoding="utf-8")
    findings = check([tmp_path], CONTEXT)
    assert [(finding.code, finding.severity) for finding in findings] == [
        ("EXPLAIN-CUDA-OOM", "fail"), ("EXPLAIN-NCCL-WATCHDOG", "warn"), ("EXPLAIN-NCCL-WATCHDOG", "warn"),
    ]  # fmt: skip
    assert findings[0].subject.endswith("attempt_0/1/stderr.log:4 (rank 1)")


@pytest.mark.parametrize("name", ["rank_7.log", "train-rank7.err", "rank7.log"])
def test_rank_is_taken_from_the_file_s_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("\n".join(trace("", OOM)), encoding="utf-8")
    assert check([tmp_path / name], CONTEXT)[0].subject.endswith("(rank 7)")


def test_a_thousand_ranks_are_told_once() -> None:
    lines = [line for rank in range(1000) for line in trace(f"[rank{rank}]: ", OOM)]
    assert [(item.id, item.rank) for item in explain(lines)] == [("cuda-oom", "rank 0")]


# 498 lines: with a traceback of 4 behind them nearly all that follows is in the next batches of 512, which are skimmed
EIGHT = [f"[rank{rank % 8}]: ready" for rank in range(498)]


@pytest.mark.parametrize("steps", [300, 3082])  # 3082: the second error comes first in a batch
def test_survival_is_seen_in_long_logs_too(steps: int) -> None:
    caught = trace("[rank0]: ", "ssl.SSLError: CERTIFICATE_VERIFY_FAILED")
    items = explain([*EIGHT, *caught, *["[rank0]: step"] * steps, *trace("[rank1]: ", OOM)])
    assert items[0].id == "cuda-oom"


def test_lines_before_the_error_are_no_survival() -> None:
    lines = [*["[rank3]: step"] * 300, *trace("[rank3]: ", OOM), *trace("[rank0]: ", "BlaError: x")]
    assert explain(lines)[0].rank == "rank 3"


def test_a_message_long_after_an_exception_does_not_belong_to_it() -> None:
    steps = [f"[rank{index % 8}]: step {index}" for index in range(1034)]  # the message comes first in a batch
    late = "[rank0]: h:1:2 [0] NCCL WARN Error: failed to extend /dev/shm/nccl-x to 5967876 bytes"
    items = explain([*EIGHT, *trace("[rank0]: ", "BlaError: x"), *steps, late])
    assert [item.id for item in items] == ["unknown", "shm-nccl"]


def test_a_log_of_nothing_but_errors_is_kept_in_bounds() -> None:
    lines = [line for index in range(8000) for line in trace("", f"BlaError: {index}")]
    assert len(Scan().feed(as_lines(lines)).events) == 5000


def test_a_log_of_ever_new_ranks_is_kept_in_bounds() -> None:
    scan = Scan().feed(as_lines(f"(W pid={index}) BlaError: x" for index in range(20_000)))
    assert len(scan._streams) <= 5001
    assert len(scan.events) == 5000
