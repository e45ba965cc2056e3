"""`verlstack base use`: a registry's base by digest into the pins, and the lock renewed with it, all or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from verlstack import build, lockfile, repin
from verlstack.base import reference, registry
from verlstack.errors import FetchError, LockError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from verlstack.base.reference import Reference
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
        UsageError: no reference with a digest; it tells the one of a tag, if the registry does.
        BaseImageError, FetchError: the image cannot be had, or cannot carry the stack.
        VerlstackError: as `repin.repin`. Nothing was written then.
    """
    ref = str(_by_digest(text.removeprefix("registry:"), shop))
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


def _by_digest(text: str, shop: Workshop) -> Reference:
    """The reference; where it is a tag, the error tells the digest behind it, if the registry does."""
    try:
        return reference.parse(text)
    except UsageError as e:
        if shop.offline or not (now := _named_now(text, shop)):
            raise
        raise UsageError(e.what, todo=f"see whether it is the one that you mean: now it is {text}@{now}") from None


def _named_now(text: str, shop: Workshop) -> str | None:
    try:
        ref = reference.parse(f"{text}@{reference.NO_DIGEST}")
        if ref.tag is None:
            return None
        with registry.connect(ref, shop.env) as client:
            return client.resolve(ref.tag)
    except (UsageError, FetchError):
        return None  # no reference at all, or nobody to ask: the first error tells enough


def _lock_digest(constraints: Path, stack: Stack) -> str | None:
    try:
        return f"sha256:{lockfile.load(constraints, stack).digest}"
    except LockError:
        return None  # missing, stale or damaged: it is renewed anyway
