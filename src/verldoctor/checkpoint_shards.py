"""Checks the per-rank files of one FSDP checkpoint: complete for one world size, of like sizes, each whole."""

from __future__ import annotations

import re
from statistics import median
from typing import TYPE_CHECKING

from verldoctor.checkpoint_files import check_file
from verldoctor.finding import Finding, found
from verldoctor.text import safe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from verldoctor.context import Context

KINDS = ("model", "optim", "extra_state")
SHARD = re.compile(r"(model|optim|extra_state)_world_size_(\d{1,9})_rank_(\d{1,9})\.pt$")
_MOST_NAMED = 3
_SMALL = 1 << 20  # below 1 MiB a shard's size is mostly headers and says nothing
_LEAST_SHARE = 0.5  # FSDP cuts every parameter into equal parts; ranks differ by padding only


def check_shards(path: Path, names: list[str], context: Context) -> Iterator[Finding]:
    """Findings about the shards among the `names` in directory `path`."""
    shards = [(hit[1], int(hit[2]), int(hit[3]), hit[0]) for hit in map(SHARD.match, names) if hit]
    sizes = sorted({world for _, world, _, _ in shards})
    if len(sizes) > 1:
        yield found("checkpoint", "CKPT-MIXED", safe(path), measured=", ".join(map(str, sizes[:10])))
    for world in sizes:
        for kind in KINDS:
            ranks = {rank: name for shard, size, rank, name in shards if (shard, size) == (kind, world)}
            yield from _complete(path, kind, world, set(ranks))
            yield from _alike(path, list(ranks.values()))
    for *_, name in sorted(shards):
        yield from check_file(path / name, context)


def _complete(path: Path, kind: str, world: int, ranks: set[int]) -> Iterator[Finding]:
    beyond = sorted(rank for rank in ranks if rank >= world)
    if beyond:
        name = f"{kind}_world_size_{world}_rank_{beyond[0]}.pt"
        yield found("checkpoint", "CKPT-RANK", safe(path), measured=name, right=f"rank_0 to rank_{world - 1}")
    count = world - len([rank for rank in ranks if rank < world])
    if count <= 0:
        return
    first = _first_missing(ranks, world)
    listed = ", ".join(f"{kind}_world_size_{world}_rank_{rank}.pt" for rank in first)
    more = f" and {count - len(first)} more" if count > len(first) else ""
    words = {"measured": listed + more, "right": f"{world} files, rank_0 to rank_{world - 1}"}
    yield found("checkpoint", "CKPT-MISSING", safe(path), shard=kind, **words)


def _first_missing(ranks: set[int], world: int) -> list[int]:
    """The first few ranks without a file; a world size in a name may be any number, so nothing counts up to it."""
    return [rank for rank in range(min(world, len(ranks) + _MOST_NAMED)) if rank not in ranks][:_MOST_NAMED]


def _alike(path: Path, names: list[str]) -> Iterator[Finding]:
    """Shards that are much smaller than their peers; an empty one is told by its own check."""
    sizes = {}
    for name in names:
        try:
            sizes[name] = (path / name).stat().st_size
        except OSError:
            continue  # a broken link, say: reading it is a finding
    middle = median(sizes.values()) if sizes else 0
    for name, size in sizes.items():
        if middle >= _SMALL and 0 < size < middle * _LEAST_SHARE:
            yield found("checkpoint", "CKPT-SIZE", safe(path / name), measured=f"{size} bytes", right=f"{middle:.0f}")
