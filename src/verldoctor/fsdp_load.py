"""Turns a configuration file, a launch script or arguments like `+a.b=c` into dotted keys with values and lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from verldoctor import launch, overrides
from verldoctor.bounded import Unreadable, read_text
from verldoctor.text import safe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

LIMIT = 262_144  # bytes; verl's own ppo_trainer.yaml has 6 kB. PyYAML's parser needs about a second for this much
_DEPTH = 40  # verl nests five deep
_OPEN = 500  # levels open at once; a text in quotes may hold a few lone brackets
_NODES = 20_000  # visited, aliases again each time: stops "a billion laughs"
_LINED = 500  # overrides of a command whose lines are looked for, each through the whole text; a long one has 60
_WORD = re.compile(r"[A-Za-z_/][\w./-]*", re.ASCII)  # what is surely text or a number needs no parser, which takes long
_CONSTANTS = {"true", "false", "yes", "no", "on", "off", "null"}  # of YAML 1.1
_COUNT = re.compile(r"0|[1-9][0-9]{0,17}")
_SCRIPTS = {".sh", ".bash", ".slurm", ".sbatch", ".txt", ".args", ""}


@dataclass(frozen=True)
class Setting:
    """One value of a configuration.

    Attributes:
        value: plain data: str, int, float, bool, None, list, dict (empty, or inside a list).
        where: `file:line key`, fit to print.
        op: how Hydra would set it: "" (change), "+" (append), "++" (either), "~" (delete), or "yaml".
    """

    value: Any
    where: str
    op: str = "yaml"


@dataclass(frozen=True)
class Config:
    """What one input says.

    Attributes:
        name: of the input, fit to print.
        settings: dotted key to setting; the last one wins, as in Hydra.
        text: the raw text, to look for names in.
        entry: the verl module that a launch script starts, or "".
        whole: nothing but overrides was given, so verl's own YAML is below them and every default is certain.
        world: processes that the launch script's torchrun starts; None where that is not told.
        repeated: keys that occur twice in one mapping, with their place.
    """

    name: str
    settings: Mapping[str, Setting]
    text: str = ""
    entry: str = ""
    whole: bool = False
    world: int | None = None
    repeated: list[str] = field(default_factory=list)

    def under(self, prefix: str) -> dict[str, Setting]:
        """The settings below `prefix`, by the rest of their keys."""
        cut = f"{prefix}."
        return {key[len(cut) :]: setting for key, setting in self.settings.items() if key.startswith(cut)}


def load(path: Path) -> list[Config]:
    """What the file `path` says: one configuration, or one for each command of a launch script that starts verl.

    Raises:
        Unreadable: missing, too large, binary, or not parseable.
    """
    text, name = read_text(path, LIMIT), safe(path.name)
    if path.suffix.lower() in _SCRIPTS:
        return [_command(name, text, command) for command in launch.commands(text)]
    tree, repeated = _Yaml(name).read(text)
    if isinstance(tree, list) and all(isinstance(item, str) for item in tree):
        return [overridden(name, tree, text)]  # .hydra/overrides.yaml is a list of strings
    if not isinstance(tree, dict):
        raise Unreadable("no mapping of names to values")
    settings = {key: setting for key, setting in tree.items() if isinstance(setting, Setting)}
    return [Config(name=name, settings=settings, text=text, repeated=repeated)]


def overridden(name: str, words: list[str], text: str = "") -> Config:
    """A configuration made of Hydra overrides alone, which stand in the file `text` or on the command line."""
    return _command(name, text or " ".join(words), launch.Command("", words))


def _command(name: str, text: str, command: launch.Command) -> Config:
    """What the overrides of one command in the script `text` set; the last one wins."""
    settings: dict[str, Setting] = {}
    lined = text if len(command.words) <= _LINED else ""
    for word in command.words:
        if override := overrides.read(word):
            where = f"{name}{_line_of(word, override.key, lined)} {safe(override.key, 100)}"
            settings.update(_leaves(override.key, override_value(override.value), where, override.op))
    return Config(name, settings, text, command.entry, whole=not command.own, world=command.world)


def _line_of(word: str, key: str, text: str) -> str:
    """`:LINE` of the place in a text of several lines that says `word`, or at least sets `key`."""
    places = [text.find(part) for part in (word, f"{key}=")] if "\n" in text else []
    place = next((place for place in places if place >= 0), -1)
    return f":{text.count(chr(10), 0, place) + 1}" if place >= 0 else ""


def _leaves(key: str, value: Any, where: str, op: str) -> dict[str, Setting]:
    """The settings of one override; `a={b: 1}` sets a.b."""
    if not isinstance(value, dict) or not value:
        return {key: Setting(value, where, op)}
    inner = [_leaves(f"{key}.{rest}", each, where, op) for rest, each in value.items()]
    return {each: setting for leaves in inner for each, setting in leaves.items()}


def override_value(text: str) -> Any:
    """The value of `key=TEXT` as Hydra reads it: YAML without the outer quotes; what does not parse stays text."""
    if _WORD.fullmatch(text) and text.lower() not in _CONSTANTS:
        return text
    if _COUNT.fullmatch(text):
        return int(text)
    try:
        tree, _ = _Yaml("").read(text, keep=True)
    except Unreadable:
        return text
    return tree


class _Yaml:
    """Reads YAML through PyYAML's node tree, which tells lines and keeps nothing but plain scalars."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seen = 0
        self._repeated: list[str] = []

    def read(self, text: str, *, keep: bool = False) -> tuple[Any, list[str]]:
        """The document as dotted key to Setting (or a plain value: no mapping, or `keep`), and its repeated keys.

        Raises:
            Unreadable: not YAML, several documents, nested too deep, or expanding without end.
        """
        import yaml  # noqa: PLC0415 - 20 ms that other checks need not pay

        loader = yaml.SafeLoader(text) if _printable(text) else None
        if loader is None:
            raise Unreadable("control characters that YAML forbids")
        if _hopeless(text):
            raise Unreadable("nested too deep")
        try:
            node = loader.get_single_node()
            return self._document(loader, node, keep), self._repeated
        except RecursionError as error:
            raise Unreadable("nested too deep") from error
        except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise Unreadable(f"not YAML{_line(error)}") from error
        finally:
            loader.dispose()

    def _document(self, loader: Any, node: Any, keep: bool) -> Any:  # noqa: FBT001 - private
        if node is not None and node.id == "mapping" and not keep:
            return dict(self._flat(loader, node, "", 0))
        return None if node is None else self._plain(loader, node, 0)

    def _flat(self, loader: Any, node: Any, prefix: str, depth: int) -> Iterator[tuple[str, Setting]]:
        here: set[str] = set()
        for key_node, value_node in node.value:
            self._count(depth)
            key = f"{prefix}{key_node.value if key_node.id == 'scalar' else '?'}"
            line = f"{self._name}:{key_node.start_mark.line + 1} {safe(key, 100)}"
            if key in here:
                self._repeated.append(line)
            here.add(key)
            if value_node.id == "mapping" and value_node.value:
                yield from self._flat(loader, value_node, f"{key}.", depth + 1)
            else:
                yield key, Setting(self._plain(loader, value_node, depth + 1), line)

    def _plain(self, loader: Any, node: Any, depth: int) -> Any:
        self._count(depth)
        if node.id == "scalar":
            return _scalar(loader.construct_object(node)) if _known(node.tag) else str(node.value)
        if node.id == "sequence":
            return [self._plain(loader, item, depth + 1) for item in node.value]
        return {str(key.value): self._plain(loader, value, depth + 1) for key, value in node.value}

    def _count(self, depth: int) -> None:
        self._seen += 1
        if depth > _DEPTH or self._seen > _NODES:
            raise Unreadable("nested too deep, or aliases that expand without end")


def _known(tag: str) -> bool:
    """Whether a scalar's tag is a plain one; `!!python/…` and private tags stay text and are never constructed."""
    return tag.rpartition(":")[2] in {"str", "int", "float", "bool", "null"} and tag.startswith("tag:yaml.org,2002:")


def _scalar(value: Any) -> Any:
    """`1e-6` is text to PyYAML (YAML 1.1) and a number to OmegaConf."""
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d{1,3}", value):
        return float(value)
    return value


def _hopeless(text: str) -> bool:
    """Whether brackets or dashes open more levels than anybody writes; PyYAML would take seconds to find out."""
    opened = sum(text.count(sign) for sign in "[{") - sum(text.count(sign) for sign in "]}")
    return opened > _OPEN or "- " * _OPEN in text


def _printable(text: str) -> bool:
    import yaml  # noqa: PLC0415 - see _Yaml.read

    return yaml.reader.Reader.NON_PRINTABLE.search(text) is None


def _line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return f" at line {mark.line + 1}: {safe(getattr(error, 'problem', ''), 80)}" if mark is not None else ""
