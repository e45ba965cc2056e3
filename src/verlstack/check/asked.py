"""What a file of pins asks for: requirements, exact versions, a verl tag, options, each with its line."""

from __future__ import annotations

import io
import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from verlstack import reading
from verlstack.check import knowledge
from verlstack.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from verlstack.check.finding import Finding

_MOST_FILES = 50  # that include one another
_MOST_TEXT = 1 << 23  # characters of one; a locked closure of 250 packages with all hashes has 400,000
_COMMENT = re.compile(r"(^|\s)#.*$")
_HASH = re.compile(r"\s+--(hash|config-settings?|global-option)[=\s]\S+")
_INCLUDE = re.compile(r"(?:-r|-c|--requirement|--constraint)[=\s]*(?P<path>\S+)")
_EXTRA = re.compile(r"--extra-index-url\b|--index\b(?!-url)")
_INDEX = re.compile(r"(?:-i|--index-url|--default-index)(?:=|\s+|(?<=-i))(?P<address>\S+)")
_VERL_GIT = re.compile(r"git\+[^@\s]*/verl(?:\.git)?(?:@(?P<tag>[^#\s]+))?")


_FORMS = {"python": r"3\.\d+", "cuda": r"\d+\.\d+"}  # what a short table may say besides its pins


@dataclass(frozen=True, kw_only=True)
class Line:
    """One requirement and where it stands."""

    requirement: Requirement
    where: str

    @property
    def name(self) -> str:
        """Canonical name."""
        return canonicalize_name(self.requirement.name)


@dataclass(kw_only=True)
class Asked:
    """What was read, in the order of the file.

    Attributes:
        stack: the stack that the file names, "" where it names none.
        python: X.Y that it names, likewise.
        cuda: CUDA that it names, likewise.
        index: address of the index that it names and where it stands, where it names one.
        lines: requirements.
        verl_tag: tag of verl's repository and where it stands, where one is named.
        findings: what is wrong with the file as such.
    """

    stack: str = ""
    python: str = ""
    cuda: str = ""
    index: tuple[str, str] | None = None
    lines: list[Line] = field(default_factory=list)
    verl_tag: tuple[str, str] | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def exact(self) -> dict[str, Version]:
        """Canonical name → the release that is pinned by ==."""
        found = {}
        for line in self.lines:
            if version := pinned(line.requirement):
                found[line.name] = version
        return found

    def where(self, name: str) -> str:
        """Where a package is asked for, "" where it is not."""
        return next((line.where for line in self.lines if line.name == name), "")


def pinned(requirement: Requirement) -> Version | None:
    """The one release that a requirement allows."""
    for one in requirement.specifier:
        if one.operator in {"==", "==="} and not one.version.endswith("*"):
            try:
                return Version(one.version)
            except InvalidVersion:
                return None
    return None


def requirements(path: Path) -> Asked:
    """A requirements or constraints file, as pip and uv read it, with the files that it includes.

    Raises:
        UsageError: it cannot be read.
    """
    asked = Asked()
    _include(path, asked, seen=[])
    return asked


def read(path: Path) -> str:
    """A file's text.

    Raises:
        UsageError: there is no such file, it is no text, or longer than any that people write.
    """
    try:
        with io.TextIOWrapper(reading.opened(path), encoding="utf-8-sig") as file:
            text = file.read(_MOST_TEXT + 1)
    except OSError as e:
        raise UsageError(f"the file cannot be read: {e.strerror}", where=str(path), todo="check the path") from e
    except UnicodeDecodeError as e:
        raise UsageError("the file is no UTF-8 text", where=str(path), todo="docs/check.md lists what is read") from e
    if len(text) > _MOST_TEXT:
        raise UsageError("the file is too long", where=str(path), todo="docs/check.md lists what is read")
    return text


def _include(path: Path, asked: Asked, seen: list[Path]) -> None:
    if path.resolve() in seen or len(seen) > _MOST_FILES:
        return  # pip reads a file once too
    seen.append(path.resolve())
    for number, text in _logical(read(path)):
        where = f"{path}:{number}"
        if include := _INCLUDE.fullmatch(text):
            inner = path.parent / include["path"]
            if inner.is_file():
                _include(inner, asked, seen)
            else:
                asked.findings.append(_invalid(text, "the file that it names is not there", where))
        elif index := _INDEX.fullmatch(text):
            asked.index = (index["address"], where)
        elif text.startswith("-"):
            asked.findings += option(text, where)
        else:
            _requirement(text, where, asked)


def _logical(text: str) -> list[tuple[int, str]]:
    """(line number, text) of each line that says something; a backslash joins it to the next."""
    found, begun, parts = [], 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        begun = begun or number
        parts += line.removesuffix("\\")
        if line.endswith("\\"):
            continue
        if said := _HASH.sub("", _COMMENT.sub("", parts)).strip():
            found.append((begun, said))
        begun, parts = 0, ""
    if said := _HASH.sub("", _COMMENT.sub("", parts)).strip():
        found.append((begun, said))
    return found


def option(text: str, where: str) -> list[Finding]:
    """What is wrong with a line of options."""
    if _EXTRA.search(text):
        shown = "--extra-index-url" if "--extra-index-url" in text else "--index"
        return [knowledge.finding("INDEX-EXTRA", subject=shown, measured="a second index is named", where=where)]
    if text.startswith(("-e", "--editable")):
        return [_address(text.rsplit(maxsplit=1)[-1], where)]
    return []


def _requirement(text: str, where: str, asked: Asked) -> None:
    if git := _VERL_GIT.search(text):
        tag = git["tag"] or ""
        if tag and not re.fullmatch(r"[0-9a-f]{7,40}", tag):
            asked.verl_tag = (tag, where)
        if not re.fullmatch(r"[0-9a-f]{40}", tag):
            asked.findings.append(_address("verl", where))
        return
    try:
        requirement = Requirement(text)
    except InvalidRequirement as e:
        what = "a file or folder is named" if re.match(r"\.{0,2}/|\w+://|\w+\+", text) else str(e).splitlines()[0]
        asked.findings.append(_invalid(text, what, where))
        return
    if requirement.url:
        asked.findings.append(_address(requirement.name, where))
    else:
        asked.lines.append(Line(requirement=requirement, where=where))


def _invalid(text: str, what: str, where: str) -> Finding:
    return knowledge.finding("PINS-INVALID", subject=repr(text[:200]), measured=what, where=where)


def _address(name: str, where: str) -> Finding:
    return knowledge.finding("PINS-ADDRESS", subject=name, measured="an address that can move is named", where=where)


def is_short(document: dict[str, Any]) -> bool:
    """Whether a TOML document is a short table of pins, `[stack.NAME]` with `package = "version"`."""
    stacks = document.get("stack")
    return isinstance(stacks, dict) and bool(stacks) and "image" not in document


def document(path: Path) -> dict[str, Any]:
    """A TOML file's content.

    Raises:
        UsageError: it cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(read(path))
    except tomllib.TOMLDecodeError as e:
        raise UsageError(f"the file is no TOML: {e}", where=str(path), todo="mend that line") from e
    except RecursionError as e:
        raise UsageError("the file is nested too deep", where=str(path), todo="docs/check.md lists what is read") from e


def short(document: dict[str, Any], path: Path) -> list[Asked]:
    """A short table of pins, one result for each stack in it."""
    return [_short(name, table, f"{path}, [stack.{name}]") for name, table in document["stack"].items()]


def _short(name: str, table: Any, where: str) -> Asked:
    asked = Asked(stack=name)
    if not isinstance(table, dict):
        asked.findings.append(_invalid(name, "it is no table", where))
        return asked
    for key, value in table.items():
        if key in {"title", "platform"}:
            continue
        if key in _FORMS and isinstance(value, str) and re.fullmatch(_FORMS[key], value):
            setattr(asked, key, value)
            continue
        if isinstance(value, dict):  # a pin as stacks.toml writes it
            value = value.get("bound", value.get("tag", value.get("version")))  # noqa: PLW2901
        if not isinstance(value, str) or key in _FORMS:
            asked.findings.append(_invalid(f"{key} = {value!r}", "it is no version", where))
        elif key == "verl":
            asked.verl_tag = (value, where)
        else:
            text = f"{key}{value}" if re.match(r"[<>=!~]", value) else f"{key}=={value}"
            _requirement(text, where, asked)
    return asked
