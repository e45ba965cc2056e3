"""A lock of the stack `demo` that tests fill with what they are about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verlstack.download import Artifact
from verlstack.layer import Compression
from verlstack.lockfile import Lock

if TYPE_CHECKING:
    from verlstack.lockfile import Compiled


def artifact(project: str, version: str, digit: str = "0") -> Artifact:
    """A file of that project, whose hash is one digit over and over."""
    return Artifact(project=project, version=version, filename=f"{project}.whl", sha256=digit * 64, size=1)


def demo(*, compiled: Compiled | None = None, **contents: Any) -> Lock:
    """The lock with `contents`: wheels, built, build_tools, layers."""
    return Lock(
        stack="demo",
        digest="9" * 64,
        python="3.10",
        recorded_with="3.10.13",
        epoch=5,
        compression=Compression(level=3, window_log=20, long_distance=True, library="1.5.7"),
        registry_base=None,
        compiled=compiled,
        **contents,
    )
