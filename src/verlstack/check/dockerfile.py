"""A Dockerfile as stages and single commands, each with its line; only what the rules ask is understood."""

from __future__ import annotations

import itertools
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
# A word of its own outside quotes, as BuildKit has it: neither `<<<word` nor `$((1<<3))`.
_HEREDOC = re.compile(
    r"'[^']*'|\"(?:\\.|[^\"\\])*\"|(?<!\S)\d*<<(?P<dash>-?)(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)(?!\S)"
)
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)(?P<rest>[^}]*)\}|(?P<plain>\w+))")
_SHELL = re.compile(r"(?:\S*/)?(?:ba|da|k|z|a)?sh")
_MOST_STAGES = 200  # each is held against all below it; real ones have ten
_PREFIXED = 4  # words before which a shell may stand: sudo, env and NAME=value
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
        borrowed: (image, line) of what COPY takes files from and RUN mounts; an image, or an earlier stage's name.
    """

    name: str
    image: str | None
    line: int
    commands: list[Command] = field(default_factory=list)
    environment: dict[str, tuple[str, int]] = field(default_factory=dict)
    copies: list[tuple[str, int]] = field(default_factory=list)
    borrowed: list[tuple[str, int]] = field(default_factory=list)


def parse(text: str, where: str) -> list[Stage]:
    """The stages of a Dockerfile.

    Raises:
        UsageError: it has none, or a line is no instruction.
    """
    stages: list[Stage] = []
    shared: dict[str, tuple[str, int]] = {}
    for line, word, rest in _instructions(text, where):
        if stages:
            stages[-1].borrowed += _borrowed(word, rest, line, stages[-1].environment | shared)
        if word == "FROM":
            if len(stages) == _MOST_STAGES:
                what = f"it has more than {_MOST_STAGES} stages"
                raise UsageError(what, where=f"{where}:{line}", todo="check the file in parts")
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
        word, rest = _instruction(" ".join(part.strip() for part in parts), f"{where}:{begun}")
        for match in _HEREDOC.finditer(rest) if word in {"RUN", "COPY", "ADD"} else ():
            marks = [line.strip("\t") if match["dash"] else line for line in lines[at:]]
            if match["end"] not in marks:
                continue  # quotes, or a here-document without an end
            end = at + marks.index(match["end"])
            rest = rest.replace(match[0], "", 1) + ("\n" + "\n".join(lines[at:end]) if word == "RUN" else "")
            at = end + 1
        yield begun, word, rest.strip()


def _instruction(text: str, where: str) -> tuple[str, str]:
    """The word in capitals, and the rest; what ONBUILD keeps for later is done, only later."""
    word, rest = (*text.split(maxsplit=1), "")[:2]
    if word.upper() not in _WORDS:
        raise UsageError(f"{word[:40]!r} is no instruction", where=where, todo="mend that line")
    later = word.upper() == "ONBUILD" and rest and not re.match("ONBUILD", rest, re.IGNORECASE)  # which Docker refuses
    return _instruction(rest, where) if later else (word.upper(), rest)


def _borrowed(word: str, rest: str, line: int, values: dict[str, tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """What `--from=` of COPY, or `from=` of a mount, names."""
    for option in itertools.takewhile(lambda x: x.startswith("--"), rest.split()):
        name, _, value = option.partition("=")
        words = [value] if (word, name) == ("COPY", "--from") else value.split(",") if name == "--mount" else []
        for one in words:
            if name == "--mount" and not one.startswith("from="):
                continue
            if image := _filled(one.removeprefix("from="), values):
                yield image, line


def _from(rest: str, line: int, shared: dict[str, tuple[str, int]]) -> Stage:
    words = [word for word in rest.split() if not word.startswith("--")]
    name = words[2] if len(words) > 2 and words[1].upper() == "AS" else ""
    return Stage(name=name, image=_filled(words[0] if words else "", shared), line=line)


def _filled(text: str, values: dict[str, tuple[str, int]]) -> str | None:
    """`text` with variables replaced; None where one has no value."""

    def value(match: re.Match[str]) -> str:
        own = values.get(match["braced"] or match["plain"], ("", 0))[0]
        return own or _default(match) or "\0"

    filled = _VARIABLE.sub(value, text)
    return None if "\0" in filled else filled


def _default(match: re.Match[str]) -> str:
    """What `${NAME:-default}` gives where NAME has no value."""
    rest = (match["rest"] or "").lstrip(":")
    return rest[1:] if rest.startswith("-") else ""


def _set(rest: str, line: int, into: dict[str, tuple[str, int]], given: dict[str, tuple[str, int]]) -> None:
    """Note what ARG or ENV sets; the old form `ENV NAME value` too. An ARG without value takes the one before FROM."""
    words = _split(rest)
    if words and "=" not in words[0] and len(words) > 1:
        words = [f"{words[0]}={' '.join(words[1:])}"]
    for word in words:
        name, _, value = word.partition("=")
        into[name] = (value or given.get(name, ("", 0))[0], line)


def filled(command: Command, stage: Stage) -> Command:
    """A command with the variables replaced that have a value in its stage or a default; the others stay as they are.

    A value of several words becomes several, as without quotes.
    """

    def value(match: re.Match[str]) -> str:
        own = stage.environment.get(match["braced"] or match["plain"], ("", 0))[0] or _default(match)
        plain = not match["rest"] or _default(match)
        return own if own and plain and "$" not in own else match[0]

    words: list[str] = []
    for word in command.words:
        new = _VARIABLE.sub(value, word)
        words += [word] if new == word else new.split()
    return Command(words=tuple(words), line=command.line)


def commands(text: str, line: int) -> list[Command]:
    """The single commands of a RUN, without its options."""
    while match := re.match(r"--\w+\S*\s+", text):
        text = text[match.end() :]
    if text.startswith("["):
        try:
            words = [str(word) for word in json.loads(text)]
        except (ValueError, RecursionError):
            words = []
        if words:
            return _opened(words, line)
    found: list[Command] = []
    for part in text.split("\n"):
        held: list[str] = []
        for word in [*_split(part), ";"]:
            if word not in _SEPARATORS and not re.fullmatch(r"[;&|()]+", word):
                held.append(word)
                continue
            if held:
                found += _opened(held, line)
            held = []
    return found


def _opened(words: list[str], line: int) -> list[Command]:
    """A command; of `bash -c "…"` those in the quotes, each with the variables that stand in front."""
    at = next((n for n, word in enumerate(words[:_PREFIXED]) if _SHELL.fullmatch(word)), len(words))
    options = re.match(r"(?:-[a-bd-z]*[oO] \S+ |-\S+ )*", " ".join(words[at + 1 :]) + " ")
    given = options[0].split() if options else []
    script = words[at + 1 + len(given) :][:1]
    if not script or not any(re.fullmatch(r"-[a-z]*c[a-z]*", word) for word in given):
        return [Command(words=tuple(words), line=line)]
    before = tuple(word for word in words[:at] if re.match(r"\w+=", word))
    return [Command(words=before + one.words, line=line) for one in commands(script[0], line)]


def _split(text: str) -> list[str]:
    """Words as a shell has them, separators by themselves; by blanks where the quotes do not close."""
    try:
        lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()")
        lexer.whitespace_split = True
        lexer.commenters = ""
        return list(lexer)
    except ValueError:
        return text.split()
