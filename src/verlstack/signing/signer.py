"""Who signs: what signing with a key and signing without one have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from verlstack.upload import Writer


@dataclass(frozen=True, kw_only=True)
class Signed:
    """What signing came to.

    Attributes:
        by: `sha256:…` of a key, or an identity.
        new: False if they had signed the same before.
    """

    by: str
    new: bool


class Signer(Protocol):
    """Who signs an image, and statements about it."""

    def image(self, writer: Writer) -> Signed:
        """Sign the image that a writer's reference names.

        Raises:
            FetchError: the registry has no such image, or refuses; or a service does, that is needed for it.
            HashMismatchError: somebody else writes to the same place again and again.
        """

    def attest(self, writer: Writer, predicates: dict[str, Any]) -> Signed:
        """Sign statements about the image, by type of their predicate; raises as `image`."""
