"""Change pins by program: values in `stacks.toml`, its comments kept, and the lock renewed; all of it or nothing."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import re
import shutil
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verlstack import bakefile, lock, lockfile, pins
from verlstack.cache import atomic, storage_errors
from verlstack.errors import PinsError, VerlstackError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from verlstack.lockfile import Lock
    from verlstack.workshop import Workshop

Value = str | int


def repin(stack: str, table: str, values: Mapping[str, Value], shop: Workshop) -> Lock:
    """Write values into a table of the pins, and make the lock that belongs to them.

    Args:
        stack: whose lock to renew.
        table: dotted, `stack.cu121.flash_attn`.
        values: key → new value.
        shop: the surroundings.

    Raises:
        VerlstackError: as `rewrite`.
    """
    where = str(shop.constraints / "stacks.toml")
    return rewrite(stack, lambda text: edit(text, table, values, where=where), shop)


def rewrite(stack: str, change: Callable[[str], str], shop: Workshop) -> Lock:
    """Change the text of the pins, and make the lock that belongs to them.

    The lock is made beside, from a copy. Only when that is done are the files replaced, the pins first: killed in
    between, new pins meet an old lock, which is told as any stale lock is, and `verlstack lock` finishes the work.

    Args:
        stack: whose lock to renew.
        change: old text → new text.
        shop: the surroundings.

    Raises:
        PinsError: the file cannot be edited safely, what it then says is wrong, or somebody else changed it meanwhile.
        VerlstackError: as `lock.lock`.
    """
    path = shop.constraints / "stacks.toml"
    with (
        shop.cache.lock("pins"),
        storage_errors(shop.cache.tmp),
        tempfile.TemporaryDirectory(prefix="pins-", dir=shop.cache.tmp) as name,
    ):
        beside = Path(name)
        before = path.read_text(encoding="utf-8")
        (beside / path.name).write_text(change(before), encoding="utf-8")
        if (tools := shop.constraints / "tools.txt").exists():
            shutil.copy(tools, beside)  # the lock's third file, for the Dockerfile, names uv
        with _errors_name(shop.constraints, beside):
            made = lock.lock(pins.load(beside / path.name, stack), dataclasses.replace(shop, constraints=beside))
        if path.read_text(encoding="utf-8") != before:  # an editor knows nothing of our lock
            raise PinsError("the pins were changed meanwhile", where=str(path), todo="run the command again")
        for new in (beside / path.name, *lockfile.paths(beside, stack), bakefile.path(beside, stack)):
            if not new.exists():
                continue
            with atomic(shop.constraints / new.name) as out, new.open("rb") as f:
                shutil.copyfileobj(f, out)
    return made


@contextlib.contextmanager
def _errors_name(folder: Path, beside: Path) -> Iterator[None]:
    """Have errors name the user's files, since the copies beside are gone when they are read."""
    try:
        yield
    except VerlstackError as e:
        e.where = e.where and e.where.replace(str(beside), str(folder))
        raise


def edit(text: str, table: str, values: Mapping[str, Value], *, where: str) -> str:
    """The TOML text with values of one table set: in place where a key is there, else after the table's header.

    Raises:
        PinsError: the table has no header line of its own, or the change would change more than these values.
    """
    lines = with_table(text, table).splitlines(keepends=True)
    try:
        start = next(
            n for n, line in enumerate(lines) if re.fullmatch(rf"\[{re.escape(table)}\]\s*(#.*)?", line.rstrip())
        )
        for key, value in reversed(list(values.items())):  # new lines go below the header, one above the other
            _set(lines, start, key, f"{key} = {json.dumps(value, ensure_ascii=False)}")
        changed = "".join(lines)
        sound = tomllib.loads(changed) == _expected(tomllib.loads(text), table, values)
    except (StopIteration, tomllib.TOMLDecodeError, LookupError, TypeError, AttributeError):
        sound = False  # no such header, no TOML, or no table behind that header
    if not sound:
        wanted = ", ".join(f"{key} = {json.dumps(value)}" for key, value in values.items())
        raise PinsError(
            f"cannot edit [{table}] by program", where=where, todo=f"write it there yourself: {wanted}; then lock"
        )
    return changed


def with_table(text: str, table: str) -> str:
    """The TOML text, with an empty table below its parent's where that has none: a stack may inherit all of one."""
    parent, _, leaf = table.rpartition(".")
    try:
        inner = tomllib.loads(text)
        for part in parent.split("."):
            inner = inner[part]
        there = leaf in inner
    except (tomllib.TOMLDecodeError, LookupError, TypeError):
        return text  # what cannot be read or has no parent is told by whoever edits it
    lines = text.splitlines(keepends=True)
    header = re.compile(rf"\[{re.escape(parent)}\]\s*(#.*)?")
    start = next((n for n, line in enumerate(lines) if header.fullmatch(line.rstrip())), None)
    if there or start is None:
        return text
    end = next((n for n in range(start + 1, len(lines)) if lines[n].startswith("[")), len(lines))
    while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].startswith("#")):
        end -= 1  # comments above a header are about what follows
    lines[end - 1] = lines[end - 1].rstrip("\r\n") + "\n"
    return "".join([*lines[:end], f"\n[{table}]\n", *lines[end:]])


def _set(lines: list[str], start: int, key: str, line: str) -> None:
    """Replace the line of a key below a header, keeping its comment; or insert one after the header."""
    for n in range(start + 1, len(lines)):
        if lines[n].startswith("["):
            break
        if match := re.fullmatch(
            rf"{re.escape(key)}\s*=\s*(?:\"[^\"\\]*\"|[\d_]+)(\s*(?:#.*)?)", lines[n].rstrip("\r\n")
        ):
            lines[n] = f"{line}{match[1]}\n"
            return
    lines.insert(start + 1, f"{line}\n")


def _expected(document: dict[str, Any], table: str, values: Mapping[str, Value]) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    inner = changed
    for part in table.split("."):
        inner = inner.setdefault(part, {})
    inner.update(values)
    return changed
