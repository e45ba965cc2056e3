"""The name of a compiled wheel before it exists: a hash over everything that decides what a compile must give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from verlstack import canonical

if TYPE_CHECKING:
    from verlstack.lockfile import Lock
    from verlstack.pins import Stack

_RECIPE = 1  # raise it when the key's parts change their meaning
# What the compile stage adds to the package's own flags (docker/nvcc.py, docker/flash-attn.sh).
FLAGS = ("--objdir-as-tempdir", "FLASH_ATTENTION_FORCE_BUILD=TRUE")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What decides a compiled wheel.

    Attributes:
        source_sha256: of the sdist.
        torch: its version, "2.3.1".
        cuda: the CUDA that torch was built for, "12.1".
        python: X.Y.
        cxx11_abi: torch's C++ ABI.
        cuda_archs: compute capabilities, "8.0", sorted.
        flags: what is added to the package's own.
        compiler: nvcc and g++ with their versions; "unknown" where nobody wrote it down.
    """

    source_sha256: str
    torch: str
    cuda: str
    python: str
    cxx11_abi: bool
    cuda_archs: tuple[str, ...]
    flags: tuple[str, ...]
    compiler: str

    @property
    def key(self) -> str:
        """64 hexadecimal digits."""
        return canonical.digest([_RECIPE, self])


def facts(stack: Stack, lock: Lock, compiler: str) -> Facts:
    """What decides the wheel that a lock's extension would be compiled to with this compiler.

    Raises:
        UsageError: the stack has no compiled extension.
        LockError: it has no torch.
    """
    compiled = lock.extension
    return Facts(
        source_sha256=compiled.source.sha256,
        torch=lock.wheel("torch").version,
        cuda=stack.cuda,
        python=lock.python,
        cxx11_abi=compiled.cxx11_abi,
        cuda_archs=compiled.cuda_archs,
        flags=FLAGS,
        compiler=compiler,
    )
