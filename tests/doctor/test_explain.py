"""explain: chains of exceptions, unknown errors, files and directories, input that is no log."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verldoctor.context import Context
from verldoctor.explain import check, explain
from verldoctor.report import as_json, as_text, exit_code
from verldoctor.signatures import signatures

CONTEXT = Context(env={}, stack={})
CASE = Path(__file__).parent / "cases" / "explain" / "e1.txt"
OOM = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
UNKNOWN = [
    "Traceback (most recent call last):",
    '  File "a.py", line 1, in <module>',
    "    f()",
    "BlaError: never seen",
]


def trace(*last: str) -> list[str]:
    return ["Traceback (most recent call last):", '  File "a.py", line 3, in <module>', "    step()", *last]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_the_shared_case_names_cause_and_fix() -> None:
    (finding,) = check([CASE], CONTEXT)
    assert (finding.code, finding.severity, finding.subject) == ("EXPLAIN-NOFILE", "fail", f"{CASE}:3")
    assert "nofile" in finding.message
    assert "[source: " in finding.message
    assert "ulimit -n" in finding.fix
    assert "Too many open files" in finding.measured


def test_explanation_says_line_evidence_fix_and_source() -> None:
    (item,) = explain(["loading", *trace(OOM)])
    assert (item.id, item.line, item.rank, item.secondary) == ("cuda-oom", 5, "", False)
    assert item.evidence == OOM
    assert item.fix
    assert item.source


@pytest.mark.parametrize("lines", [[], ["step:1 loss:0.1"], ["0 errors, exit code 0"], [""]])
def test_no_error_is_no_explanation(lines: list[str]) -> None:
    assert explain(lines) == []


def test_known_exception_of_a_chain_is_told_before_the_unknown_one_that_it_came_from() -> None:
    link = ["", "During handling of the above exception, another exception occurred:", ""]
    last = "ValueError: it has model type `qwen3` but Transformers does not recognize this architecture."
    assert [item.id for item in explain([*trace("KeyError: 'qwen3'"), *link, *trace(last)])] == ["model-type-unknown"]


def test_exact_message_of_a_chain_is_told_before_a_general_one() -> None:
    link = ["", "The above exception was the direct cause of the following exception:", ""]
    lines = [*trace("socket.gaierror: [Errno -2] Name or service not known"), *link]
    lines += trace(
        "OSError: We couldn't connect to 'https://huggingface.co' to load this file, "
        "couldn't find it in the cached files and x"
    )
    assert explain(lines)[0].id == "hub-offline"


def test_two_tracebacks_without_a_link_are_two_errors_and_the_first_counts() -> None:
    first, second = explain([*UNKNOWN, "", "", *["x"] * 20, *trace(OOM)])
    assert (first.id, first.evidence, first.secondary) == ("unknown", "BlaError: never seen", False)
    assert (second.id, second.secondary) == ("cuda-oom", True)


def test_message_in_the_second_line_of_an_exception_is_found() -> None:
    lines = trace("RuntimeError: ", "The detected CUDA version (11.8) mismatches the version that was used to compile")
    assert explain(lines)[0].id == "nvcc-major-mismatch"


def test_details_after_the_exception_belong_to_it() -> None:
    last = "DistBackendError: x.cpp:1, internal error - please report this issue to the NCCL developers, NCCL 2.20.5"
    lines = trace(
        last, "ncclInternalError: Internal check failed.", "Last error:", "Bootstrap : no socket interface found"
    )
    assert [item.id for item in explain(lines)] == ["nccl-no-interface", "nccl-internal-error"]


def test_a_general_message_gives_way_to_an_exact_one_that_comes_later() -> None:
    vague = "NCCL error in: x.cpp:1, unhandled system error (run with NCCL_DEBUG=INFO for details)"
    exact = "h:1:2 [0] misc/shmutils.cc:71 NCCL WARN Error: failed to extend /dev/shm/nccl-x to 5967876 bytes"
    assert explain([*trace(vague), *["x"] * 50, exact])[0].id == "shm-nccl"


def test_a_warning_does_not_stand_before_the_error() -> None:
    warning = "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (Address already in use)."
    first, second = explain([warning, *trace(OOM)])
    assert (first.id, second.id) == ("cuda-oom", "address-in-use")


def test_an_error_that_was_survived_long_before_does_not_stand_before_the_last_one() -> None:
    first, second = explain([*trace("ssl.SSLError: CERTIFICATE_VERIFY_FAILED"), *["step"] * 2000, *trace(OOM)])
    assert (first.id, second.id, second.secondary) == ("cuda-oom", "ssl-verify", True)


def test_needle_in_the_frames_decides() -> None:
    last = "IndexError: list index out of range"
    frame = ['  File "torch/utils/cpp_extension.py", line 1983, in _get_cuda_arch_flags', "    arch_list[-1] += '+PTX'"]
    assert explain(["Traceback (most recent call last):", *frame, last])[0].id == "arch-list-index"
    assert explain(trace(last))[0].id == "unknown"


def test_interleaved_progress_does_not_hide_the_exception() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "a.py", line 3',
        "    step()",
        " 10%|# | 1/10 [00:01<00:09]\r 20%|## | 2/10",
    ]
    assert explain([*lines, *UNKNOWN[1:]])[0].evidence == "BlaError: never seen"


def test_unknown_error_is_shown_and_cannot_be_told(tmp_path: Path) -> None:
    findings = check([write(tmp_path / "a.log", UNKNOWN)], CONTEXT)
    assert [(finding.code, finding.severity) for finding in findings] == [("EXPLAIN-UNKNOWN", "unknown")]
    assert "BlaError: never seen" in findings[0].message
    assert findings[0].subject.endswith("a.log:4")
    assert exit_code(findings) == 2


def test_exception_without_a_traceback_is_shown_too() -> None:
    assert [item.id for item in explain(["starting", "FooError: bar"])] == ["unknown"]


@pytest.mark.parametrize(
    ("data", "codes"),
    [
        (b"", ["EXPLAIN-EMPTY"]),
        (b"\n\n", ["EXPLAIN-EMPTY"]),
        (bytes(range(256)) * 100, ["EXPLAIN-BINARY"]),
        (b"all is well\n", []),
        (b"\xff\xfe\x00\x01" * 1000 + b"\nOSError: [Errno 24] Too many open files", ["EXPLAIN-NOFILE"]),
        ("OSError: [Errno 24] Too many open files\r\n".encode("utf-16"), ["EXPLAIN-NOFILE"]),
        (b"\xef\xbb\xbfOSError: [Errno 24] Too many open files", ["EXPLAIN-NOFILE"]),
        (b"x" * 3_000_000 + b"\nOSError: [Errno 24] Too many open files", ["EXPLAIN-NOFILE"]),
        (b"100%|###| 1/1\rOSError: [Errno 24] Too many open files\r", ["EXPLAIN-NOFILE"]),
    ],
)  # fmt: skip
def test_any_bytes_are_judged(tmp_path: Path, data: bytes, codes: list[str]) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(data)
    assert [finding.code for finding in check([path], CONTEXT)] == codes


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "empty").mkdir()
    paths = [tmp_path / "none", tmp_path / "loop", tmp_path / "empty", Path("/dev/zero"), Path("a\0b")]
    findings = check(paths, CONTEXT)
    assert [finding.code for finding in findings] == ["EXPLAIN-UNREADABLE"] * len(paths)


def test_escape_codes_of_a_log_never_come_out(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2JOSError: [Errno 24] Too many open files \x1b[31m\x9b2J\u202e\x08\x07"
    path = write(
        tmp_path / "a\x1b[2J.log", ["Traceback (most recent call last):", '  File "a"', "  f()", evil + "{measured}{0}"]
    )
    findings = [
        *check([path], CONTEXT),
        *check([write(tmp_path / "b.log", [*UNKNOWN[:3], "BlaError: \x1b[2J{x}\x9b"])], CONTEXT),
    ]
    for text in (as_text(findings), as_json(findings)):
        assert all(char.isprintable() or char == "\n" for char in text)
    assert findings[0].code == "EXPLAIN-NOFILE"


def test_evidence_is_safe_by_itself() -> None:
    (item,) = explain(["OSError: [Errno 24] Too many open files \x9b2J\u202e\x08" + "y" * 5000])
    assert item.evidence.isprintable()
    assert len(item.evidence) <= 300


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(CASE.read_bytes())))
    assert [finding.subject for finding in check([Path("-")], CONTEXT)] == ["-:3"]


def test_named_pipe_is_read(tmp_path: Path) -> None:
    fifo = tmp_path / "log"
    os.mkfifo(fifo)
    writer = Thread(target=fifo.write_bytes, args=(CASE.read_bytes(),))
    writer.start()
    findings = check([fifo], CONTEXT)
    writer.join()
    assert [finding.code for finding in findings] == ["EXPLAIN-NOFILE"]


@given(
    st.lists(
        st.text(max_size=60)
        | st.sampled_from([signature.example for signature in signatures()])
        | st.sampled_from(UNKNOWN),
        max_size=30,
    )
)
def test_explain_never_raises(lines: list[str]) -> None:
    for item in explain(lines):
        assert item.line >= 1
        assert item.evidence.isprintable()


@given(st.binary(max_size=2000))
def test_explain_never_raises_on_bytes(data: bytes) -> None:
    explain([data, data.replace(b"\n", b"")])
