"""`verlstack base use`: a registry's base by digest into the pins, and the lock renewed with it, all or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from verlstack import build, lockfile, repin
from verlstack.base import reference
from verlstack.errors import LockError

if TYPE_CHECKING:
    from pathlib import Path

    from verlstack.pins import Stack
    from verlstack.workshop import Workshop


@dataclass(frozen=True, kw_only=True)
class Report:
    """What changed.

    Attributes:
        before: the reference that stood in the pins, or None.
        after: the one that stands there now.
        lock_before: digest of the lock before; None where there was none that fits.
        lock: its digest now.
    """

    stack: str
    before: str | None
    after: str
    lock_before: str | None
    lock: str


def use(stack: Stack, shop: Workshop, text: str) -> Report:
    """Make `text` the registry base of a stack: pulled and judged first, then written into the pins and locked.

    Args:
        stack: as the pins have it.
        shop: the surroundings.
        text: `HOST/REPOSITORY[:TAG]@sha256:…`.

    Raises:
        UsageError: no reference with a digest.
        BaseImageError, FetchError: the image cannot be had, or cannot carry the stack.
        VerlstackError: as `repin.repin`. Nothing was written then.
    """
    ref = str(reference.parse(text.removeprefix("registry:")))
    build.base_of(stack, shop, f"registry:{ref}", shop.find_interpreter(stack.python))
    before = _lock_digest(shop.constraints, stack)
    made = repin.repin(stack.name, f"stack.{stack.name}", {"registry_base": ref}, shop)
    return Report(
        stack=stack.name,
        before=stack.registry_base,
        after=ref,
        lock_before=before,
        lock=f"sha256:{made.digest}",
    )


def _lock_digest(constraints: Path, stack: Stack) -> str | None:
    try:
        return f"sha256:{lockfile.load(constraints, stack).digest}"
    except LockError:
        return None  # missing, stale or damaged: it is renewed anyway
