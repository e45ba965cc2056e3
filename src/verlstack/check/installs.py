"""Commands that install Python packages: who they are written for, what they name, and by which options."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from verlstack.check.asked import pinned

if TYPE_CHECKING:
    from packaging.version import Version

    from verlstack.check.dockerfile import Command

_PREFIXES = {"sudo", "exec", "env", "time", "command"}
_PYTHON = re.compile(r"(?:\S*/)?python[\d.]*")
_PIP = re.compile(r"(?:\S*/)?pip[\d.]*")
_VERBS = {"install", "wheel", "download", "uninstall", "sync", "config"}
# Options of pip and uv that take a word.
_TAKING = frozenset(
    {
        *("-r", "--requirement", "-c", "--constraint", "-i", "--index-url", "--extra-index-url", "-f", "--find-links"),
        *("-t", "--target", "--python", "--prefix", "--root", "-w", "--wheel-dir", "--python-version", "--platform"),
        *("--index", "--default-index", "--trusted-host", "--no-binary", "--only-binary", "--config-settings", "-C"),
        *("--global-option", "--timeout", "--cache-dir", "-d", "--dest", "--src", "--progress-bar", "--index-strategy"),
        *("-p", "--link-mode", "--retries", "-b", "--build-constraint", "-o", "--override", "--torch-backend"),
    }
)


@dataclass(frozen=True, kw_only=True)
class Install:
    """One `pip install`, `pip wheel` or `uv pip install`.

    Attributes:
        line: of its RUN.
        text: the command, `pip` first.
        environment: NAME=value words before it.
        options: its options without their values.
        packages: canonical name → the release that it is pinned to, or None; without those that a variable pins.
        names: canonical names of all of them.
        folders: folders and archives that it names.
        unknown: whether variables may name more.
    """

    line: int
    text: str
    environment: frozenset[str]
    options: frozenset[str]
    packages: dict[str, Version | None]
    names: frozenset[str]
    folders: tuple[str, ...]
    unknown: bool

    def has(self, *options: str) -> bool:
        """Whether one of these options is given."""
        return bool(self.options & set(options))


def plain(command: Command) -> tuple[str, frozenset[str]]:
    """A command as the rules' patterns expect it, and the names that are set in front of it."""
    words, names = _plain(command)
    return " ".join(words), names


def _plain(command: Command) -> tuple[list[str], frozenset[str]]:
    words, names = list(command.words), set()
    while words and (words[0] in _PREFIXES or re.match(r"\w+=", words[0])):
        if "=" in (word := words.pop(0)):
            names.add(word.partition("=")[0])
    if len(words) > 2 and _PYTHON.fullmatch(words[0]) and "-m" in words[1:4]:
        after = words.index("-m") + 1
        words = words[after:]
    if words and words[0].rpartition("/")[2] == "uv":
        words = words[_verb(words, {"pip"}) or 0 :]
    if words and _PIP.fullmatch(words[0]):
        words[0] = "pip"
        if at := _verb(words, _VERBS):  # options may stand before it, too
            words = ["pip", words[at], *words[1:at], *words[at + 1 :]]
    return words, frozenset(names)


def _verb(words: list[str], verbs: set[str]) -> int | None:
    """Where one of these words stands with nothing but options, and their words, before it."""
    for at, word in enumerate(words[1:], 1):
        if word in verbs:
            return at
        if not word.startswith("-") and not words[at - 1].startswith("-"):
            return None
    return None


def read(command: Command) -> Install | None:
    """The install that a command is, or None."""
    words, names = _plain(command)
    if words[:1] != ["pip"] or words[1:2] not in (["install"], ["wheel"], ["download"], ["sync"]):
        return None
    options, named = _options(words[2:])
    if words[1] == "sync":
        options |= {"-r"}
    packages: dict[str, Version | None] = {}
    hidden = set()
    folders = []
    for word in named:
        if word.endswith(".whl"):
            packages |= _of_wheel(word)
        elif re.match(r"[./~]|\w+://|git\+", word) or word.endswith((".tar.gz", ".zip")):
            folders.append(word)
        elif "$" not in word.partition("==")[0]:
            packages |= _of_requirement(word)
            hidden |= _named(word)
    return Install(
        line=command.line,
        text=" ".join(words),
        environment=names,
        options=frozenset(options),
        packages=packages,
        names=frozenset(packages.keys() | hidden),
        folders=tuple(folders),
        unknown=any("$" in word for word in named),
    )


def _options(words: list[str]) -> tuple[set[str], list[str]]:
    options: set[str] = set()
    named: list[str] = []
    left = iter(words)
    for word in left:
        if not word.startswith("-"):
            named.append(word)
            continue
        name, equals, _ = word.partition("=")
        if glued := re.fullmatch(r"(-[rce])[\w./]\S*", word):  # -rFILE
            name, equals = glued[1], "="
        options.add(name)
        if name in _TAKING and not equals:
            next(left, None)
    return options, named


def _of_wheel(word: str) -> dict[str, Version | None]:
    try:
        name, version, _, _ = parse_wheel_filename(word.rpartition("/")[2])
    except InvalidWheelFilename:
        return {}
    return {name: version}


def _named(word: str) -> set[str]:
    """The name of a requirement, whatever its version."""
    match = re.match(r"\s*([A-Za-z0-9][\w.-]*)", word.partition("==")[0])
    return {canonicalize_name(match[1])} if match else set()


def _of_requirement(word: str) -> dict[str, Version | None]:
    """A requirement; with a variable as its version it is pinned, if nobody knows to what."""
    name, equals, version = word.partition("==")
    try:
        requirement = Requirement(name if "$" in version else word)
    except InvalidRequirement:
        return {}
    known = pinned(requirement)
    return {} if equals and known is None else {canonicalize_name(requirement.name): known}
