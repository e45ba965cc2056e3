"""Rules on what the kernel and the container allow: shared memory, files, processes, locked memory, CPUs, the user."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from verldoctor.dump import UNLIMITED, number, texts, whole
from verldoctor.finding import Finding, found
from verldoctor.text import safe
from verldoctor.versions import table

Facts = Mapping[str, Any]
_GIB = 1 << 30
_SHM_FAIL = _GIB  # NCCL's guide: 1g; Docker's default is 64 MB
_NOFILE_FAIL, _NOFILE_WARN = (
    8192,
    65_535,
)  # Ray's own "at least" and what Ray sets where it may (65536; 65535 is as good)
_NPROC_FAIL, _NPROC_WARN = 8192, 32_768  # 128 CPUs x 64 threads; 512 x 64
_MEMLOCK_FAIL = _GIB  # NCCL: 32 channels x 4 MiB buffers x 8 peers
_NAMES = ("USER", "LOGNAME", "LNAME", "USERNAME")  # getpass.getuser() asks these before the passwd database


def judge(facts: Facts, subject: str) -> Iterator[Finding]:
    """Findings on limits, CPUs and user in a host dump."""
    yield from _shm(facts, subject)
    yield from _stepped(facts, subject, "nofile", "HOST-NOFILE", _NOFILE_FAIL, _NOFILE_WARN)
    if whole(facts.get("uid")) != 0:  # setrlimit(2): not enforced for real user 0
        yield from _stepped(facts, subject, "nproc", "HOST-NPROC", _NPROC_FAIL, _NPROC_WARN)
    yield from _memlock(facts, subject)
    yield from _cpus(facts, subject)
    yield from _ray(facts, subject)
    yield from _user(facts, subject)


def gpu_count(facts: Facts) -> int | None:
    """GPUs of the dump, given as a number or a list; None where it does not tell."""
    gpus = facts.get("gpus")
    return len(gpus) if isinstance(gpus, list) else whole(gpus)


def remedy(what: str, facts: Facts) -> str:
    """How this container runtime gives a container its `gpu` or more `shm`; every way where it is not told."""
    ways: dict[str, str] = table("containers")[what]
    return ways.get(str(facts.get("container", "")), ways[""])


def bad_values(
    facts: Facts, subject: str, wanted: Mapping[str, Callable[[object], Any]], kind: str
) -> Iterator[Finding]:
    """A finding for each key that is there and cannot be read as what it should be."""
    for key, read in wanted.items():
        if facts.get(key) is not None and read(facts[key]) is None:
            right = "a number" if read in (number, whole) else "a list of names"
            yield found(
                kind, f"{kind.upper()}-VALUE", subject, measured=safe(repr(facts[key]), 60), right=right, key=key
            )


def _shm(facts: Facts, subject: str) -> Iterator[Finding]:
    size, gpus = number(facts.get("shm_bytes")), gpu_count(facts)
    if size is None or size == UNLIMITED:
        return
    if size < _SHM_FAIL:  # one process has no peer to share memory with: slow, not broken
        code = "HOST-SHM" if gpus is None or gpus > 1 else "HOST-SHM-LOW"
        yield found("host", code, subject, measured=size_text(size), right="1 GiB", remedy=remedy("shm", facts))
    elif gpus and size < _SHM_FAIL * gpus:
        words = {"right": f"{gpus} GiB, 1 for each GPU,", "remedy": remedy("shm", facts)}
        yield found("host", "HOST-SHM-LOW", subject, measured=size_text(size), **words)


def _stepped(facts: Facts, subject: str, key: str, code: str, fail: int, warn: int) -> Iterator[Finding]:
    value = number(facts.get(key))
    if value is None or value == UNLIMITED or value >= warn:
        return
    hard = number(facts.get(f"{key}_hard"))
    raised = hard is not None and (hard == UNLIMITED or hard >= warn)  # Ray raises the soft limit itself
    if value < fail and not raised:
        yield found("host", code, subject, measured=f"{value:.0f}", right=fail)
    else:
        yield found("host", f"{code}-LOW", subject, measured=f"{value:.0f}", right=warn)


def _memlock(facts: Facts, subject: str) -> Iterator[Finding]:
    value = number(facts.get("memlock_bytes"))
    rdma = facts.get("ib_devices")
    if value is None or value == UNLIMITED or value >= _MEMLOCK_FAIL or (isinstance(rdma, list) and not rdma):
        return
    yield found("host", "HOST-MEMLOCK", subject, measured=size_text(value), right="unlimited")


def _cpus(facts: Facts, subject: str) -> Iterator[Finding]:
    allowed, cpus = number(facts.get("cgroup_cpus")), number(facts.get("os_cpus"))
    if allowed is None or cpus is None or allowed <= 0 or allowed >= cpus:
        return
    gpus = max(gpu_count(facts) or 1, 1)
    threads = max(int(allowed / gpus), 1)
    pinned = number(texts(facts.get("env")).get("OMP_NUM_THREADS"))
    if pinned is None or pinned > allowed:
        words = {"cpus": f"{cpus:g}", "threads": threads, "whole": max(int(allowed), 1)}
        yield found("host", "HOST-CPUS", subject, measured=f"{allowed:g}", right=f"OMP_NUM_THREADS={threads}", **words)


def _ray(facts: Facts, subject: str) -> Iterator[Finding]:
    counts = [number(facts.get(key)) for key in ("cgroup_cpus", "affinity_cpus", "os_cpus")]
    usable = min((count for count in counts if count is not None and count > 0), default=None)
    ray, gpus = number(facts.get("ray_cpus")), gpu_count(facts)
    if ray is None and usable is not None and number(facts.get("os_cpus")) is not None:
        ray = number(facts.get("cgroup_cpus")) or number(facts.get("os_cpus"))
    if ray is None:
        return
    if gpus and 0 <= ray < gpus + 1:
        yield found("host", "HOST-RAY-HANG", subject, measured=f"{int(ray)}", right=gpus + 1, gpus=gpus)
    if usable is not None and ray > math.ceil(usable):
        way = (
            f"pass ray.init(num_cpus={max(int(usable), 1)}), or start it so: ray start --num-cpus={max(int(usable), 1)}"
        )
        if "RAY_USE_MULTIPROCESSING_CPU_COUNT" in texts(facts.get("env")):
            way = "unset RAY_USE_MULTIPROCESSING_CPU_COUNT"
        yield found("host", "HOST-RAY-OVERCOUNT", subject, measured=f"{usable:g}", ray=f"{ray:g}", remedy=way)


def _user(facts: Facts, subject: str) -> Iterator[Finding]:
    env = texts(facts.get("env"))
    uid = safe(facts.get("uid", "of this process"), 20)
    if facts.get("passwd_entry") is False and not any(env.get(name) for name in _NAMES):
        yield found("host", "HOST-USER", subject, measured=uid, right="USER=verl")
    home = env.get("HOME")
    if facts.get("home_writable") is False or (
        facts.get("passwd_entry") is False and facts.get("uid") != 0 and home in ("", "/")
    ):
        yield found("host", "HOST-HOME", subject, measured=safe(home or "not set"), right="/tmp")  # noqa: S108 - the image's own


def size_text(size: float) -> str:
    """Bytes in the largest binary unit that keeps them readable."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size}"
