"""Reads CUDA_VISIBLE_DEVICES the way the CUDA driver and torch read it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verldoctor.finding import Finding, found
from verldoctor.text import safe

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "CUDA_VISIBLE_DEVICES"
_ENTRIES = 1024  # no machine has more GPUs
_NOTHING = {"", "-1", "nodevfiles", "none", "void", "all"}  # "all" and the like are NVIDIA_VISIBLE_DEVICES' words
_LEADING = re.compile(r"[+]?(\d{1,9})(?!\d)", re.ASCII)  # as strtoul does: what follows the digits is ignored


@dataclass(frozen=True)
class Visible:
    """What a process would see.

    Attributes:
        count: GPUs visible; None where that depends on a machine that we do not know.
        findings: what is wrong with the list.
    """

    count: int | None
    findings: tuple[Finding, ...]


def read(value: str | None, gpus: int | None, uuids: Sequence[str] = ()) -> Visible:
    """What `value` makes visible on a machine of `gpus` GPUs (None: unknown); a value of None is unset."""
    if value is None:
        return Visible(gpus, ())
    strip = not value.startswith(("GPU-", "MIG-"))  # torch strips indices only: a blank ends a list of UUIDs
    entries = [entry.strip() if strip else entry for entry in value.split(",")[:_ENTRIES]]
    if entries[0].lower() in _NOTHING or entries[0].startswith("-"):
        right = _numbers(min(gpus or 1, 8))
        return Visible(0, (_found("EMPTY", value, right=right),)) if gpus != 0 else Visible(0, ())
    if entries[-1] == "" and len(entries) > 1:
        entries.pop()  # a trailing comma ends the list, which is well
    return _read_entries(value, entries, gpus, uuids)


def _read_entries(value: str, entries: list[str], gpus: int | None, uuids: Sequence[str]) -> Visible:
    end = next((n for n, entry in enumerate(entries) if _problem(entry, entries[0], None, ())), len(entries))
    keys = [_key(entry) for entry in entries]
    twice = next((entries[n] for n in range(end) if keys[n] in keys[:n]), None)
    if twice is not None:
        unique = [entry for n, entry in enumerate(entries[:end]) if keys[n] not in keys[:n]]
        words = {"twice": safe(twice, 60), "right": safe(",".join(unique), 120)}
        return Visible(0, (_found("DUPLICATE", value, **words),))
    good = next((n for n, entry in enumerate(entries) if _problem(entry, entries[0], gpus, uuids)), len(entries))
    findings = [_bad(value, entries, good, gpus, uuids)] if good < len(entries) else _trailing(value, entries, gpus)
    if len(entries) > 1 and all(entry.startswith("MIG-") for entry in entries):
        return Visible(1, (*findings, _found("MIG", str(len(entries)), right="1")))
    return Visible(good, tuple(findings))


def _key(entry: str) -> str:
    """Entries of one key are one device: 0 and 00; a UUID in any case."""
    return str(_index(entry)) if _LEADING.match(entry) else entry.lower()


def _index(entry: str) -> int:
    match = _LEADING.match(entry)
    return int(match[1]) if match else -1


def _trailing(value: str, entries: list[str], gpus: int | None) -> list[Finding]:
    """A finding for the first entry such as `0;1`, of which only the leading 0 is read."""
    odd = next((entry for entry in entries if _LEADING.match(entry) and not _LEADING.fullmatch(entry)), None)
    if odd is None:
        return []
    wanted = re.findall(r"\d{1,9}", value, re.ASCII)[:_ENTRIES]
    fitting = list(dict.fromkeys(n for n in wanted if gpus is None or int(n) < gpus))
    visible = f"{len(entries)} {'is' if len(entries) == 1 else 'are'}"
    return [_found("TRAILING", value, bad=safe(odd, 60), visible=visible, right=safe(",".join(fitting), 120))]


def _problem(entry: str, first: str, gpus: int | None, uuids: Sequence[str]) -> str:
    """The rule that `entry` breaks, or ""."""
    form = _form(entry)
    if not form:
        return "RANGE" if re.fullmatch(r"-\d{1,9}|\d{10,}", entry) else "SYNTAX"
    if form != _form(first):
        return "MIXED"
    if form == "index":
        return "RANGE" if gpus is not None and _index(entry) >= gpus else ""
    known = [uuid for uuid in uuids if uuid.startswith(form)]
    return "RANGE" if known and sum(uuid.lower().startswith(entry.lower()) for uuid in known) != 1 else ""


def _form(entry: str) -> str:
    if _LEADING.match(entry):
        return "index"
    return next((form for form in ("GPU-", "MIG-") if entry.startswith(form) and len(entry) > len(form)), "")


def _bad(value: str, entries: list[str], good: int, gpus: int | None, uuids: Sequence[str]) -> Finding:
    rule = _problem(entries[good], entries[0], gpus, uuids)
    fitting = [entry for entry in entries if not _problem(entry, entries[0], gpus, uuids)]
    if _form(entries[0]) == "index" and gpus is not None:  # as many as were asked for, from those not named yet
        unused = [str(n) for n in range(min(gpus, _ENTRIES)) if str(n) not in fitting]
        fitting += unused[: len(entries) - len(fitting)]
    words = {
        "bad": safe(entries[good] or "an empty entry", 60),
        "gpus": _numbers(gpus)
        if _form(entries[0]) == "index" and gpus is not None
        else safe(", ".join(uuids), 200) or "unknown",
        "visible": f"{good} {'is' if good == 1 else 'are'}",
        "right": safe(",".join(fitting), 120) or _numbers(min(gpus or 1, 8)),
    }
    return _found(rule, value, **words)


def _numbers(count: int) -> str:
    return ",".join(str(n) for n in range(count)) if count <= 16 else f"0 to {count - 1}"


def _found(rule: str, value: str, **words: object) -> Finding:
    return found("devices", f"DEVICES-{rule}", NAME, measured=safe(value, 120) or '""', **words)
