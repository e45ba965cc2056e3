"""What was published: a data file that `publish --record` appends to, and docs/images.md made of it."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from verlstack import pins, reading
from verlstack.cache import atomic, sha256_file
from verlstack.errors import LockError

if TYPE_CHECKING:
    from pathlib import Path

FILE = "releases.toml"  # beside the pins
_HEAD = """\
# Images that were published. `verlstack publish … --record` appends to this file and makes docs/images.md of it.
"""
_PAGE = """\
# Published images

Made by `verlstack publish --record` from `constraints/releases.toml`; do not edit.
Lock: the first twelve digits of the image's label `dev.verlstack.lock`, which `constraints/STACK.lock.toml` has as
`checksum`. Dockerfile: of the SHA-256 of the `Dockerfile` that builds the same tree; none where none does.

"""
_NONE = "No image is published yet. Make one yourself: `make image`.\n"


@dataclass(frozen=True, kw_only=True)
class Release:
    """One published image.

    Attributes:
        release: stack, date of the epoch and the lock's first digits.
        reference: HOST/REPOSITORY:TAG.
        digest: of the image.
        lock: `sha256:…` of the lock that it was made from.
        dockerfile: `sha256:…` of the Dockerfile beside that lock; empty of a stack that it does not build.
    """

    release: str
    reference: str
    digest: str
    lock: str
    dockerfile: str


def load(constraints: Path) -> tuple[Release, ...]:
    """All releases, oldest first.

    Raises:
        LockError: the file is damaged.
    """
    path = constraints / FILE
    try:
        rows = tomllib.loads(reading.text(path)).get("release", []) if path.exists() else []
        return tuple(Release(**{name: str(value) for name, value in row.items()}) for row in rows)
    except (ValueError, TypeError, AttributeError) as e:
        raise LockError(
            f"not a list of releases: {e}", where=str(path), todo="mend it, or get it back from git"
        ) from None


def record(release: Release, constraints: Path) -> None:
    """Append a release, unless it is there, and write docs/images.md anew.

    Raises:
        LockError: the file is damaged.
        StorageError: it cannot be written.
    """
    known = load(constraints)
    rows = known if release in known else (*known, release)
    text = _HEAD + "".join(f"\n[[release]]\n{_table(row)}" for row in rows)
    with atomic(constraints / FILE) as out:
        out.write(text.encode())
    with atomic(constraints.parent / "docs" / "images.md") as out:
        out.write(page(rows).encode())


def _table(row: Release) -> str:
    return "".join(f'{name} = "{value}"\n' for name, value in asdict(row).items())  # no value holds a quote


def page(rows: tuple[Release, ...]) -> str:
    """docs/images.md, newest first."""
    if not rows:
        return _PAGE + _NONE
    lines = ["| release | tag | digest | lock | Dockerfile |", "|---|---|---|---|---|"]
    for row in reversed(rows):
        cells = (row.reference, row.digest, *(x.removeprefix("sha256:")[:12] for x in (row.lock, row.dockerfile)))
        words = [row.release, *(f"`{x}`" if x else "none" for x in cells)]
        lines.append(f"| {' | '.join(words)} |")
    return _PAGE + "\n".join(lines) + "\n"


def dockerfile(constraints: Path, stack: str) -> str:
    """`sha256:…` of the Dockerfile beside the pins; empty where it does not build this stack, or the stack is not here.

    Raises:
        PinsError: the pins are wrong.
    """
    path = constraints / "stacks.toml"
    if stack not in pins.names(path) or not pins.load(path, stack).dockerfile:
        return ""
    return f"sha256:{sha256_file(constraints.parent / 'Dockerfile')}"
