"""`verlstack check`: find out what was asked for, hold it against its stack, and gather what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from verlstack import lockfile, pins, shell
from verlstack.check import against, asked, dockerrules, finding, knowledge, pinned, stacks, target, wheelname
from verlstack.check.answers import Asker
from verlstack.check.finding import Report
from verlstack.errors import LockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from verlstack.check.against import Against
    from verlstack.check.finding import Finding
    from verlstack.errors import PinsError
    from verlstack.pins import Stack
    from verlstack.workshop import Workshop


def check(
    name: str,
    default: Stack,
    shop: Workshop,
    dist: Path,
    run: Callable[..., shell.Result] = shell.run,
    *,
    probing: bool = True,
) -> Report:
    """Check a stack or a file.

    Args:
        name: a stack of the workshop's pins, or a path.
        default: the stack that a file which names none is held against.
        shop: the surroundings.
        dist: the folder of images.
        run: the program runner.
        probing: try the imports in a stack's image, too, which takes a minute.

    Raises:
        UsageError: it is nothing that can be checked.
        StorageError: the cache cannot be used.
    """
    kind = target.kind(name)
    path = Path(name)
    asker = Asker(cache=shop.cache, env=shop.env, offline=shop.offline, run=run)
    if kind == target.STACK:
        found = [*_extra_indexes(shop), *stacks.check(name, shop, dist, asker, probing=probing)]
        return _report(name, "stack", name, found)
    if kind == target.STACKS:
        names = pins.names(path)
        found = [one for stack in names for one in stacks.check_pins(path, stack, asker)]
        return _report(name, "pins", ", ".join(names), found)
    if kind == target.PINS:
        return _pins(name, path, default, shop, asker)
    facts = _against(default, shop)
    if kind == target.DOCKERFILE:
        found = dockerrules.check(asked.read(path), name, facts)
        return _report(name, "dockerfile", facts.name, found)
    return _report(name, "wheel", facts.name, _wheels(kind, path, facts, shop))


def invalid(name: str, e: PinsError, *, stack: bool) -> Report:
    """The report where the pins cannot be read: they are what is wrong, or nothing can be held against them."""
    severity = finding.FAIL if stack else finding.UNKNOWN
    fix = {"fix": e.todo} if e.todo else {}
    one = knowledge.finding(
        "PINS-INVALID", subject="the pins", measured=e.what, where=e.where or "", severity=severity, **fix
    )
    return _report(name, "stack" if stack else "file", "none", [one])


def is_stack(name: str) -> bool:
    """Whether a target is a stack's name.

    Raises:
        UsageError: it is nothing that can be checked.
    """
    return target.kind(name) == target.STACK


def _report(name: str, kind: str, stack: str, found: list[Finding]) -> Report:
    return Report(target=name, kind=kind, stack=stack, findings=finding.ordered(found))


def _against(stack: Stack, shop: Workshop) -> Against:
    """The facts of a stack; a lock that does not fit is not this check's subject."""
    try:
        lock = lockfile.load(shop.constraints, stack)
    except LockError:
        lock = None
    return against.of(stack, lock)


def _pins(name: str, path: Path, default: Stack, shop: Workshop, asker: Asker) -> Report:
    """Pins of a requirements file, or of a short table."""
    several = asked.short(asked.document(path), path) if path.suffix == ".toml" else [asked.requirements(path)]
    known = pins.names(shop.constraints / "stacks.toml")
    found, held = list(_extra_indexes(shop)), []
    for one in several:
        named = one.stack or path.name.partition(".")[0]
        stack = pins.load(shop.constraints / "stacks.toml", named) if named in known else default
        found += pinned.check(one, _against(stack, shop), asker)
        held.append(stack.name)
    return _report(name, "pins", ", ".join(dict.fromkeys(held)), found)


def _extra_indexes(shop: Workshop) -> list[Finding]:
    """An index besides the one: uv is given it, so that two sources answer for one name."""
    if not shop.env.get("UV_INDEX", "").strip():
        return []
    measured = "the environment names a second index"
    return [knowledge.finding("INDEX-EXTRA", subject="UV_INDEX", measured=measured, severity=finding.WARN)]


def _wheels(kind: str, path: Path, facts: Against, shop: Workshop) -> list[Finding]:
    if kind == target.WHEEL:
        if not path.exists():  # only its name, or an address, which writes + as %2B
            return wheelname.check(unquote(path.name), facts)
        return wheelname.check(path.name, facts, str(path)) + stacks.objects_of(path, facts, shop)
    found = []
    for number, line in enumerate(asked.read(path).splitlines(), 1):
        if line.strip().endswith(".whl"):
            found += wheelname.check(unquote(line.strip()), facts, f"{path}:{number}")
    return found
