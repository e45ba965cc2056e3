"""Tells which kind of model a path means: from its config.json where that can be read, else from its name."""

from __future__ import annotations

import re
from pathlib import Path

from verldoctor.bounded import Unreadable, read_object
from verldoctor.versions import table

_CONFIG_BYTES = 4_000_000


def model_type(path: object) -> str:
    """The model_type of the model at `path`, e.g. `llama`; "" if neither a config.json nor the name tells."""
    if not isinstance(path, str) or not path or len(path) > 4096:
        return ""
    return _from_folder(path) or from_name(path)


def _from_folder(path: str) -> str:
    try:
        value = read_object(Path(path).expanduser() / "config.json", _CONFIG_BYTES).get("model_type")
    except (Unreadable, RuntimeError):  # RuntimeError: no home directory to expand ~ with
        return ""
    return value if isinstance(value, str) else ""


def from_name(path: str) -> str:
    """The type that the last two parts of `path` (`org/model`) suggest; the first pattern that fits wins."""
    name = "/".join(path.rstrip("/").lower().split("/")[-2:])
    for pattern, kind in table("families")["patterns"]:
        if re.search(pattern, name):
            return str(kind)
    return ""


def wrap_problem(kind: str, name: str) -> str:
    """The classes to wrap in a model of type `kind` if it has no class `name`; "" if it has, or that is not known."""
    modules = table("modules")
    known = modules["modules"].get(kind)
    if not known or name in known or name in modules_of_torch():
        return ""
    layers = modules["no_split"].get(kind) or [c for c in known if c.endswith(("Layer", "Block"))]
    return ", ".join(layers)


def modules_of_torch() -> frozenset[str]:
    """Module classes of torch itself and of peft that may occur in any model."""
    return frozenset(table("families")["shared_modules"])
