"""How many CPUs may be used, how many the machine has, and how many Ray counts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROOT = Path("/sys/fs/cgroup")
_SELF = Path("/proc/self/cgroup")


def facts(env: Mapping[str, str], root: Path = _ROOT, self_file: Path = _SELF) -> dict[str, Any]:
    """os_cpus, cgroup_cpus (None: no limit), affinity_cpus and ray_cpus of this machine."""
    cpus = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cpus
    return {
        "os_cpus": cpus,
        "affinity_cpus": affinity,
        "cgroup_cpus": limit(root, _read(self_file)),
        "ray_cpus": ray_count(env, root, cpus),
    }


def limit(root: Path, membership: str) -> float | None:
    """CPUs that the quotas of our cgroup and of all above it allow; None without a quota.

    Inside a container with its own cgroup namespace the membership is `/`; on a host it is a slice.
    """
    quotas = []
    for line in membership.splitlines()[:64] or ["0::/"]:
        _, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        if controllers not in ("", "cpu", "cpu,cpuacct", "cpuacct,cpu"):
            continue
        bases = [root] if not controllers else [root / "cpu", root / controllers]
        quotas += [quota for base in bases for folder in _upwards(base, path) if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def _upwards(base: Path, path: str) -> list[Path]:
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    return [base.joinpath(*parts[:n]) for n in range(len(parts) + 1)]


def _quota(folder: Path) -> float | None:
    words = _read(folder / "cpu.max").split()
    if not words:
        words = [_read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()]
    try:
        quota, period = float(words[0]), float(words[1])
    except (ValueError, IndexError):
        return None  # "max", or no such controller
    return quota / period if quota > 0 and period > 0 else None


def ray_count(env: Mapping[str, str], root: Path, cpus: int) -> int:
    """What Ray will count: the quota of the cgroup root it sees and v1's cpuset, else every CPU of the machine."""
    if env.get("RAY_USE_MULTIPROCESSING_CPU_COUNT"):
        return cpus
    v1 = root / "cpu"
    quota = _quota(v1) if (v1 / "cpu.cfs_quota_us").exists() else _quota(root)
    counts = [count for count in (quota, _members(_read(root / "cpuset" / "cpuset.cpus"))) if count]
    return int(min(counts)) if counts else cpus


def _members(text: str) -> int:
    try:
        spans = [part.partition("-") for part in text.strip().split(",") if part]
        return sum(int(last or first) - int(first) + 1 for first, _, last in spans)
    except ValueError:
        return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[:65_536]
    except OSError:
        return ""
