"""A Dockerfile as stages and single commands, each with its line; only what the rules ask is understood."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from verlstack.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORDS = frozenset(
    {
        *("FROM", "RUN", "ENV", "ARG", "COPY", "ADD", "LABEL", "USER", "WORKDIR", "CMD", "ENTRYPOINT", "EXPOSE"),
        *("VOLUME", "STOPSIGNAL", "HEALTHCHECK", "ONBUILD", "SHELL", "MAINTAINER"),
    }
)
_HEREDOC = re.compile(r"<<(?P<dash>-?)(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)")
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)(?P<rest>[^}]*)\}|(?P<plain>\w+))")
_SEPARATORS = frozenset({"&&", "||", ";", "|", "&", "(", ")", "{", "}", "\n", "then", "do", "else", "!", "if", "while"})


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command of a RUN: its words, and the line on which the instruction begins."""

    words: tuple[str, ...]
    line: int

    @property
    def text(self) -> str:
        """The words, as one line."""
        return " ".join(self.words)


@dataclass(kw_only=True)
class Stage:
    """What follows one FROM.

    Attributes:
        name: after AS, or "".
        image: what it stands on: an image, or an earlier stage's name; None where a build argument without a value
            names it.
        line: of the FROM.
        commands: of its RUNs, in order.
        environment: NAME → (value, line), of ENV and ARG.
        copies: (text, line) of COPY and ADD.
    """

    name: str
    image: str | None
    line: int
    commands: list[Command] = field(default_factory=list)
    environment: dict[str, tuple[str, int]] = field(default_factory=dict)
    copies: list[tuple[str, int]] = field(default_factory=list)


def parse(text: str, where: str) -> list[Stage]:
    """The stages of a Dockerfile.

    Raises:
        UsageError: it has none, or a line is no instruction.
    """
    stages: list[Stage] = []
    shared: dict[str, tuple[str, int]] = {}
    for line, word, rest in _instructions(text, where):
        if word == "FROM":
            stages.append(_from(rest, line, shared))
        elif word in {"ARG", "ENV"}:
            _set(rest, line, stages[-1].environment if stages else shared, shared if word == "ARG" else {})
        elif not stages:
            raise UsageError(f"{word} stands before the first FROM", where=f"{where}:{line}", todo="begin with FROM")
        elif word == "RUN":
            stages[-1].commands += commands(rest, line)
        elif word in {"COPY", "ADD"}:
            stages[-1].copies.append((f"{word} {rest}", line))
    if not stages:
        raise UsageError("there is no FROM in it", where=where, todo="docs/check.md lists what can be checked")
    return stages


def lineage(stages: list[Stage], stage: Stage) -> list[Stage]:
    """A stage and those that it stands on, the lowest first."""
    found = [stage]
    while below := _named(stages[: stages.index(found[0])], found[0].image):
        found.insert(0, below)
    return found


def _named(stages: list[Stage], name: str | None) -> Stage | None:
    return next((one for one in reversed(stages) if name and one.name.lower() == name.lower()), None)


def _instructions(text: str, where: str) -> Iterator[tuple[int, str, str]]:
    """(line, word, the rest), with continued lines joined, comments dropped, and here-documents after the rest."""
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        begun = at + 1
        parts: list[str] = []
        while at < len(lines):
            line = lines[at].rstrip()
            at += 1
            if re.match(r"\s*(#|$)", line):
                if parts and at < len(lines):
                    continue  # a comment, or an empty line, inside a continued instruction
                break
            parts.append(line.removesuffix("\\"))
            if not line.endswith("\\"):
                break
        if not parts:
            continue
        word, _, rest = " ".join(part.strip() for part in parts).partition(" ")
        if word.upper() not in _WORDS:
            raise UsageError(f"{word[:40]!r} is no instruction", where=f"{where}:{begun}", todo="mend that line")
        for match in _HEREDOC.finditer(rest) if word.upper() in {"RUN", "COPY", "ADD"} else ():
            body = []
            while at < len(lines) and lines[at].strip("\t" if match["dash"] else "") != match["end"]:
                body.append(lines[at])
                at += 1
            at += 1
            rest = rest.replace(match[0], "", 1) + ("\n" + "\n".join(body) if word.upper() == "RUN" else "")
        yield begun, word.upper(), rest.strip()


def _from(rest: str, line: int, shared: dict[str, tuple[str, int]]) -> Stage:
    words = [word for word in rest.split() if not word.startswith("--")]
    name = words[2] if len(words) > 2 and words[1].upper() == "AS" else ""
    return Stage(name=name, image=_filled(words[0] if words else "", shared), line=line)


def _filled(text: str, values: dict[str, tuple[str, int]]) -> str | None:
    """`text` with variables replaced; None where one has no value."""

    def value(match: re.Match[str]) -> str:
        name, rest = match["braced"] or match["plain"], match["rest"] or ""
        own = values.get(name, ("", 0))[0]
        default = rest.lstrip(":").removeprefix("-") if rest.lstrip(":").startswith("-") else ""
        return own or default or "\0"

    filled = _VARIABLE.sub(value, text)
    return None if "\0" in filled else filled


def _set(rest: str, line: int, into: dict[str, tuple[str, int]], given: dict[str, tuple[str, int]]) -> None:
    """Note what ARG or ENV sets; the old form `ENV NAME value` too. An ARG without value takes the one before FROM."""
    words = _split(rest)
    if words and "=" not in words[0] and len(words) > 1:
        words = [f"{words[0]}={' '.join(words[1:])}"]
    for word in words:
        name, _, value = word.partition("=")
        into[name] = (value or given.get(name, ("", 0))[0], line)


def filled(command: Command, stage: Stage) -> Command:
    """A command with the variables replaced that its stage gives a value to; the others stay as they are."""

    def value(match: re.Match[str]) -> str:
        own = stage.environment.get(match["braced"] or match["plain"], ("", 0))[0]
        return own if own and not match["rest"] and "$" not in own else match[0]

    return Command(words=tuple(_VARIABLE.sub(value, word) for word in command.words), line=command.line)


def commands(text: str, line: int) -> list[Command]:
    """The single commands of a RUN, without its options."""
    while match := re.match(r"--\w+\S*\s+", text):
        text = text[match.end() :]
    if text.startswith("["):
        try:
            words = [str(word) for word in json.loads(text)]
        except ValueError:
            words = []
        if words:
            if words[:2] in (["sh", "-c"], ["bash", "-c"], ["/bin/sh", "-c"], ["/bin/bash", "-c"]):
                return commands(" ".join(words[2:3]), line)
            return [Command(words=tuple(words), line=line)]
    found: list[Command] = []
    for part in text.split("\n"):
        held: list[str] = []
        for word in [*_split(part), ";"]:
            if word not in _SEPARATORS and not re.fullmatch(r"[;&|()]+", word):
                held.append(word)
                continue
            if held:
                found.append(Command(words=tuple(held), line=line))
            held = []
    return found


def _split(text: str) -> list[str]:
    """Words as a shell has them, separators by themselves; by blanks where the quotes do not close."""
    try:
        lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()")
        lexer.whitespace_split = True
        lexer.commenters = ""
        return list(lexer)
    except ValueError:
        return text.split()
