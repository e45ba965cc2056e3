"""The import probe: every module that verl uses, imported in the image of this lock, and the result kept by lock."""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import TYPE_CHECKING, Any

from verlstack import canonical, engine, oci, prove, shell, told
from verlstack.cache import atomic
from verlstack.check import knowledge
from verlstack.errors import EngineError, LockError, ProofError, UsageError
from verlstack.unpacked import OUTSIDE, STRANGER, unpacked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from verlstack.check.finding import Finding
    from verlstack.lockfile import Lock
    from verlstack.workshop import Workshop

_PYTHON = "/opt/verl/bin/python"
_PATIENCE = 300.0  # seconds; all imports take about 30 on two busy cores
_FACTS = 3  # of a module that fails: kind of error, message, the module that is missing or null
_SHOWN = 5  # modules named in a finding
Results = dict[str, list[Any] | None]


def check(lock: Lock, shop: Workshop, layout: Path) -> list[Finding]:
    """What does not import; a warning where it could not be tried, for no probe is no pass."""
    script = resources.files("verlstack").joinpath("check/probe_worker.py").read_text(encoding="utf-8")
    note = shop.cache.root / "probes" / f"{canonical.digest([lock.digest, script])}.json"
    results = _recall(note)
    if results is None:
        try:
            results = _run(script, lock, shop, layout)
        except (UsageError, LockError, EngineError, ProofError) as e:
            fix = f"verlstack build {lock.stack}, then check again"
            return [knowledge.finding("PROBE-NOT-RUN", subject=lock.stack, measured=e.what, where=str(layout), fix=fix)]
        with atomic(note) as out:
            out.write(canonical.dumps(results))
    return list(judge(results))


def _recall(note: Path) -> Results | None:
    try:
        results = json.loads(note.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return results if _is_sound(results) else None


def _is_sound(results: object) -> bool:
    """Whether a probe ran to its end and said this: of verl, and of each module null or what went wrong."""
    if not isinstance(results, dict) or "verl" not in results:
        return False
    wrong = [x for x in results.values() if x is not None]
    return all(isinstance(x, list) and [type(y) for y in x[:2]] == [str, str] and len(x) == _FACTS for x in wrong)


def _run(script: str, lock: Lock, shop: Workshop, layout: Path) -> Results:
    """Run it in an engine that holds the image already, else in the unpacked layers.

    Raises:
        UsageError, LockError: there is no image of this lock.
        EngineError, ProofError: it cannot be started, or ends without a result.
    """
    digest, manifest, config = oci.read_layout(layout)
    prove.check_lock(config, lock, layout)
    words = (_PYTHON, "-c", script)
    found = engine.Engine.connect(shop.env)
    name = f"{oci.NAME}:{oci.engine_tag(layout)}"
    if found and (image := found.held(name, (digest, manifest["config"]["digest"]))):
        return _parsed(found.ask(prove.order(image, words, STRANGER), _PATIENCE))
    with unpacked(layout, shop.cache, shop.progress) as root:
        done = shell.run(root.command(words, user=STRANGER), env=OUTSIDE, timeout=_PATIENCE)
    if done.returncode:
        raise ProofError(f"the import probe does not run (exit status {done.returncode}):\n{done.tail}")
    return _parsed(told.plain(done.stdout))


def _parsed(text: str) -> Results:
    try:
        results = canonical.loads(text.strip().rpartition("\n")[2])
    except (ValueError, RecursionError):
        results = None
    if not _is_sound(results):
        raise ProofError(f"the import probe ended without a result: {text[-300:]}")
    found: Results = results
    return found


def judge(results: Mapping[str, list[Any] | None]) -> Iterator[Finding]:
    """A finding for each error, and what a stack need not have by the package that is absent."""
    table = knowledge.table("rules")["probe"]
    missing = {_missing(wrong) for wrong in results.values() if wrong}
    optional = {package: row for package, row in table["optional"].items() if package in missing}
    absent: dict[str, list[str]] = {}
    broken: dict[str, list[str]] = {}
    for module, wrong in results.items():
        if wrong is None:
            continue
        if package := _reason(module, wrong, optional):
            absent.setdefault(package, []).append(module)
        else:
            broken.setdefault(f"{wrong[0]}: {wrong[1]}", []).append(module)
    for error, modules in broken.items():
        yield _broken(error, modules, table["known"])
    yield from _absent(absent, optional)


def _missing(wrong: list[Any]) -> str:
    return str(wrong[2] or "").partition(".")[0]


def _reason(module: str, wrong: list[Any], optional: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The package, one that a stack need not have, whose absence is the whole reason."""
    for package, row in optional.items():
        if wrong[2] == package or str(wrong[2] or "").startswith(f"{package}."):
            return package
        if "modules" in row and re.match(row["modules"], module):
            return package
    return None


def _broken(error: str, modules: list[str], known: list[dict[str, str]]) -> Finding:
    for row in known:
        if row["error"] in error:
            reasons = {"why": row["why"], "source": row["source"]}
            return knowledge.finding("PROBE-LIMIT", subject=_some(modules), measured=error, **reasons)
    return knowledge.finding("PROBE", subject=_some(modules), measured=error)


def _absent(absent: Mapping[str, list[str]], optional: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """One finding for each package that training or rollout may want, and one for all others."""
    others = sorted(package for package in absent if not optional[package].get("alone"))
    for package in sorted(absent.keys() - set(others)):
        own = [module for module in absent[package] if module.startswith("verl.")]
        measured = f"not in the image; of verl's modules {len(own)} need it: {_some(own)}"
        right = f"it is there, if you want {optional[package]['gives']}"
        own_fix = {"fix": optional[package]["fix"]} if "fix" in optional[package] else {}
        yield knowledge.finding("PROBE-ABSENT", subject=package, measured=measured, right=right, **own_fix)
    if others:
        right = "; ".join(f"{package}: {optional[package]['gives']}" for package in others)
        yield knowledge.finding(
            "PROBE-ABSENT",
            subject=", ".join(others),
            measured="not in the image",
            right=f"there, if you want it. {right}",
        )


def _some(modules: list[str]) -> str:
    shown = sorted(modules)[:_SHOWN]
    return ", ".join(shown) + (f" and {len(modules) - _SHOWN} more" if len(modules) > _SHOWN else "")
