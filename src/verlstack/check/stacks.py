"""A stack before it is built: pins, lock, every release of the closure, its shared objects, and whether it imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from verlstack import lockfile, pins
from verlstack.cache import sha256_file
from verlstack.check import against, baselibs, knowledge, objects, pinned, probe, releases, wheelname
from verlstack.check.asked import Asked, Line
from verlstack.errors import FetchError, LockError, PinsError, WheelError
from verlstack.extension import system

if TYPE_CHECKING:
    from pathlib import Path

    from verlstack.check.against import Against
    from verlstack.check.answers import Asker
    from verlstack.check.finding import Finding
    from verlstack.extension.system import Base
    from verlstack.lockfile import Lock
    from verlstack.pins import Stack
    from verlstack.workshop import Workshop


def check(name: str, shop: Workshop, dist: Path, asker: Asker, *, probing: bool = True) -> list[Finding]:
    """Everything that is wrong with a stack of the workshop's pins, and with its lock.

    Args:
        name: of the stack.
        shop: the surroundings.
        dist: the folder of images.
        asker: asks the index.
        probing: try the imports in the image, too, which takes a minute.

    Raises:
        UsageError: there is no such stack.
    """
    path = shop.constraints / "stacks.toml"
    try:
        stack = pins.load(path, name)
    except PinsError as e:
        return [_invalid(e, name)]
    try:
        lock = lockfile.load(shop.constraints, stack)
    except LockError as e:
        fix = {"fix": e.todo} if e.todo else {}
        stale = knowledge.finding("LOCK", subject=name, measured=e.what, where=e.where or "", **fix)
        return [stale, *check_pins(path, name, asker)]
    found = _closure(stack, lock, asker)
    promised = system.of_platform(stack.platform)
    base = baselibs.below(lock, dist / name, shop.cache, promised)
    found += _wheels(lock, against.of(stack, lock), shop, [promised, base] if base else [promised])
    return found + (probe.check(lock, shop, dist / name) if probing else [])


def check_pins(path: Path, name: str, asker: Asker) -> list[Finding]:
    """The pins of one stack, without a lock: as they would resolve today."""
    try:
        stack = pins.load(path, name)
    except PinsError as e:
        return [_invalid(e, name)]
    asked = Asked(stack=name, verl_tag=(stack.verl.tag, f"{path}, [stack.{name}.verl]"))
    where = f"{path}, [stack.{name}.requires]"
    asked.lines = [Line(requirement=Requirement(line), where=where) for line in stack.requires]
    if stack.flash_attn:
        flash = Requirement(f"{stack.flash_attn.project}=={stack.flash_attn.version}")
        asked.lines.append(Line(requirement=flash, where=f"{path}, [stack.{name}.flash_attn]"))
    return pinned.check(asked, against.of(stack, None), asker)


def _invalid(e: PinsError, name: str) -> Finding:
    fix = {"fix": e.todo} if e.todo else {}
    return knowledge.finding("PINS-INVALID", subject=f"stack {name}", measured=e.what, where=e.where or "", **fix)


def _closure(stack: Stack, lock: Lock, asker: Asker) -> list[Finding]:
    """Every release of the lock: known troubles, and whether the index still has it."""
    facts = against.of(stack, lock)
    found = list(releases.troubles(facts.versions, frozenset(facts.versions), lambda _: ""))
    lines = [f"{one.project}=={one.version}" for one in (*lock.wheels, *(built.source for built in lock.built))]
    try:
        answer = asker.ask(lines, python=facts.python, platform=facts.platform, deep=False)
    except FetchError as e:
        return [*found, pinned.unasked(e)]
    if answer.conflict:
        found.append(knowledge.finding("PINS-GONE", subject=f"the lock of {lock.stack}", measured=answer.conflict))
    return [*found, *pinned.yanked(answer.yanked)]


def _wheels(lock: Lock, facts: Against, shop: Workshop, bases: list[Base]) -> list[Finding]:
    """Every wheel of the lock: its name, and what its objects need of each of the bases."""
    compiled = [lock.compiled.wheel] if lock.compiled and lock.compiled.wheel else []
    found: list[Finding] = []
    unread = []
    for wheel in (*lock.wheels, *compiled):
        found += [one for one in wheelname.check(wheel.filename, facts) if one.code.startswith("WHEEL")]
        path = shop.cache.file(wheel.sha256, wheel.filename)
        if objects.kept(wheel.sha256, shop.cache) is None and not path.is_file():
            unread.append(wheel.project)
            continue
        try:
            needs = objects.needs(path, wheel.sha256, shop.cache)
        except WheelError as e:
            found.append(_unread(wheel.filename, e.what))
        else:
            found += [one for base in bases for one in objects.too_new(wheel.filename, needs, base)]
    if unread:
        found.append(_unread(", ".join(unread[:8]), f"{len(unread)} wheels are not in the cache"))
    return found


def _unread(subject: str, measured: str) -> Finding:
    return knowledge.finding("GLIBC-UNREAD", subject=subject, measured=measured)


def objects_of(path: Path, facts: Against, shop: Workshop) -> list[Finding]:
    """What the objects of a wheel on disk need beyond the stack's platform."""
    try:
        needs = objects.needs(path, sha256_file(path), shop.cache)
    except WheelError as e:
        return [knowledge.finding("WHEEL-FILE", subject=path.name, measured=e.what, where=str(path))]
    return list(objects.too_new(path.name, needs, system.of_platform(facts.platform)))
