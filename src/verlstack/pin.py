"""`verlstack pin`: other versions into the pins, the lock renewed with them, and what that changes and costs."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from verlstack import closurediff, images, inherit, lockfile, oci, pins, pullcost, repin, sides
from verlstack.errors import LockError, PinsError, UsageError
from verlstack.schema import Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from verlstack.closurediff import Change, Side
    from verlstack.lockfile import Lock
    from verlstack.pins import Stack
    from verlstack.pullcost import PullCost
    from verlstack.workshop import Workshop

_ENTRY = r'(?:"{0}"|{0})\s*=\s*\{{\s*bound\s*=\s*"[^"\\]*"\s*,\s*why\s*=\s*"(?:[^"\\]|\\.)*"\s*\}}(?P<rest>\s*(?:#.*)?)'

UNTRIED = "pinned by command, not tried"  # the reason of a version for which nobody gave one
_NEAR = 0.75  # of 1: a letter or two are wrong; short names of other packages stay unmentioned


@dataclass(frozen=True, kw_only=True)
class Repinned:
    """One changed pin.

    Attributes:
        key: as the pins have it, `ray[default]`.
        before: its bound before; None where the stack had none of its own.
        why: the reason that stands there now.
        lost: the reason of the bound before, where UNTRIED took its place; else None.
    """

    key: str
    before: str | None
    after: str
    why: str
    lost: str | None


@dataclass(frozen=True, kw_only=True)
class Report:
    """What new pins change.

    Attributes:
        lock_before: `sha256:…`.
        lock: likewise, now.
        packages: of the closure, added, removed and changed.
        layers: diff_ids that differ.
        pull: what a host with the old image must fetch for the new one.
        note: what could not be known; empty if all is.
        stale: other stacks that inherit what was changed, whose locks are no longer those of their pins.
    """

    stack: str
    pins: tuple[Repinned, ...]
    lock_before: str
    lock: str
    packages: tuple[Change, ...]
    layers: tuple[Change, ...]
    pull: PullCost
    note: str
    stale: tuple[str, ...]


def pin(stack: Stack, wanted: Sequence[str], why: str | None, shop: Workshop, layout: Path) -> Report:
    """Write pins `name==version`, renew the lock, and say what changes; on any failure all files are as before.

    Locking composes the changed layers, since it records their diff_ids: so the stored sizes are known, not guessed.

    Args:
        stack: as the pins have it.
        wanted: `name==version`.
        why: the reason for all of them; None is UNTRIED for each version that changes.
        shop: the surroundings.
        layout: where the image of the old lock is, if it is anywhere: its config tells how long the new one's will be.

    Raises:
        UsageError: not of that form, or a pin that stands elsewhere in the file.
        LockError: the lock is not that of the present pins, so that there is nothing to compare with.
        VerlstackError: as `repin.rewrite`.
    """
    before = lockfile.load(shop.constraints, stack)
    others = _checksums(stack, shop)
    versions = _versions(wanted, stack)
    table = f"stack.{stack.name}.requires"
    done: list[Repinned] = []

    def change(text: str) -> str:
        done[:] = [_repinned(text, stack.name, name, version, why) for name, version in versions.items()]
        for one in done:
            text = edit(text, table, one, where=str(shop.constraints / "stacks.toml"))
        return text

    after = repin.rewrite(stack.name, change, shop)
    report = _report(stack, tuple(done), before, after, shop, layout)
    now = _checksums(stack, shop)
    return dataclasses.replace(report, stale=tuple(x for x in others if now.get(x) != others[x]))


def _checksums(stack: Stack, shop: Workshop) -> dict[str, str]:
    """Name → checksum of the pins, of every other stack that can be read."""
    path, found = shop.constraints / "stacks.toml", {}
    for name in pins.names(path):
        with contextlib.suppress(PinsError):
            found[name] = pins.load(path, name).checksum
    del found[stack.name]
    return found


def _versions(wanted: Sequence[str], stack: Stack) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in wanted:
        name, version = _parse(word, stack)
        if found.setdefault(name, version) != version:
            raise UsageError(f"{name} is to be pinned to {found[name]} and to {version}", todo="name one of them")
    return found


def _parse(word: str, stack: Stack) -> tuple[str, str]:
    """(name, version) of `name==version`."""
    form = "write name==version, one exact release"
    try:
        requirement = Requirement(word)
        (bound,) = requirement.specifier
        Version(bound.version)
    except (InvalidRequirement, InvalidVersion, ValueError) as e:
        raise UsageError(f"{word!r} is no pin", todo=form) from e
    if bound.operator != "==" or requirement.url or requirement.marker:
        raise UsageError(f"{word!r} is no pin", todo=form)
    name = canonicalize_name(requirement.name)
    own = {"verl": "verl"} | ({stack.flash_attn.project: "flash_attn"} if stack.flash_attn else {})
    if name in own:
        where = f"[stack.{stack.name}.{own[name]}] of stacks.toml"
        what = f"{name} is made from a source that is pinned by its hash, so a version alone does not pin it"
        raise UsageError(what, todo=f"change version and hash in {where}, then run `verlstack lock {stack.name}`")
    return name, bound.version


def _repinned(text: str, stack: str, name: str, version: str, why: str | None) -> Repinned:
    stacks = tomllib.loads(text)["stack"]
    requires: dict[str, Any] = inherit.whole(Table(stacks, "stack"), stack).values["requires"]
    keys = {canonicalize_name(k.partition("[")[0]): k for k in requires}
    key = keys.get(canonicalize_name(name))
    after = f"=={version}"
    own = key in stacks[stack].get("requires", {})
    if key is None or not own:
        if not why and key:
            what = f"{stack} inherits {key}{requires[key]['bound']} from {stacks[stack]['extends']}"
            raise UsageError(what, todo='give the reason why it needs another one: --why "…"')
        if not why:
            what = f"{name} is not among the pins of {stack}, and every pin carries its reason"
            near = difflib.get_close_matches(name, keys, n=1, cutoff=_NEAR)
            did_you_mean = f"did you mean {near[0]!r}? If not, " if near else ""
            raise UsageError(what, todo=f'{did_you_mean}give the reason: --why "…"; it then becomes a layer of its own')
        return Repinned(key=key or name, before=None, after=after, why=why, lost=None)
    old = requires[key]
    if why or old["bound"] == after:
        return Repinned(key=key, before=old["bound"], after=after, why=why or old["why"], lost=None)
    return Repinned(key=key, before=old["bound"], after=after, why=UNTRIED, lost=old["why"])


def edit(text: str, table: str, one: Repinned, *, where: str) -> str:
    """The TOML text with one pin set in place, or added below the table's header; comments stay.

    Raises:
        PinsError: the pin does not stand in one line of the usual form, or more than it would change.
    """
    bare = re.fullmatch(r"[A-Za-z0-9_-]+", one.key)
    key = one.key if bare else json.dumps(one.key)
    bound, why = (json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") for value in (one.after, one.why))
    line = f"{key} = {{ bound = {bound}, why = {why} }}"
    lines = repin.with_table(text, table).splitlines(keepends=True)
    sound = False
    header = re.compile(rf"\[{re.escape(table)}\]\s*(#.*)?")
    start = next((n for n, x in enumerate(lines) if header.fullmatch(x.rstrip())), None)
    if start is not None:
        _set(lines, start, re.compile(_ENTRY.format(re.escape(one.key))), line, new=one.before is None)
        try:
            sound = tomllib.loads("".join(lines)) == _expected(text, table, one)
        except tomllib.TOMLDecodeError:
            sound = False
    if not sound:
        raise PinsError(
            f"cannot edit [{table}] by program", where=where, todo=f"write it there yourself: {line}; then lock"
        )
    return "".join(lines)


def _set(lines: list[str], start: int, entry: re.Pattern[str], line: str, *, new: bool) -> None:
    if new:
        lines.insert(start + 1, f"{line}\n")
        return
    for n in range(start + 1, len(lines)):
        if lines[n].startswith("["):
            return
        if match := entry.fullmatch(lines[n].rstrip("\r\n")):
            lines[n] = f"{line}{match['rest']}\n"
            return


def _expected(text: str, table: str, one: Repinned) -> dict[str, Any]:
    document = tomllib.loads(text)
    inner = document
    for part in table.split("."):
        inner = inner.setdefault(part, {})
    inner[one.key] = {"bound": one.after, "why": one.why}
    return document


def _report(
    stack: Stack, done: tuple[Repinned, ...], before: Lock, after: Lock, shop: Workshop, layout: Path
) -> Report:
    now = pins.load(shop.constraints / "stacks.toml", stack.name)
    had = {x.diff_id for x in before.layers}
    fresh = sides.stored(after, now, shop, {x.name for x in after.layers if x.diff_id not in had})
    new = sides.of_lock(after, "after", fresh)
    found = closurediff.compare(sides.of_lock(before, "before", {}), new)
    documents, note = _documents(stack, now, before, new, layout)
    return Report(
        stack=stack.name,
        pins=done,
        lock_before=f"sha256:{before.digest}",
        lock=f"sha256:{after.digest}",
        packages=found.packages or (),
        layers=found.layers,
        pull=pullcost.PullCost(layers=found.pull.layers, documents=documents),
        note=note,
        stale=(),
    )


def _documents(stack: Stack, now: Stack, before: Lock, new: Side, layout: Path) -> tuple[int | None, str]:
    """Bytes of the new image's config and manifest, told from the old image's; or None, and why."""
    if new.lock == f"sha256:{before.digest}":
        return 0, "nothing changes"
    try:
        _, manifest, config = oci.read_layout(layout)
    except (UsageError, LockError):
        return None, f"no image in {layout}, so the few kB of config and manifest are not counted"
    label = images.labels(config).get(f"{sides.LABEL}.pins", "")
    if images.labels(config).get(f"{sides.LABEL}.lock") != f"sha256:{before.digest}":
        return None, f"the image in {layout} is of another lock, so the few kB of config and manifest are not counted"
    asked = " ".join(now.requires) + label.removeprefix(" ".join(stack.requires))
    labels = {f"{sides.LABEL}.pins": asked, f"{sides.LABEL}.lock": new.lock or ""}
    names = images.names(manifest, config)
    return pullcost.documents(manifest, config, names=names, new=new.layers, labels=labels), ""
