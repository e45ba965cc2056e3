"""Turns a configuration file, a launch script or arguments like `+a.b=c` into dotted keys with values and lines."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from verldoctor.bounded import Unreadable, read_text
from verldoctor.text import safe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

LIMIT = 262_144  # bytes; verl's own ppo_trainer.yaml has 6 kB. PyYAML's parser needs about a second for this much
_DEPTH = 40  # verl nests five deep
_OPEN = 500  # levels open at once; a text in quotes may hold a few lone brackets
_NODES = 20_000  # visited, aliases again each time: stops "a billion laughs"
_OVERRIDE = re.compile(r"(?P<op>\+{0,2}|~)(?P<key>[A-Za-z_][\w@/-]*(?:\.[\w@/-]+)*)(?:=(?P<value>.*))?", re.DOTALL)
_SCRIPTS = {".sh", ".bash", ".slurm", ".sbatch", ".txt", ".args", ""}
_ENTRY = re.compile(r"verl\.trainer\.(main_ppo|fsdp_sft_trainer|main_generation|main_eval)\b")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VALUE = 500  # characters of a script's variable: a path; more could double at every line
_OWN_CONFIG = re.compile(r"--config-(?:name|path|dir)\b")


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
        repeated: keys that occur twice in one mapping, with their place.
    """

    name: str
    settings: Mapping[str, Setting]
    text: str = ""
    entry: str = ""
    whole: bool = False
    repeated: list[str] = field(default_factory=list)

    def under(self, prefix: str) -> dict[str, Setting]:
        """The settings below `prefix`, by the rest of their keys."""
        cut = f"{prefix}."
        return {key[len(cut) :]: setting for key, setting in self.settings.items() if key.startswith(cut)}


def load(path: Path) -> Config:
    """What the file `path` says; YAML and JSON by structure, everything else as a script with overrides.

    Raises:
        Unreadable: missing, too large, binary, or not parseable.
    """
    text, name = read_text(path, LIMIT), safe(path.name)
    if path.suffix.lower() in _SCRIPTS:
        return _script(name, text)
    tree, repeated = _Yaml(name).read(text)
    if isinstance(tree, list) and all(isinstance(item, str) for item in tree):
        return overrides(name, tree)  # .hydra/overrides.yaml is a list of strings
    if not isinstance(tree, dict):
        raise Unreadable("no mapping of names to values")
    settings = {key: setting for key, setting in tree.items() if isinstance(setting, Setting)}
    return Config(name=name, settings=settings, text=text, repeated=repeated)


def is_override(text: str) -> bool:
    """Whether a command line argument is an override like `+data.seed=1`, not a path."""
    match = _OVERRIDE.fullmatch(text)
    return bool(match and match["value"] is not None and ("." in match["key"] or match["op"]))


def overrides(name: str, words: list[str], *, text: str = "", entry: str = "", whole: bool = True) -> Config:
    """A configuration made of Hydra overrides alone."""
    settings: dict[str, Setting] = {}
    for word in words:
        match = _OVERRIDE.fullmatch(word)
        if match is None or not (is_override(word) or match["op"] == "~"):
            continue
        key = match["key"]
        value = override_value(match["value"] or "")
        settings.update(_leaves(key, value, name, match["op"]))
    return Config(name=name, settings=settings, text=text or "\n".join(words), entry=entry, whole=whole)


def _leaves(key: str, value: Any, name: str, op: str) -> dict[str, Setting]:
    """The settings of one override; `a={b: 1}` sets a.b."""
    if not isinstance(value, dict) or not value:
        return {key: Setting(value, f"{name} {safe(key, 100)}", op)}
    inner = [_leaves(f"{key}.{rest}", each, name, op) for rest, each in value.items()]
    return {each: setting for leaves in inner for each, setting in leaves.items()}


def override_value(text: str) -> Any:
    """The value of `key=TEXT` as Hydra reads it: YAML without the outer quotes; what does not parse stays text."""
    try:
        tree, _ = _Yaml("").read(text, keep=True)
    except Unreadable:
        return text
    return tree


def _script(name: str, text: str) -> Config:
    """Overrides in a launch script or in a file with one a line."""
    joined = re.sub(r"\\\r?\n", " ", text)
    words = _expanded([_words(line) for line in joined.splitlines()])
    entry = _ENTRY.search(text)
    return overrides(name, words, text=text, entry=entry[1] if entry else "", whole=_OWN_CONFIG.search(text) is None)


def _expanded(lines: list[list[str]]) -> list[str]:
    """The words of a script with its own plain variables put in; `$1`, `$HOME` and the like stay as they stand."""
    variables: dict[str, str] = {}
    words: list[str] = []
    for line in lines:
        known = [_VARIABLE.sub(lambda match: variables.get(match[1], match[0]), word) for word in line]
        assigned = [match for match in map(_ASSIGNMENT.fullmatch, known) if match]
        if len(assigned) == len([word for word in known if word != "export"]):
            variables.update((match[1], match[2]) for match in assigned if len(match[2]) <= _VALUE)
        words += known
    return words


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quote that does not close on this line
        return line.split()


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
