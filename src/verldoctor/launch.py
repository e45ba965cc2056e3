"""Reads a launch script as a shell would, without running it: which of verl's trainers it starts, with which words."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verldoctor import overrides

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENTRY = re.compile(r"\bverl[./]trainer[./](main_ppo|fsdp_sft_trainer|main_generation|main_eval)\b")
_OWN_CONFIG = re.compile(r"(?:--config-(?:name|path|dir)|-c[npd])(?:=|$)")  # Hydra's flags, long and short
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{(\w+)(?:\[[@*]\])?(?::?[-=]([^{}]*))?\})")
_ALONE = re.compile(r"\$\{?([A-Za-z_]\w*)(?:\[[@*]\])?\}?")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\((.*)", re.DOTALL)
_SIGNS = re.compile(r"""\\.|["']|(?:^|(?<=\s))#""")
_MODULE = {"-m", "--module"}  # else something is done about a run, as by pkill -f
_SAYS = {"echo", "printf"}
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_COUNT = re.compile(r"[1-9]\d{0,5}", re.ASCII)
_DECLARES = {"export", "local", "readonly", "declare", "-a"}
_ENDS = {"|", "||", "&&", ";", "&", "then", "do", "fi", "done", "else"}
_VALUE = 4000  # characters of a variable: a command's options; more could double at every line
_EXPANDED = 200_000  # characters that variables may add to a script; they could name each other without end
_STAYS_OPEN = 200  # lines that a text in quotes may span
_WITHIN = 3  # a command in quotes in a command in quotes: srun bash -c "python -m …"


@dataclass(frozen=True)
class Command:
    """One command of a script.

    Attributes:
        entry: the module of verl that it starts, or "".
        words: what may be an override, in order.
        own: whether it names a configuration of its own, or variables that the script does not set stand for some of
            its words, so that it is not verl's own configuration and these words alone.
        world: processes that torchrun starts for it; None where the script does not tell.
    """

    entry: str
    words: list[str]
    own: bool = False
    world: int | None = None


def starts_verl(text: str) -> bool:
    """Whether some command in `text` is one of verl's trainers."""
    return any(command.entry for command in commands(text))


def commands(text: str) -> list[Command]:
    """The commands of `text` that start verl; where there is none, all its words together, as a list of overrides."""
    shell = _Shell()
    lines = [shell.expanded(words) for words in _lines(text)]
    found = [command for line in lines for part in _parts(line) for command in _started(part, 0)]
    return found or [Command("", [word for line in lines for word in line if overrides.certain(word)])]


def _started(words: list[str], depth: int) -> Iterator[Command]:
    """The command of verl that `words` are, or those in a text in quotes among them."""
    for place, word in enumerate(words):
        entry = _ENTRY.search(word)
        if entry and any(sign.isspace() for sign in word) and depth < _WITHIN:
            for line in _lines(word):
                for part in _parts(line):
                    yield from _started(part, depth + 1)
        elif entry and (words[max(place - 1, 0)] in _MODULE or word.endswith(".py")) and words[0] not in _SAYS:
            rest = words[place + 1 :]
            own = any(_OWN_CONFIG.match(word) or _ALONE.fullmatch(word) for word in rest)
            yield Command(entry[1], [each for each in rest if overrides.read(each)], own, _world(words[:place]))
            return


def _world(words: list[str]) -> int | None:
    """How many processes the torchrun in front of verl's module starts."""
    told: dict[str, str] = {}
    for flag, after in zip(words, [*words[1:], ""], strict=True):
        name, sign, value = flag.lstrip("-").replace("-", "_").partition("=")
        if flag.startswith("-"):
            told[name] = value if sign else after
    counts = [told.get("nproc_per_node", ""), told.get("nnodes", "1")]
    if not all(_COUNT.fullmatch(count) for count in counts):
        return None
    return int(counts[0]) * int(counts[1])


def _parts(words: list[str]) -> Iterator[list[str]]:
    """The single commands of a line, apart at `;`, `|` and the like."""
    part: list[str] = []
    for word in words:
        bare = word.rstrip(";") if word.endswith(";") else word
        if word in _ENDS:
            yield part
            part = []
        else:
            part.append(bare)
            if bare != word:
                yield part
                part = []
    yield part


def _lines(text: str) -> Iterator[list[str]]:
    """The words of each line; a line goes on behind a backslash and inside of quotes."""
    lines = re.sub(r"\\\r?\n", " ", _COMMENT.sub("", text)).splitlines()  # a comment does not go on behind a backslash
    place = 0
    while place < len(lines):
        end = _closing(lines, place)
        yield _words("\n".join(lines[place:end]))
        place = end


def _closing(lines: list[str], start: int) -> int:
    """The end of the line that begins at `start`: where its quotes are closed, or its own if they never are."""
    quote = ""
    for end in range(start, min(start + _STAYS_OPEN, len(lines))):
        quote = _open_quote(lines[end], quote)
        if not quote:
            return end + 1
    return start + 1


def _open_quote(line: str, quote: str) -> str:
    """The quote that is open at the end of `line`, where `quote` was open at its start."""
    for match in _SIGNS.finditer(line):
        sign = match[0]
        if not quote and sign == "#":
            break
        if sign == quote:
            quote = ""
        elif not quote and sign in ("'", '"'):
            quote = sign
        elif quote == "'" and sign == "\\'":  # in single quotes a backslash is itself, and the quote closes
            quote = ""
    return quote


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quote that never closes
        return line.split()


class _Shell:
    """A script's own variables and arrays, put in where they are used; `$1` and `$HOME` stay as they stand."""

    def __init__(self) -> None:
        self._variables: dict[str, str] = {}
        self._arrays: dict[str, list[str]] = {}
        self._open = ""  # the array whose closing bracket has not come yet
        self._left = _EXPANDED

    def expanded(self, words: list[str]) -> list[str]:
        """`words` with variables put in; assignments among them are remembered."""
        known = [each for word in words for each in self._put_in(word)]
        if not self._open and known and (match := _ARRAY.fullmatch(known[0])):
            self._open, known = match[1], [match[3], *known[1:]]
            self._arrays[match[1]] = self._arrays.get(match[1], []) if match[2] else []
        if self._open:
            self._into_array(known)
            return []
        assigned = [match for match in map(_ASSIGNMENT.fullmatch, known) if match]
        if len(assigned) == len([word for word in known if word not in _DECLARES]):
            self._variables.update((match[1], match[2]) for match in assigned if len(match[2]) <= _VALUE)
        return known

    def _put_in(self, word: str) -> list[str]:
        if "$" not in word or self._left <= 0:
            return [word]
        alone = _ALONE.fullmatch(word)
        if alone and (array := self._arrays.get(alone[1])) is not None:
            self._left -= sum(map(len, array))
            return array
        value = _VARIABLE.sub(self._value, word)
        self._left -= max(len(value) - len(word), 0)
        return value.split() if alone and value != word else [value]

    def _value(self, match: re.Match[str]) -> str:
        default = match[0] if match[3] is None else match[3]
        name = match[1] or match[2]
        if name in self._arrays:  # in quotes with other words
            return shlex.join(self._arrays[name])
        return self._variables.get(name, default)

    def _into_array(self, words: list[str]) -> None:
        """Takes words of `NAME=(a b c)` into NAME, up to the bracket that closes it."""
        depth = sum(word.count(")") - word.count("(") for word in words)
        last = words[-1] if words else ""
        if depth > 0 and last.endswith(")"):
            words = [*words[:-1], last[:-1]]
        self._arrays[self._open] += [word for word in words if word]
        if depth > 0:
            self._open = ""
