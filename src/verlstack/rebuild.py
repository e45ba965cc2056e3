"""`verlstack reproduce` by our own composer: an image once more from its lock alone, and why what differs does."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verlstack import bakefile, build, closurediff, explain, images, lockfile, oci, pins, reproduce, sides, trees
from verlstack.cache import Cache, storage_errors
from verlstack.errors import BaseImageError, LockError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from verlstack.closurediff import Change, Side
    from verlstack.explain import Explained
    from verlstack.lockfile import Lock
    from verlstack.pins import Stack
    from verlstack.pullcost import Layer
    from verlstack.workshop import Workshop

_LABEL = sides.LABEL
_BOOTSTRAPPED = "bootstrapped from "
_LAYOUT = "oci@"
_SHOWN = 5  # Debian packages named in a cause


@dataclass(frozen=True, kw_only=True)
class Row:
    """One layer of the two images; None where one has no such layer."""

    layer: str
    image: str | None
    rebuilt: str | None


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What an image says of how it was made, held against the pins and locks that are here.

    Attributes:
        base: as `--base` wants it.
        fast: it was made with `--fast`.
        lacks: it says that it goes without the compiled wheel.
    """

    stack: Stack
    lock: Lock
    base: str
    fast: bool
    lacks: bool


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a rebuild gave.

    Attributes:
        digest: of the image.
        rebuilt: of the one made from the lock.
        rows: all layers.
        config: what differs in the image's config, labels among it.
        recompressed: layers of the same content that are stored in other bytes.
        read: whether the image's layers were here, so that files could be compared.
        differences: files that differ, each with its cause, sorted by path.
    """

    stack: str
    lock: str
    digest: str
    rebuilt: str
    rows: tuple[Row, ...]
    config: tuple[Change, ...]
    recompressed: tuple[str, ...]
    read: bool
    differences: tuple[Explained, ...]
    seconds: float

    @property
    def identical(self) -> bool:
        """The digests are the same, so every byte is."""
        return self.digest == self.rebuilt


def origin(layout: Path, constraints: Path, dist: Path) -> Origin:
    """Whose image this is.

    Args:
        layout: the image; its documents are enough.
        constraints: the pins and locks.
        dist: where a base that was a layout on disk may lie.

    Raises:
        UsageError: the image was not made by verlstack.
        LockError: it was made from another lock than the one that is here, or that is stale or damaged.
        BaseImageError: its base cannot be had again.
    """
    _, _, config = oci.read_layout(layout)
    labels = images.labels(config)
    made_from, name = labels.get(f"{_LABEL}.lock"), labels.get(f"{_LABEL}.stack")
    if not made_from or not name:
        what = f"this image was not made by verlstack: it has no label {_LABEL}.lock"
        raise UsageError(what, where=str(layout), todo="name an image that `verlstack build` made")
    if name not in pins.names(constraints / "stacks.toml"):
        raise LockError(
            f"this image is of the stack {name}, of which there are no pins here",
            where=str(constraints / "stacks.toml"),
            todo="run in the checkout that it was made in",
        )
    stack = pins.load(constraints / "stacks.toml", name)
    lock = lockfile.load(constraints, stack)
    if made_from != f"sha256:{lock.digest}":
        raise LockError(
            f"this image was made from lock {made_from}, the lock of {name} here is sha256:{lock.digest}",
            where=str(lockfile.paths(constraints, name)[1]),
            todo=f"check out the commit that has it: `git log -S {made_from.removeprefix('sha256:')} -- constraints`",
        )
    return Origin(
        stack=stack,
        lock=lock,
        base=_base(labels.get(f"{_LABEL}.base", ""), dist),
        fast=labels.get(f"{_LABEL}.compression") == "fast",
        lacks=bakefile.LEFT_OUT in labels,
    )


def _base(label: str, dist: Path) -> str:
    if label.startswith(_BOOTSTRAPPED):
        return "debian"
    if not label.startswith(_LAYOUT):
        return f"registry:{label}"
    if (folder := images.of_digest(label.removeprefix(_LAYOUT), dist)) is None:
        raise BaseImageError(
            f"the image stands on a base that was a layout on disk, {label}, which is not in {dist}",
            todo="copy that layout there, under any name",
        )
    return f"oci:{folder}"


def rebuild(layout: Path, shop: Workshop, dist: Path) -> Report:
    """Build an image's lock once more with an empty cache, and compare.

    Of the cache nothing is used but downloads that the lock names by hash: no layer, no base, no wheel built here.

    Args:
        layout: the image, whole.
        shop: the surroundings.
        dist: where a base that was a layout on disk may lie.

    Raises:
        LockError: a layer of the image is not what its digest says; the lock does not give its own diff_ids here.
        VerlstackError: as `origin` and `build.build`.
    """
    made = origin(layout, shop.constraints, dist)
    images.check_blobs(layout, shop.workers)
    with tempfile.TemporaryDirectory(prefix="reproduce-", dir=shop.cache.tmp) as name:
        folder = Path(name)
        with _empty_cache(made, shop.cache, folder / "cache").use() as cache:
            return again(made, layout, dataclasses.replace(shop, cache=cache), folder / "dist", read=True)


def _empty_cache(made: Origin, full: Cache, folder: Path) -> Cache:
    """A cache with nothing in it but what the lock pins by hash, as links; each file is hashed again before use."""
    cache, lock = Cache(folder), made.lock
    artifacts = [*lock.wheels, *lock.build_tools, *(b.source for b in lock.built)]
    if lock.compiled and lock.compiled.wheel and not made.lacks:
        artifacts.append(lock.compiled.wheel)
    with storage_errors(folder):
        for artifact in {a.sha256: a for a in artifacts}.values():  # setuptools is wheel and build tool
            source, target = (c.file(artifact.sha256, artifact.filename) for c in (full, cache))
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                _link(source, target)
        if (tools := full.root / "host-tools").is_dir():  # programs of this machine, as /usr/bin
            (folder / "host-tools").symlink_to(tools)
    return cache


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def again(made: Origin, layout: Path, shop: Workshop, dist: Path, *, read: bool) -> Report:
    """Compose what an image was made from in the given surroundings, and compare: digest, diff_ids, files.

    Args:
        made: whose image it is.
        layout: the image.
        shop: the surroundings, with an empty cache of layers.
        dist: where to put the new one.
        read: the image's layers are there too; else its documents alone.

    Raises:
        ProofError: a layer of the image is none, or hostile.
        VerlstackError: as `build.build`.
    """
    start = time.monotonic()
    shop.progress.say(f"composing {made.stack.name} from lock {made.lock.digest[:12]} with an empty layer cache")
    new = build.build(made.stack, made.lock, shop, base=made.base, fast=made.fast, dist=dist, output=None).layout
    locks = {f"sha256:{made.lock.digest}": made.lock}
    one, other = (sides.of_layout(x, str(x), locks, here=here) for x, here in ((layout, read), (new, True)))
    known = {x.diff_id: x.digest for x in other.layers}
    return Report(
        stack=made.stack.name,
        lock=f"sha256:{made.lock.digest}",
        digest=str(one.digest),
        rebuilt=str(other.digest),
        rows=tuple(_rows(one, other)),
        config=_config(layout, new),
        recompressed=tuple(x.name for x in one.layers if x.digest != known.get(x.diff_id, x.digest)),
        read=read,
        differences=tuple(_files(one, other)) if read else (),
        seconds=time.monotonic() - start,
    )


def _rows(one: Side, other: Side) -> Iterator[Row]:
    before, after = (closurediff.numbered(x.layers) for x in (one, other))
    for name in (*before, *(name for name in after if name not in before)):
        yield Row(layer=name, image=before.get(name), rebuilt=after.get(name))


def _config(layout: Path, new: Path) -> tuple[Change, ...]:
    """What differs in the configs but for the layers, which the rows tell."""
    one, other = (_flat(oci.read_layout(x)[2]) for x in (layout, new))
    return closurediff.changes(one, other)


def _flat(config: Mapping[str, Any]) -> dict[str, str]:
    inner = dict(config["config"])
    labels, env = inner.pop("Labels", None) or {}, inner.pop("Env", None) or []
    found = {f"label {name}": str(value) for name, value in labels.items()}
    found |= {f"environment {name}": value for name, _, value in (str(x).partition("=") for x in env)}
    found |= {f"config {name}": str(value) for name, value in inner.items()}
    return found | {name: str(value) for name, value in config.items() if name not in {"config", "rootfs", "history"}}


def _files(one: Side, other: Side) -> Iterator[Explained]:
    """Every file that differs, with its cause; only layers that differ are read, since the others hold the same."""
    first, second = (_read(closurediff.needed(*pair)) for pair in ((one, other), (other, one)))
    found = trees.compare(first.tree.nodes, second.tree.nodes)
    names = reproduce.owners(first, second)
    causes = list(_causes(one, other))
    for difference in explain.explain(found, names):
        known = next((cause for name, cause in causes if difference.owner == f"layer {name}"), None)
        yield dataclasses.replace(difference, cause=known, source="the image's labels") if known else difference


def _read(layers: Iterable[Layer]) -> reproduce.Side:
    tree, names, contents, blobs = trees.Tree(), [], [], []
    for layer in layers:
        if layer.blob is None:
            continue
        content = trees.read(layer.blob, layer.media_type, keep=explain.RECORDS)
        tree.lay(content.members)
        names.append(layer.name)
        contents.append(content)
        blobs.append(layer.blob)
    return reproduce.Side(tree=tree, names=tuple(names), layers=tuple(contents), blobs=tuple(blobs))


def _causes(one: Side, other: Side) -> Iterator[tuple[str, str]]:
    """(layer, cause) for what no lock pins: a local base's packages, and the Python on it."""
    for layer in (*one.layers, *other.layers):
        if layer.name.startswith(f"base {_BOOTSTRAPPED}"):
            yield layer.name, _debian(one, other)
        elif layer.name == "interpreter":
            yield layer.name, "the interpreter's tree is this machine's: another build or release of Python made it"


def _debian(one: Side, other: Side) -> str:
    before, after = (
        {k: v for x in side.layers for k, v in (x.packages or {}).items() if k.startswith("debian:")}
        for side in (one, other)
    )
    changed = closurediff.changes(before, after)
    if not changed:
        return "a bootstrapped base is local: the same Debian packages, but mmdebstrap or this machine gave other bytes"
    shown = ", ".join(f"{x.name.removeprefix('debian:')} {x.one} → {x.other}" for x in changed[:_SHOWN])
    more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    return f"a bootstrapped base is local, and the mirror has other Debian packages now: {shown}{more}"
