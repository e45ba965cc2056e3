"""What every verb that makes something works with: folders, cache, environment, progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from verlstack import compose, fetch, index
from verlstack.base import interpreter
from verlstack.compose import Settings
from verlstack.errors import HashMismatchError
from verlstack.pins import FORMAT
from verlstack.source import Builder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from packaging.tags import Tag

    from verlstack import tar
    from verlstack.base.interpreter import Interpreter
    from verlstack.cache import Cache
    from verlstack.download import Artifact
    from verlstack.index import Index
    from verlstack.layer import Compression
    from verlstack.pins import Stack
    from verlstack.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """The surroundings of one command.

    Attributes:
        constraints: folder of pins and locks.
        smoke_tests: folder of the smoke tests, which every image holds.
        cache: where downloads, layers and bases are kept.
        env: the user's environment.
        progress: where progress is shown.
        workers: processes to compose with; the bytes do not depend on it.
        offline: use the cache alone.
        python_tree: `--python-tree`, the folder of the stack's Python where it is not found by itself.
    """

    constraints: Path
    smoke_tests: Path
    cache: Cache
    env: Mapping[str, str]
    progress: Progress
    workers: int
    offline: bool = False
    python_tree: Path | None = None

    @property
    def doctor(self) -> Path:
        """Folder of verldoctor in the same checkout, which every image holds, too."""
        return self.smoke_tests.parent / "src" / "verldoctor"

    def inside(self) -> list[tar.Entry]:
        """What the layer `smoke` is made of: what looks at an image from inside."""
        return [*compose.smoke_entries(self.smoke_tests), *compose.doctor_entries(self.doctor)]

    def find_interpreter(self, python: str) -> Interpreter:
        """The stack's own Python on this machine.

        Raises:
            BaseImageError: there is none; the message lists where it was looked for.
        """
        return interpreter.find(python, tree=self.python_tree, env=self.env)

    def fetch(self, artifacts: Sequence[Artifact]) -> dict[str, Path]:
        """Have files by hash, from the cache or through the configured index; SHA-256 → path.

        Raises:
            FetchError, HashMismatchError, StorageError: as `fetch.fetch`.
        """
        if self.offline or not self._all_cached(artifacts):
            return self._fetch(artifacts, None if self.offline else index.configured(self.env))
        try:
            return self._fetch(artifacts, None)  # without asking pip for the index: that costs half a second
        except HashMismatchError:
            return self._fetch(artifacts, index.configured(self.env))  # one is damaged: fetch it again

    def _all_cached(self, artifacts: Sequence[Artifact]) -> bool:
        return all(self.cache.file(a.sha256, a.filename).is_file() for a in artifacts)

    def _fetch(self, artifacts: Sequence[Artifact], where: Index | None) -> dict[str, Path]:
        return fetch.fetch(
            artifacts, cache=self.cache, index=where, offline=where is None, progress=self.progress, env=self.env
        )

    def builder(self, python: Interpreter, tags: frozenset[Tag]) -> Builder:
        """The builder of wheels that exist only as source."""
        return Builder(interpreter=python, tags=tags, cache=self.cache, say=self.progress.say, offline=self.offline)

    def settings(self, stack: Stack, python: Interpreter, compression: Compression | None = None) -> Settings:
        """What the layers of a stack have in common."""
        return Settings(
            interpreter=python,
            python=stack.python,
            platform=stack.platform,
            format=FORMAT,
            epoch=stack.epoch,
            compression=compression or stack.compression,
            leave_out=stack.leave_out,
        )
