"""Run the smoke tests on 1, 2, 4, … ranks of this machine and write one report.

`python run.py --ranks 1,2,4 --report DIR`; what it does not know goes to pytest.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# One run of the whole suite takes a minute or two on two cores; a rank that hangs fails its test after two minutes.
PATIENCE = 900.0  # seconds for one number of ranks


def main(arguments: Sequence[str]) -> int:
    """Start pytest once per number of ranks; 0 when nothing failed, 1 when something did, 2 for a wrong call."""
    options, more = _parser().parse_known_args(arguments)
    if max(options.ranks) > 1 and not _localhost():
        print(
            "`localhost` has no address here, and torchrun needs it: /etc/hosts wants `127.0.0.1 localhost`",
            file=sys.stderr,
        )
        return 2
    options.report.mkdir(parents=True, exist_ok=True)
    for path in options.report.glob("ranks-*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    ended = {ranks: _run(ranks, options, more) for ranks in options.ranks}
    documents = [_document(options.report, ranks, code) for ranks, code in ended.items()]
    _write(options.report, documents)
    sys.stdout.write((options.report / "smoke.txt").read_text(encoding="utf-8"))
    return 0 if all(document["ok"] for document in documents) else 1


def _localhost() -> bool:
    """An engine writes /etc/hosts into a container; an unpacked image has none, and torchrun would hang."""
    try:
        return bool(socket.getaddrinfo("localhost", None))
    except OSError:
        return False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, epilog="Everything else is passed on to pytest.")
    parser.add_argument("--ranks", type=_numbers, default=[1, 2, 4], help="such as 1,2,4 (the default)")
    parser.add_argument("--report", type=Path, default=Path("smoke-report"), help="folder of the report")
    parser.add_argument("--quick", action="store_true", help="leave out the slow tests")
    return parser


def _numbers(text: str) -> list[int]:
    numbers = [int(part) for part in text.split(",")]
    if not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError("whole numbers from 1 on, such as 1,2,4")
    return numbers


def _run(ranks: int, options: argparse.Namespace, more: Sequence[str]) -> int:
    """Run pytest on so many ranks and return its exit status; other ranks than 0 write to log files only."""
    # `=`: before conftest.py is read, pytest would take a folder after a blank for one to collect tests from
    pytest = ["pytest", "-c", str(HERE / "pytest.ini"), f"--report={options.report.resolve()}", *more]
    pytest += ["--quick"] if options.quick else []
    command = [sys.executable, "-m", *pytest]
    if ranks > 1:
        logs = options.report.resolve() / f"ranks-{ranks}-logs"
        torchrun = [
            "torch.distributed.run",
            "--standalone",
            "--local-addr",
            "localhost",
            "--nproc-per-node",
            str(ranks),
        ]
        command = [
            sys.executable,
            "-m",
            *torchrun,
            "--log-dir",
            str(logs),
            "--redirects",
            "3",
            "--tee",
            "0:3",
            "-m",
            *pytest,
        ]
    # a session of its own: when time is up, everything that the run started goes with it
    process = subprocess.Popen(command, cwd=HERE, env=_environment(ranks), start_new_session=True)
    try:
        return process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        print(f"no end after {PATIENCE:.0f} s; ending the run on {ranks} ranks", file=sys.stderr)
        return 124
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _environment(ranks: int) -> dict[str, str]:
    """One core per rank where there are not more, so that ranks do not fight over them."""
    threads = max(1, (os.cpu_count() or 1) // ranks)
    return {"OMP_NUM_THREADS": str(threads), **os.environ, "PYTHONDONTWRITEBYTECODE": "1"}


def _document(folder: Path, ranks: int, code: int) -> dict[str, Any]:
    """What rank 0 wrote; a run that ended before it could is a failure, whatever its exit status."""
    path = folder / f"ranks-{ranks}.json"
    if not path.is_file():
        headline = f"no report from {ranks} ranks: ended with status {code}"
        last = _last_lines(folder / f"ranks-{ranks}-logs")
        return {"headline": headline, "ok": False, "ranks": ranks, "device": None, "counts": {}, "results": [], **last}
    document = json.loads(path.read_text(encoding="utf-8"))
    # 5: no test was collected. A run of nothing proves nothing.
    return {**document, "ok": code == 0 and document["counts"]["passed"] > 0}


def _last_lines(logs: Path) -> dict[str, dict[str, list[str]]]:
    """What each rank wrote last; torchrun itself says on its stderr which one ended first, and how."""
    said = {}
    for path in sorted(logs.glob("*/attempt_*/*/std*.log")):
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        said[f"rank {path.parent.name}, {path.stem}"] = [line for line in lines if line.strip()][-5:]
    return {"last_lines": said}


def _write(folder: Path, documents: Sequence[dict[str, Any]]) -> None:
    """One JSON and one text over all runs. The first line says what they ran on and whether they passed."""
    verdict = "passed" if all(document["ok"] for document in documents) else "FAILED"
    devices = {document["device"] for document in documents}
    kind = {frozenset({"cuda"}): "GPU", frozenset({"cpu"}): "CPU"}.get(frozenset(devices), "incomplete or mixed")
    ranks = ", ".join(str(document["ranks"]) for document in documents)
    caution = "" if kind == "GPU" else "; this says nothing about GPUs"
    first = f"{kind}, ranks {ranks}: {verdict}{caution}"
    whole = {"headline": first, "ok": verdict == "passed", "gpu_pass": kind == "GPU" and verdict == "passed"}
    (folder / "smoke.json").write_text(
        json.dumps({**whole, "runs": list(documents)}, indent=1) + "\n", encoding="utf-8"
    )
    lines = [first]
    for document in documents:
        counts = ", ".join(f"{n} {what}" for what, n in document["counts"].items())
        lines.append(f"  {document['headline']}: {counts or 'nothing counted'}")
        lines += [f"    {who}: {line}" for who, last in document.get("last_lines", {}).items() for line in last]
        lines += [f"    FAILED {r['name']}: {r['reason'].splitlines()[0]}" for r in _failed(document)]
    (folder / "smoke.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _failed(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [result for result in document["results"] if result["outcome"] == "failed"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
