"""What the index answers to a set of pins, kept for a day: the releases chosen, their dates, what is yanked."""

from __future__ import annotations

import json
import re
import time
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from verlstack import canonical, index, plan, resolve, shell, told
from verlstack.cache import atomic
from verlstack.errors import FetchError, PinsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from verlstack.cache import Cache

_FORMAT = 1
_FRESH = 24 * 3600  # seconds; releases are yanked seldom, and a day is what a cache of an index may lag behind
_YANKED = re.compile(r"`(?P<name>[\w.-]+)==(?P<version>[^`]+)` is yanked(?: \(reason: \"(?P<reason>.*)\"\))?")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of one question.

    Attributes:
        versions: canonical name → release; empty where there is a conflict.
        dates: canonical name → day of upload, "2024-06-05", where the index tells.
        sdists: names of what exists only as source.
        yanked: "name==version" → the reason that its makers give.
        conflict: the resolver's words, "" where all is well.
    """

    versions: dict[str, str]
    dates: dict[str, str]
    sdists: tuple[str, ...]
    yanked: dict[str, str]
    conflict: str = ""


@dataclass(frozen=True, kw_only=True)
class Asker:
    """Asks uv on the configured index.

    Attributes:
        cache: where answers are kept.
        env: the user's environment.
        offline: take kept answers of any age, and ask nobody.
        run: the program runner.
        now: seconds since the epoch.
    """

    cache: Cache
    env: Mapping[str, str]
    offline: bool = False
    run: Callable[..., shell.Result] = shell.run
    now: Callable[[], float] = time.time

    def ask(self, lines: Sequence[str], *, python: str, platform: str, deep: bool = True) -> Answer:
        """Which releases satisfy the requirements.

        Args:
            lines: PEP 508 lines.
            python: X.Y.
            platform: uv's name of it.
            deep: with what they require; else each line is answered for itself.

        Raises:
            FetchError: the index does not answer, or offline and never asked.
        """
        question = [_FORMAT, sorted(lines), python, platform, deep, self._source()]
        note = self.cache.root / "answers" / f"{canonical.digest(question)}.json"
        kept = _recall(note, None if self.offline else self.now() - _FRESH)
        if kept:
            return kept
        if self.offline:
            raise FetchError("the index was never asked this, and we are offline", todo="run once without --offline")
        answer = self._resolve(lines, python, platform, deep=deep)
        with atomic(note) as out:
            out.write(canonical.dumps({"at": int(self.now()), "answer": answer}))
        return answer

    def _source(self) -> list[str]:
        """What names the index, so that another index has other answers; hashed, never kept."""
        names = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "PIP_INDEX_URL", "PIP_CONFIG_FILE", "HOME")
        return [self.env.get(name, "") for name in names]

    def _resolve(self, lines: Sequence[str], python: str, platform: str, *, deep: bool) -> Answer:
        seen: list[shell.Result] = []

        def run(command: Sequence[str | Path], **how: Any) -> shell.Result:
            """As `resolve` asks, but with uv's warnings, which tell of yanked releases."""
            words = [word for word in command if word != "--quiet"] + ([] if deep else ["--no-deps"])
            seen.append(self.run(words, **how))
            return seen[-1]

        env = index.uv_environment(index.configured(self.env, self.run), self.env)
        try:
            found = resolve.resolve(
                lines, python=python, platform=platform, tags=plan.tags(python, platform), env=env, where="", run=run
            )
        except PinsError as e:
            return Answer(versions={}, dates={}, sdists=(), yanked=_yanked(seen), conflict=_words(e.what))
        return Answer(
            versions={file.project: file.version for file in (*found.wheels, *found.sdists)},
            dates=_dates(seen[-1].stdout),
            sdists=tuple(sorted(file.project for file in found.sdists)),
            yanked=_yanked(seen),
        )


def _words(what: str) -> str:
    """The resolver's reasons, without its warnings and our own first line."""
    lines = [line for line in what.splitlines()[1:] if not line.startswith("warning:")]
    return "\n".join(lines) or what


def _yanked(seen: Sequence[shell.Result]) -> dict[str, str]:
    matches = (match for done in seen for match in _YANKED.finditer(told.plain(done.stderr)))
    return {f"{canonicalize_name(m['name'])}=={m['version']}": m["reason"] or "" for m in matches}


def _dates(pylock: str) -> dict[str, str]:
    """The day on which the first file of each release came."""
    found: dict[str, str] = {}
    for package in tomllib.loads(pylock)["packages"]:
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        days = [str(file["upload-time"])[:10] for file in files if "upload-time" in file]
        if days:
            found[canonicalize_name(package["name"])] = min(days)
    return found


def _recall(note: Path, since: float | None) -> Answer | None:
    """A kept answer that is fresh enough, and whole."""
    try:
        kept = json.loads(note.read_bytes())
        if since is not None and kept["at"] < since:
            return None
        answer: dict[str, Any] = kept["answer"]
        return Answer(**answer | {"sdists": tuple(answer["sdists"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None
