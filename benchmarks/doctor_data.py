"""Measures verldoctor's data check on four kinds of JSONL rows: CPU speed beside json.loads, peak memory.

Run: python benchmarks/doctor_data.py [MEGABYTES]   (PYTHONPATH=src where verldoctor is not installed)
"""

from __future__ import annotations

import json
import random
import resource
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from verldoctor.context import Context
from verldoctor.data import check as check_data

if TYPE_CHECKING:
    from collections.abc import Callable

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
RUNS = 5
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


def best(work: Callable[[], object]) -> float:
    """CPU seconds of the fastest of RUNS runs: what else the machine does only ever adds to them."""
    times = []
    for _ in range(RUNS):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def _parse_all(block: bytes) -> None:
    for line in block.splitlines():
        json.loads(line)


def measure_jsonl(folder: Path, megabytes: int) -> None:
    """Prints one line a kind of row: speed of the check, of json.loads alone, and their ratio."""
    for kind in (short, gsm8k, latex, mixed):
        block = "".join(json.dumps(kind(index)) + "\n" for index in range(20_000)).encode()
        path = folder / f"{kind.__name__}.jsonl"
        with path.open("wb") as stream:
            for _ in range(max(1, megabytes * 1_000_000 // len(block))):
                stream.write(block)
        checked = path.stat().st_size / best(partial(check_data, [path], CONTEXT)) / 1e6
        parsed = len(block) / best(partial(_parse_all, block)) / 1e6
        path.unlink()
        ratio = checked / parsed
        print(f"{kind.__name__:8} check {checked:5.0f} MB/s of CPU, json.loads alone {parsed:4.0f}: {ratio:.1f}x")


def main() -> None:
    """Runs all measurements."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as folder:
        measure_jsonl(Path(folder), megabytes)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of all of it, rows to be written included: {peak:.0f} MB")


if __name__ == "__main__":
    main()
