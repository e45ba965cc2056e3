"""What somebody wants checked: a stack by its name, or a file whose kind is found from its name and content."""

from __future__ import annotations

import re
from pathlib import Path

from verlstack.check import asked
from verlstack.errors import UsageError

STACK, PINS, STACKS, WHEEL, WHEELS, DOCKERFILE = "stack", "pins", "stacks", "wheel", "wheels", "dockerfile"
_DOCKERFILE = re.compile(r"(Dockerfile|Containerfile)(\..*)?|.*\.(Dockerfile|Containerfile)", re.IGNORECASE)
_FROM = re.compile(r"\A(\s*(#.*|ARG\s.*)?\n)*\s*FROM\s+\S", re.IGNORECASE)


def kind(target: str) -> str:
    """What a target is.

    Raises:
        UsageError: it is a file of no kind that is known.
    """
    path = Path(target)
    if not path.exists():
        if target.endswith(".whl") and ("/" not in target or "://" in target):
            return WHEEL  # a name alone tells enough
        if "/" in target or _looks_like_a_file(target):
            raise UsageError("there is no such file", where=target, todo="check the path")
        return STACK
    if not path.is_file():
        what = "that is a folder" if path.is_dir() else "that is no plain file"
        raise UsageError(what, where=target, todo="name a file, or a stack of stacks.toml")
    if target.endswith(".whl"):
        return WHEEL
    if path.name.endswith(".lock.toml"):
        stack = path.name.removesuffix(".lock.toml")
        raise UsageError("a lock is checked with its pins", where=target, todo=f"run `verlstack check {stack}`")
    return _of_content(path)


def _looks_like_a_file(target: str) -> bool:
    return bool(_DOCKERFILE.fullmatch(target)) or target.endswith((".txt", ".in", ".toml"))


def _of_content(path: Path) -> str:
    if path.suffix == ".toml":
        document = asked.document(path)
        if asked.is_short(document):
            return PINS
        if "stack" in document:
            return STACKS
        raise UsageError("it has no [stack.NAME]", where=str(path), todo="docs/check.md lists what is read")
    text = asked.read(path)
    if _DOCKERFILE.fullmatch(path.name) or _FROM.match(text):
        return DOCKERFILE
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    if lines and all(line.endswith(".whl") and "/" not in line for line in lines):
        return WHEELS
    if path.suffix in {".txt", ".in"} or not lines:
        return PINS
    raise UsageError(
        "this is no file of pins, wheel or Dockerfile, by its name and its content",
        where=str(path),
        todo="call requirements *.txt or *.in, a Dockerfile Dockerfile or *.Dockerfile",
    )
