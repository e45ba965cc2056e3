"""What stacks can and cannot do: declared in the pins, measured by the smoke tests, kept beside the lock."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from verlstack import canonical, pins, plan, reading
from verlstack.cache import atomic
from verlstack.errors import PinsError, ProofError, StorageError

if TYPE_CHECKING:
    from pathlib import Path

    from verlstack.lockfile import Lock

_TEST = re.compile(r"stack/test_capabilities\.py::test_capability\[(\w+)\]")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a run of the smoke tests found.

    Attributes:
        image: identity of the layers that it was found in, see `identity`.
        date: of the run, UTC, YYYY-MM-DD.
        found: capability → "" where the stack has it, else what stopped it.
    """

    image: str
    date: str
    found: dict[str, str]


def known() -> dict[str, str]:
    """Every capability with its sentence, in the order of the table, from data/capabilities.toml."""
    text = resources.files("verlstack").joinpath("data/capabilities.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(text))


def declared(stacks: Path, name: str) -> dict[str, str]:
    """What the pins say that a stack cannot do, each with its reason.

    Raises:
        PinsError: it names what is no capability, or as `pins.cannot`.
    """
    said = pins.cannot(stacks, name)
    if unknown := sorted(set(said) - set(known())):
        what = f"cannot.{unknown[0]} is no capability; there are {', '.join(known())}"
        raise PinsError(what, where=f"{stacks}, [stack.{name}.cannot]", todo="mend the name")
    return said


def identity(lock: Lock) -> str:
    """SHA-256 over the layers but for the smoke tests, hexadecimal: what a test changes is no other stack."""
    return canonical.digest([[x.name, x.diff_id] for x in lock.layers if x.name != plan.SMOKE_LAYER])


def path(constraints: Path, stack: str) -> Path:
    """The record beside a stack's lock."""
    return constraints / f"{stack}.measured.json"


def measured(constraints: Path, lock: Lock) -> Measured | None:
    """The record of a lock; None where there is none, or it is of other layers.

    Raises:
        ProofError: the record is damaged.
        StorageError: it cannot be read.
    """
    file = path(constraints, lock.stack)
    document = _read(file)
    if document is None:
        return None
    try:
        found = {str(name): str(said) for name, said in document["found"].items()}
        made = Measured(image=str(document["image"]), date=str(document["date"]), found=found)
    except (KeyError, TypeError, AttributeError) as e:
        todo = f"run `verlstack smoke {lock.stack} --record`"
        raise ProofError(f"the record is damaged: {type(e).__name__}: {e}", where=str(file), todo=todo) from e
    return made if made.image == identity(lock) else None


def record(constraints: Path, lock: Lock, report: Path, *, date: str) -> Path:
    """Keep what a report says of the capabilities.

    Raises:
        ProofError: the report lacks one: it is of a selection, or of an image with other tests.
        StorageError: the record cannot be written.
    """
    document = _read(report / "ranks-1.json") or {}
    found: dict[str, str] = {}
    for test in document.get("results", []):
        if match := _TEST.search(test["name"]):
            figures = test["figures"]
            if "can" in figures:
                found[match[1]] = "" if figures["can"] else figures["said"]
    if missing := [name for name in known() if name not in found]:
        raise ProofError(
            f"the report says nothing of {missing[0]}, so nothing is recorded",
            where=str(report / "ranks-1.json"),
            todo="run the tests on one rank, without -k, with the image of the present lock",
        )
    made = Measured(image=identity(lock), date=date, found={name: found[name] for name in known()})
    with atomic(path(constraints, lock.stack)) as out:
        out.write(json.dumps(vars(made), indent=1, ensure_ascii=False).encode() + b"\n")
    return path(constraints, lock.stack)


def _read(file: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(reading.data(file))
    except FileNotFoundError:
        return None
    except OSError as e:
        raise StorageError(
            f"cannot read it: {e.strerror}", where=str(file), todo="check the path, and that you may read it"
        ) from e
    except (ValueError, RecursionError) as e:
        raise ProofError(f"this is no JSON: {e}", where=str(file), todo="run the smoke tests again") from e
    if not isinstance(document, dict):
        raise ProofError("this is no JSON object", where=str(file), todo="run the smoke tests again")
    return document
