"""The check `host`: driver, GPUs, limits, CPUs, user and network, of this machine or of a saved dump."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from verldoctor import gpu, hostlimits, hostnet
from verldoctor.bounded import Unreadable
from verldoctor.dump import names, number, parse_table, read_dump, texts, whole
from verldoctor.finding import Finding, found
from verldoctor.text import safe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from verldoctor.context import Context

_WANTED = {
    **dict.fromkeys(("shm_bytes", "nofile", "nofile_hard", "nproc", "memlock_bytes"), number),
    **dict.fromkeys(("os_cpus", "cgroup_cpus", "affinity_cpus", "ray_cpus"), number),
    **dict.fromkeys(("ib_devices", "efa_devices", "interfaces", "host_addresses"), names),
    "nnodes": whole,
}
_KNOWN = {*_WANTED, "uid", "passwd_entry", "env", "gpus", "smi", "smi_text", "driver_version", "hostname", "container"}
_NEEDED = ("compute", "utility")


def check(paths: Sequence[Path], context: Context) -> list[Finding]:
    """Findings on each dump in `paths`, or on this machine where there is none."""
    if not paths:
        from verldoctor.machine import facts  # noqa: PLC0415 - a saved dump needs nothing of this machine

        return list(_live(facts(context.env), context.stack))
    return [finding for path in paths for finding in _file(path, context.stack)]


def dump(context: Context) -> str:
    """This machine as JSON, in the form that `check` reads."""
    from verldoctor.machine import facts  # noqa: PLC0415 - as above

    return json.dumps(facts(context.env), indent=2) + "\n"


def _live(facts: Mapping[str, Any], stack: Mapping[str, str]) -> Iterator[Finding]:
    subject = "this machine"
    yield from judge(facts, subject, stack)
    if not (facts.get("smi") or facts.get("smi_text") or _hidden(facts)):
        yield found("host", "HOST-NO-GPU", subject, remedy=hostlimits.remedy("gpu", facts))


def _file(path: Path, stack: Mapping[str, str]) -> Iterator[Finding]:
    subject = safe(path)
    try:
        data = read_dump(path)
        if not data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[")):
            yield from _smi(data.decode("utf-8-sig", "replace"), subject, stack)
            return
        facts = parse_table(data)
    except Unreadable as error:
        yield found("host", "HOST-DUMP", subject, measured=safe(error))
        return
    if not _KNOWN & facts.keys():
        yield found("host", "HOST-DUMP", subject, measured=f"none of its keys is known ({safe(', '.join(facts), 80)})")
    elif all(facts[key] is None for key in _KNOWN & facts.keys()):
        yield found("host", "HOST-DUMP", subject, measured="none of its keys has a value")
    yield from judge(facts, subject, stack)


def judge(facts: Mapping[str, Any], subject: str, stack: Mapping[str, str]) -> Iterator[Finding]:
    """Findings on a host dump, whatever part of one it holds."""
    yield from hostlimits.bad_values(facts, subject, _WANTED, "host")
    yield from hostlimits.judge(facts, subject)
    yield from hostnet.judge(facts, subject)
    yield from gpu.judge(_rows(facts), subject, stack)
    if isinstance(text := facts.get("smi_text"), str) and text:
        yield from _smi(text, subject, stack)
    if _hidden(facts):
        words = {"measured": safe(facts["driver_version"], 20), "right": "/dev/nvidiactl"}
        yield found("host", "HOST-GPU-HIDDEN", subject, remedy=hostlimits.remedy("gpu", facts), **words)
    yield from _capabilities(facts, subject)


def _hidden(facts: Mapping[str, Any]) -> bool:
    """Whether the host has a driver whose devices are not in this container."""
    told = facts.get("smi") or facts.get("smi_text")
    return bool(facts.get("driver_version")) and facts.get("nvidia_device") is False and not told


def _rows(facts: Mapping[str, Any]) -> list[gpu.Gpu]:
    listed = facts.get("smi") if isinstance(facts.get("smi"), list) else facts.get("gpus")
    rows = [texts(row) for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    rows = rows or ([texts(facts)] if facts.get("driver_version") or facts.get("compute_cap") else [])
    common = facts.get("driver_version", "")
    return [gpu.from_fields({"driver_version": str(common), **row}) for row in rows]


def _smi(text: str, subject: str, stack: Mapping[str, str]) -> Iterator[Finding]:
    if failure := gpu.smi_failure(text):
        yield found("host", "HOST-SMI", subject, measured=failure[0], remedy=failure[1])
        return
    gpus = gpu.read_smi(text)
    if not gpus:
        first = next((line for line in text.splitlines() if line.strip()), "")
        yield found("host", "HOST-SMI-EMPTY", subject, measured=f"it begins with {safe(first, 60)!r}")
    elif "driver_version" in text and not any(each.driver for each in gpus):
        yield found("host", "HOST-SMI-EMPTY", subject, measured="no driver version stands under driver_version")
    yield from gpu.judge(gpus, subject, stack)


def _capabilities(facts: Mapping[str, Any], subject: str) -> Iterator[Finding]:
    value = texts(facts.get("env")).get("NVIDIA_DRIVER_CAPABILITIES", "")
    parts = {part.strip() for part in value.split(",")}
    missing = [part for part in _NEEDED if part not in parts]
    if value and "all" not in parts and missing:
        words = {"missing": " or ".join(missing), "right": "compute,utility"}
        yield found("host", "HOST-CAPABILITIES", subject, measured=safe(value, 80), **words)
