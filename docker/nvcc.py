#!/usr/bin/env python3
"""Stands before nvcc: compiles for the lock's architectures alone, and notes the time and memory of every file.

A package's setup.py may name architectures of its own (flash-attn 2.5 always adds 8.0 and 9.0); those are dropped, and
CUDA_ARCHS ("8.0 9.0") is put in their place. `--objdir-as-tempdir` gives intermediate files fixed names, which end up
in the objects. torch's builder takes this program through PYTORCH_NVCC (torch/utils/cpp_extension.py).
"""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

NVCC = os.environ["CUDA_HOME"] + "/bin/nvcc"


def arguments(given: list[str], archs: list[str]) -> list[str]:
    """The words for nvcc: `given` without its -gencode pairs and thread count, with those of `archs` ("8.0")."""
    kept: list[str] = []
    words = iter(given)
    for word in words:
        if word in {"-gencode", "--generate-code", "--threads"}:
            next(words, None)
        elif not word.startswith(("-gencode=", "--generate-code=", "--threads=")):
            kept.append(word)
    numbers = [arch.replace(".", "") for arch in archs]
    return ["--objdir-as-tempdir", *(f"-gencode=arch=compute_{n},code=sm_{n}" for n in numbers), *kept]


def main() -> int:
    """Compile one file, or hand the call on."""
    given = sys.argv[1:]
    if "-c" not in given:  # asked for its version, or to link
        os.execv(NVCC, [NVCC, *given])  # noqa: S606
    started = time.monotonic()
    status = subprocess.run([NVCC, *arguments(given, os.environ["CUDA_ARCHS"].split())], check=False).returncode
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024  # of the largest process; Linux counts in KiB
    source = next(Path(word).name for word in given if word.endswith((".cu", ".cpp")))  # torch writes `-c -c` before it
    with Path(os.environ["COMPILE_LOG"]).open("a", encoding="utf-8") as log:
        log.write(f"{source}\t{time.monotonic() - started:.1f} s\t{peak:.0f} MiB\t{status}\n")
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
