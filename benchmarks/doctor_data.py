"""Measures verldoctor's data and checkpoint checks: CPU speed on JSONL beside json.loads, peak memory, a sparse 100 GB.

Run: python benchmarks/doctor_data.py [MEGABYTES]   (PYTHONPATH=src where verldoctor is not installed)
"""

from __future__ import annotations

import json
import random
import resource
import struct
import sys
import tempfile
import time
from pathlib import Path

from verldoctor.checkpoint import check as check_checkpoint
from verldoctor.context import Context
from verldoctor.data import check as check_data

WORDS = (
    "sold",
    "clips",
    "to",
    "her",
    "friends",
    "in",
    "April",
    "and",
    "then",
    "half",
    "as",
    "many",
    "how",
    "did",
    "altogether",
    "earns",
    "an",
    "hour",
    "just",
    "minutes",
)
MATH = ["\\frac{1}{2}", "$x^2$", "\\sqrt{3}", "\\cdot", "\\boxed{4}"]
CONTEXT = Context(env={}, stack={"torch": "2.3.1+cu121", "verl": "0.2.0.post2"})


def row(source: str, content: str, truth: str, index: int, **extra: str) -> dict[str, object]:
    """One row of verl's format."""
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": content}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": "train", "index": index, **extra},
    }


def short(index: int) -> dict[str, object]:
    """A row of some 220 bytes."""
    return row("openai/gsm8k", f"What is {index}+{index % 7}?", str(index), index)


def gsm8k(index: int) -> dict[str, object]:
    """A row like verl's own preprocessing of GSM8K makes: question and solution in extra_info, 1 KB."""
    question = " ".join(random.choices(WORDS, k=45)) + "?"  # noqa: S311 - text for a measurement
    answer = "\n".join(f"{' '.join(random.choices(WORDS, k=8))} <<{index}/2={index // 2}>>" for _ in range(4))  # noqa: S311
    ask = ' Let\'s think step by step and output the final answer after "####".'
    return row("openai/gsm8k", question + ask, str(index), index, answer=answer, question=question)


def latex(index: int) -> dict[str, object]:
    """A row like those of MATH, with 3 % backslashes."""
    words = random.choices((*WORDS * 5, *MATH * 3), k=60)  # noqa: S311
    return row("lighteval/MATH", " ".join(words), random.choice(MATH), index)  # noqa: S311


def mixed(index: int) -> dict[str, object]:
    """Rows of two sources in turn."""
    return gsm8k(index) if index % 3 else latex(index)


def measure_jsonl(folder: Path, megabytes: int) -> None:
    """Prints one line a kind of row: speed of the check, of json.loads alone, and their ratio."""
    for kind in (short, gsm8k, latex, mixed):
        block = "".join(json.dumps(kind(index)) + "\n" for index in range(20_000)).encode()
        path = folder / f"{kind.__name__}.jsonl"
        with path.open("wb") as stream:
            for _ in range(max(1, megabytes * 1_000_000 // len(block))):
                stream.write(block)
        began = time.process_time()
        check_data([path], CONTEXT)
        checked = path.stat().st_size / (time.process_time() - began) / 1e6
        began = time.process_time()
        for line in block.splitlines():
            json.loads(line)
        parsed = len(block) / (time.process_time() - began) / 1e6
        path.unlink()
        ratio = checked / parsed
        print(f"{kind.__name__:8} check {checked:5.0f} MB/s of CPU, json.loads alone {parsed:4.0f}: {ratio:.1f}x")


def measure_checkpoint(folder: Path) -> None:
    """Prints the time for 24 shards of together 100 GB, whose tensor data are holes."""
    pickle = b"\x80\x02N."
    for kind, size in (("model", 4 << 30), ("optim", 8 << 30), ("extra_state", 1 << 20)):
        for rank in range(8):
            _sparse_zip(folder / f"{kind}_world_size_8_rank_{rank}.pt", pickle, size)
    total = sum(file.stat().st_size for file in folder.iterdir())
    began = time.perf_counter()
    codes = {finding.code for finding in check_checkpoint([folder], CONTEXT)}
    print(f"checkpoint of {total / 1e9:.0f} GB: {time.perf_counter() - began:.2f} s, {sorted(codes)}")


def _sparse_zip(path: Path, pickle: bytes, size: int) -> None:
    """A zip64 with data.pkl and a hole of `size` bytes before its table of contents."""
    name = b"archive/data.pkl"
    with path.open("wb") as stream:
        local = (45, 0, 0, 0, 0, 0, len(pickle), len(pickle), len(name), 0)
        stream.write(struct.pack("<4s5H3I2H", b"PK\3\4", *local))
        stream.write(name + pickle)
        stream.seek(size)
        sizes = (0, len(pickle), len(pickle), len(name))
        table = struct.pack("<4s6H3I5H2I", b"PK\1\2", 45, 45, 0, 0, 0, 0, *sizes, 0, 0, 0, 0, 0, 0) + name
        stream.write(table)
        stream.write(struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, len(table), size))
        stream.write(struct.pack("<4sIQI", b"PK\6\7", 0, size + len(table), 1))
        stream.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 2**16 - 1, 2**16 - 1, 2**32 - 1, 2**32 - 1, 0))


def main() -> None:
    """Runs all measurements."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as folder:
        measure_checkpoint(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        measure_jsonl(Path(folder), megabytes)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of all of it, rows to be written included: {peak:.0f} MB")


if __name__ == "__main__":
    main()
