"""What nvidia-smi printed, and whether its driver and its GPUs go with the stack's CUDA and torch."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verldoctor.finding import Finding, found
from verldoctor.text import safe
from verldoctor.versions import table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_DRIVER = re.compile(r"\d{3,4}\.\d{1,3}(?:\.\d{1,3})?")
_CAPABILITY = re.compile(r"\d{1,2}\.\d")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{4,80}")
_BANNER = re.compile(r"Driver Version:\s*(\d{3,4}\.[\d.]{1,12})")
_ROWS = 4096  # GPUs of one machine: 16; of a whole cluster's dump: thousands


@dataclass(frozen=True)
class Gpu:
    """One line of nvidia-smi.

    Attributes:
        line: its line number in the file, 0 if it has none.
        driver: driver version, or "".
        name: product name, or "".
        capability: compute capability such as 8.0, or "".
    """

    line: int
    driver: str
    name: str
    capability: str


def smi_failure(text: str) -> tuple[str, str] | None:
    """The error that nvidia-smi printed and what helps against it."""
    lowered = text.lower()
    for sign, remedy in table("gpus")["smi_failures"]:
        if sign in lowered:
            line = next(line for line in text.splitlines() if sign in line.lower() or sign in lowered)
            return safe(line.strip() or sign), remedy
    return None


def read_smi(text: str) -> list[Gpu]:
    """The GPUs in nvidia-smi's CSV (any columns, any order, with or without header) or in its plain table."""
    if banner := _BANNER.search(text):
        return [Gpu(line=0, driver=banner[1], name="", capability="")]
    try:
        rows = [[cell.strip() for cell in row] for _, row in zip(range(_ROWS), csv.reader(text.splitlines()))]  # noqa: B905
    except csv.Error:
        return []
    header = [cell.lower().partition(" [")[0] for cell in rows[0]] if rows else []
    told = "driver_version" in header or "name" in header
    numbered = [(row, line) for line, row in enumerate(rows, 1) if row][1 if told else 0 :]
    read = [_by_header(header, row, line) if told else _by_shape(row, line) for row, line in numbered]
    return [gpu for gpu in read if gpu.driver or gpu.capability]


def from_fields(fields: Mapping[str, str], line: int = 0) -> Gpu:
    """A GPU from fields named as nvidia-smi names its columns; what is not of the right form counts as not told."""
    driver = _matching(_DRIVER, fields.get("driver_version", ""))
    capability = _matching(_CAPABILITY, fields.get("compute_cap", ""))
    name = fields.get("name") or fields.get("gpu_name", "")
    return Gpu(line, driver, name, capability or capability_of(name))


def _by_header(header: list[str], row: list[str], line: int) -> Gpu:
    return from_fields(dict(zip(header, row)), line)  # noqa: B905 - a short row has fewer facts


def _by_shape(row: list[str], line: int) -> Gpu:
    driver = next((cell for cell in row if _DRIVER.fullmatch(cell)), "")
    short = [cell for cell in row if _CAPABILITY.fullmatch(cell)]
    letters = [cell for cell in row if re.search(r"[A-Za-z]{2}", cell) and not _UUID.fullmatch(cell)]
    name = letters[0] if letters else ""
    return Gpu(line, driver, name, capability_of(name) or (short[-1] if driver and short else ""))


def _matching(pattern: re.Pattern[str], cell: str) -> str:
    return cell if pattern.fullmatch(cell) else ""


def capability_of(name: str) -> str:
    """Compute capability by product name, or "": nvidia-smi before driver 510 cannot print it."""
    return next((cap for pattern, cap in table("gpus")["capability"] if re.search(pattern, name[:100])), "")


def judge(gpus: Iterable[Gpu], subject: str, stack: Mapping[str, str]) -> list[Finding]:
    """Findings on drivers and capabilities, each distinct one once."""
    findings: dict[tuple[str, ...], Finding] = {}
    for gpu in gpus:
        where = f"{subject}:{gpu.line}" if gpu.line else subject
        for finding in (_driver(gpu, where, stack), _arch(gpu, where, stack), _ampere(gpu, where)):
            if finding:
                findings.setdefault((finding.code, finding.measured, finding.message), finding)
    return list(findings.values())


def _driver(gpu: Gpu, where: str, stack: Mapping[str, str]) -> Finding | None:
    cuda = stack.get("cuda", "")
    least = table("gpus")["minor_compatibility"].get(cuda.partition(".")[0], "")
    if not gpu.driver or not least or _version(gpu.driver) >= _version(least):
        return None
    full = table("gpus")["drivers"].get(cuda, least)
    return found("host", "HOST-DRIVER", where, measured=gpu.driver, right=least, cuda=cuda, full=full)


def _arch(gpu: Gpu, where: str, stack: Mapping[str, str]) -> Finding | None:
    if not gpu.capability or "torch" not in stack:
        return None
    arch, gpu_name = "sm_" + gpu.capability.replace(".", ""), safe(gpu.name or "the GPU", 80)
    full = (
        f"{stack['torch']}+cu{stack.get('cuda', '').replace('.', '')}"  # metadata says 2.3.1, torch itself 2.3.1+cu121
    )
    archs = (table("gpus")["archs"].get(stack["torch"]) or table("gpus")["archs"].get(full, "")).split()
    if not archs:
        return found("host", "HOST-ARCH-UNKNOWN", where, measured=arch, torch=stack["torch"])
    if any(_runs(built, arch[3:]) for built in archs):
        return None
    right = ", ".join(f"sm_{built}" for built in archs)
    return found(
        "host", "HOST-ARCH", where, measured=arch, right=right, gpu=gpu_name, torch=stack["torch"], archs=right
    )


def _runs(built: str, device: str) -> bool:
    return built[:-1] == device[:-1] and int(built[-1]) <= int(device[-1])


def _ampere(gpu: Gpu, where: str) -> Finding | None:
    if not gpu.capability or float(gpu.capability) >= 8.0:
        return None
    arch = "sm_" + gpu.capability.replace(".", "")
    return found("host", "HOST-AMPERE", where, measured=arch, right="sm_80", gpu=safe(gpu.name or "the GPU", 80))


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", text))
