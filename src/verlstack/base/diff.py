"""`verlstack base diff`: what sets two bases apart, in packages, bytes and files."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verlstack import told, trees

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from verlstack import layer
    from verlstack.base.bases import Found
    from verlstack.base.dpkg import Package
    from verlstack.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Change:
    """A package that two bases have in different versions, or of which one lacks it (None)."""

    name: str
    one: str | None
    other: str | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What sets two bases apart.

    Attributes:
        packages: added (`one` is None), removed (`other` is None) and changed ones, sorted.
        raw_bytes: by how much the second unpacks to more.
        stored_bytes: by how much more a registry stores for it.
        files: paths that differ, sorted.
    """

    packages: tuple[Change, ...]
    raw_bytes: int
    stored_bytes: int
    files: tuple[trees.Difference, ...]

    @property
    def same(self) -> bool:
        """Whether the two root trees are the same."""
        return not self.files


def compare(one: Found, other: Found, progress: Progress) -> Comparison:
    """What sets two bases apart: packages, sizes, and every path of their root trees but for times.

    Raises:
        ProofError: a layer is larger than any image, or has entries that no image has.
    """
    blobs = {blob.diff_id: blob for blob in (*one.layers, *other.layers)}  # most layers are common: read once
    progress.start("compare", sum(blob.raw_size for blob in blobs.values()))
    contents = {
        diff_id: trees.read(blob.path, blob.media_type, progress=lambda n: progress.advance("compare", n))
        for diff_id, blob in blobs.items()
    }
    first, second = (_tree(found.layers, contents) for found in (one, other))
    files = trees.compare(first.nodes, second.nodes)
    progress.finish("compare", f"{len(first.nodes)} and {len(second.nodes)} paths")
    return Comparison(
        packages=_changes(one.facts.packages, other.facts.packages),
        raw_bytes=sum(x.raw_size for x in other.layers) - sum(x.raw_size for x in one.layers),
        stored_bytes=sum(x.size for x in other.layers) - sum(x.size for x in one.layers),
        files=files,
    )


def _tree(layers: Iterable[layer.Blob], contents: Mapping[str, trees.Content]) -> trees.Tree:
    tree = trees.Tree()
    for blob in layers:
        tree.lay(contents[blob.diff_id].members)
    return tree


def _changes(one: Iterable[Package], other: Iterable[Package]) -> tuple[Change, ...]:
    before, after = ({f"{x.name}:{x.architecture}": x.version for x in packages} for packages in (one, other))
    names = sorted(name for name in before | after if before.get(name) != after.get(name))
    return tuple(Change(name=name, one=before.get(name), other=after.get(name)) for name in names)


def lines(found: Comparison, *, shown: int) -> list[str]:
    """A comparison for people: all packages, the first `shown` files, and how many differ in what."""
    packages = [f"  {x.name}  {x.one or '-'} → {x.other or '-'}" for x in found.packages]
    kinds = Counter(_kind(x) for x in found.files)
    return [
        f"{len(packages)} packages differ",
        *packages,
        f"unpacked {found.raw_bytes / 1e6:+.1f} MB, stored {found.stored_bytes / 1e6:+.1f} MB",
        f"{len(found.files)} paths differ" + "".join(f", {count} {kind}" for kind, count in sorted(kinds.items())),
        *(f"  /{told.escaped(x.path)}  {_kind(x)}" for x in found.files[:shown]),
        *([f"  and {len(found.files) - shown} more (--json has all)"] if len(found.files) > shown else []),
    ]


def _kind(difference: trees.Difference) -> str:
    if difference.one is None:
        return "added"
    return "removed" if difference.other is None else f"changed in {', '.join(difference.fields)}"
