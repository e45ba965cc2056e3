"""Whether actor, critic, reference and reward sit on groups of GPUs that exist, and what sharing them costs."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

from verldoctor.dump import whole
from verldoctor.finding import Finding, found
from verldoctor.text import safe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TRAINED, _FROZEN = 16, 2  # bytes a parameter: fp32 weight, gradient, two moments; bf16 weight
_ROLES = 32  # a placement names at most seven roles; more is no placement
_GPUS = 100_000


def groups(table: Mapping[str, Any]) -> dict[str, list[int] | None]:
    """Role to GPU ids from `placement`; None for what is no list of whole numbers."""
    placed = table.get("placement")
    if not isinstance(placed, dict):
        return {}
    return {safe(role, 40): _ids(group) for role, group in list(placed.items())[:_ROLES]}


def _ids(group: object) -> list[int] | None:
    listed = group.get("gpus") if isinstance(group, dict) else group
    if not isinstance(listed, list) or len(listed) > _GPUS:
        return None
    ids = [whole(entry) for entry in listed]
    return [n for n in ids if n is not None] if None not in ids else None


def judge(table: Mapping[str, Any], total: int | None, nodes: int, subject: str) -> Iterator[Finding]:
    """Findings on `placement` (role to GPU ids) and `pools` (name to processes on each node) with `mapping`."""
    placed = groups(table)
    good = {role: ids for role, ids in placed.items() if ids and _valid(ids, total)}
    for role in [role for role in placed if role not in good]:
        measured = safe(str(placed[role]) if placed[role] is not None else "no list of GPU numbers", 80)
        right = f"0 to {total - 1}" if total else "0, 1, ..."
        yield found("devices", "DEVICES-GROUP", subject, measured=measured, right=right, role=role)
    yield from _overlaps(good, subject)
    yield from _shared(good, subject)
    yield from _pools(table, total, nodes, subject)


def _valid(ids: list[int], total: int | None) -> bool:
    return len(set(ids)) == len(ids) and min(ids) >= 0 and (total is None or max(ids) < total)


def _overlaps(good: Mapping[str, list[int]], subject: str) -> Iterator[Finding]:
    for (role, ids), (other, theirs) in combinations(good.items(), 2):
        common = sorted(set(ids) & set(theirs))
        if {role, other} == {"actor", "rollout"} and set(ids) != set(theirs):
            words = {"measured": f"{short(ids)} and {short(theirs)}", "right": short(ids)}
            yield found("devices", "DEVICES-HYBRID", subject, **words)
        elif common and set(ids) != set(theirs):
            right = short(sorted(set(ids) | set(theirs)))
            yield found(
                "devices", "DEVICES-OVERLAP", subject, measured=short(common), right=right, role=role, other=other
            )


def _shared(good: Mapping[str, list[int]], subject: str) -> Iterator[Finding]:
    by_group: dict[frozenset[int], list[str]] = {}
    for role, ids in good.items():
        by_group.setdefault(frozenset(ids), []).append(role)
    for group, roles in by_group.items():
        models = [role for role in roles if role != "rollout"]
        if len(models) > 1:
            cost = sum(_TRAINED if role.startswith(("actor", "critic")) else _FROZEN for role in models)
            words = {"role": ", ".join(models), "cost": f"{cost}/{len(group)} bytes a parameter"}
            yield found("devices", "DEVICES-COLOCATED", subject, measured=short(sorted(group)), **words)


def _pools(table: Mapping[str, Any], total: int | None, nodes: int, subject: str) -> Iterator[Finding]:
    pools = table.get("pools")
    if not isinstance(pools, dict):
        return
    sizes = {safe(name, 40): _sizes(spec) for name, spec in list(pools.items())[:_ROLES]}
    for name, spec in sizes.items():
        if not spec or min(spec) < 1:
            words = {
                "measured": safe(spec, 60),
                "right": "a number from 1 on for each node",
                "role": name,
            }
            yield found("devices", "DEVICES-POOL", subject, **words)
    asked = sum(sum(spec) for spec in sizes.values())
    widest = max((max(spec, default=0) for spec in sizes.values()), default=0)
    if total is not None and (asked > total or widest > total // max(nodes, 1)):
        names = ", ".join(sizes)
        right = f"{total} on {nodes} node{'s' if nodes > 1 else ''}"
        yield found("devices", "DEVICES-POOL", subject, measured=asked, right=right, role=safe(names, 80))
    yield from _mapping(table.get("mapping"), sizes, subject)


def _sizes(spec: object) -> list[int]:
    listed = spec if isinstance(spec, list) else [spec]
    ids = [whole(entry) for entry in listed[:_GPUS]]
    return [n for n in ids if n is not None] if None not in ids else []


def _mapping(mapping: object, sizes: Mapping[str, list[int]], subject: str) -> Iterator[Finding]:
    if not isinstance(mapping, dict):
        return
    for role, pool in list(mapping.items())[:_ROLES]:
        if safe(pool, 40) not in sizes:
            words = {"measured": safe(pool, 40), "right": ", ".join(sizes) or "no pool", "role": safe(role, 40)}
            yield found("devices", "DEVICES-MAPPING", subject, **words)


def short(ids: list[int]) -> str:
    """A sorted list of GPU numbers, `0-7` where they follow each other."""
    if len(ids) > 2 and ids == list(range(ids[0], ids[-1] + 1)):
        return f"{ids[0]}-{ids[-1]}"
    return safe(", ".join(map(str, ids)), 80)
