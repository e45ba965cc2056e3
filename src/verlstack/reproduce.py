"""`verlstack reproduce`: build the image of a lock once more by another builder, and compare what comes out."""

from __future__ import annotations

import itertools
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verlstack import bakefile, buildinputs, buildkit, explain, leftovers, oci, prove, recast, trees
from verlstack.errors import LockError, ProofError, WheelError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from verlstack.buildkit import Builder
    from verlstack.explain import Explained
    from verlstack.leftovers import Leftover
    from verlstack.lockfile import Lock
    from verlstack.progress import Progress
    from verlstack.trees import Content
    from verlstack.workshop import Workshop

_TARGET = "runtime"
_NAME = "verlstack: "  # before a layer's name in our history


@dataclass(frozen=True, kw_only=True)
class Row:
    """One layer of the two images.

    Attributes:
        layer: its name; "further" for one that the composed image has not.
        composed: diff_id in the composed image, or None.
        built: diff_id in the other, by our tar rules where it is a layer of the lock; None if missing, or if it holds
            what our format has not.
        note: what is to be said of it.
    """

    layer: str
    composed: str | None
    built: str | None
    note: str = ""

    @property
    def same(self) -> bool:
        """Whether both builders agree."""
        return self.composed is not None and self.composed == self.built


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a comparison gave.

    Attributes:
        digest: of the composed image.
        builder: who built the other.
        files: how many paths the composed image has.
        bytes: of its files, unpacked.
        differences: between the root trees, sorted by path.
        leftovers: what must not be in the built image.
    """

    stack: str
    digest: str
    builder: str
    files: int
    bytes: int
    rows: tuple[Row, ...]
    differences: tuple[Explained, ...]
    leftovers: tuple[Leftover, ...]
    seconds: float

    @property
    def identical(self) -> bool:
        """Nothing differs, nothing is left over: there is no list of allowed differences."""
        return not self.differences and not self.leftovers and all(row.same for row in self.rows)


@dataclass(frozen=True, kw_only=True)
class Side:
    """One image, read.

    Attributes:
        tree: its root tree.
        names: of its layers, by its history.
        layers: what each holds.
        blobs: where each lies.
    """

    tree: trees.Tree
    names: tuple[str, ...]
    layers: tuple[Content, ...]
    blobs: tuple[Path, ...]


def by_buildkit(lock: Lock, shop: Workshop, layout: Path) -> Report:
    """Build the Dockerfile's `runtime` with nothing from the build's cache, and compare it with the composed image.

    Args:
        lock: of the stack.
        shop: the surroundings.
        layout: the composed image, an OCI layout.

    Raises:
        LockError: the composed image or the file for bake is of another lock, or damaged.
        UsageError: there is no composed image, or the engine may not fetch.
        EngineError: no engine that can build.
        BuildError: a step of the Dockerfile fails.
        FetchError, StorageError, BaseImageError: as the build says.
    """
    start = time.monotonic()
    buildinputs.require_online(shop)
    digest, _, config = oci.read_layout(layout)
    prove.check_lock(config, lock, layout)
    bakefile.of_lock(shop.constraints, lock)
    builder = buildkit.check(shop.env)
    with tempfile.TemporaryDirectory(prefix="reproduce-", dir=shop.cache.tmp) as name:
        folder = Path(name)
        _build(lock, shop, layout, builder, folder)
        shop.progress.say("comparing both root trees")
        composed, built = (read(path, shop.progress) for path in (layout, folder / "image"))
        rows = tuple(compare_layers(composed, built, lock, shop.progress))
    return Report(
        stack=lock.stack,
        digest=digest,
        builder=f"BuildKit of Docker Engine {builder.engine}",
        files=len(composed.tree.nodes),
        bytes=sum(node.size for node in composed.tree.nodes.values()),
        rows=rows,
        differences=explain.explain(trees.compare(composed.tree.nodes, built.tree.nodes), owners(composed, built)),
        leftovers=leftovers.find(built.tree.nodes, base_tree(composed, lock).nodes),
        seconds=time.monotonic() - start,
    )


def _build(lock: Lock, shop: Workshop, layout: Path, builder: Builder, folder: Path) -> None:
    """Have `folder/image`; what the build gets of this machine lies beside it, and goes with it."""
    _, _, config = oci.read_layout(layout)
    own = {x.name for x in lock.layers}
    below = sum(name not in own for name in _names(config, layout))
    (folder / "secrets").mkdir(mode=0o700)
    contexts = {"os": buildinputs.base_layout(layout, below, folder / "os", epoch=lock.epoch)}
    contexts |= buildinputs.contexts(lock, shop, folder)
    arguments = {}
    if lock.compiled and (wheel := lock.compiled.wheel):
        if _lacks(config) == wheel.project:  # could not be had when it was composed: the other goes without, too
            arguments = {bakefile.argument(wheel.project): ""}
        else:
            contexts |= buildinputs.wheelhouse(wheel, shop, folder)
    request = buildkit.Request(
        folder=shop.constraints.parent,
        files=(shop.constraints.parent / buildkit.BAKE, bakefile.path(shop.constraints, lock.stack)),
        target=_TARGET,
        output=folder / "image",
        contexts=contexts,
        arguments=arguments,
        secrets=buildinputs.secrets(shop.env, folder / "secrets"),
        network=builder.network,
    )
    buildkit.bake(request, env=shop.env, scratch=folder, progress=shop.progress)


def _lacks(config: Mapping[str, Any]) -> str | None:
    """The project that an image says it goes without."""
    lacks: str | None = config["config"]["Labels"].get(bakefile.LEFT_OUT)
    return lacks


def _names(config: Mapping[str, Any], layout: Path) -> tuple[str, ...]:
    """Names of an image's layers, from its history; empty entries made none.

    Raises:
        LockError: the history is none, or tells of more or fewer layers than there are.
    """
    history = config.get("history")
    if isinstance(history, list) and all(isinstance(x, dict) for x in history):
        made = [x for x in history if not x.get("empty_layer")]
        if len(made) == len(config["rootfs"]["diff_ids"]):
            return tuple(str(x.get("created_by", "")).removeprefix(_NAME) for x in made)
    raise LockError("the image's history does not tell its layers", where=str(layout), todo="build the image again")


def read(layout: Path, progress: Progress) -> Side:
    """Read an image's layers once, in order, and lay them over one another.

    Raises:
        UsageError: the folder holds no layout with one image.
        LockError: a layer is not what the config says, or the history does not tell the layers.
        ProofError: a layer is none, or hostile.
    """
    _, manifest, config = oci.read_layout(layout)
    tree, contents, blobs = trees.Tree(), [], []
    progress.start("read", sum(entry["size"] for entry in manifest["layers"]))
    for entry, diff_id in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
        path = layout / oci.blob_path(entry["digest"])
        content = trees.read(path, entry["mediaType"], keep=explain.RECORDS)
        if content.diff_id != diff_id:
            raise LockError("a layer is not what its image says", where=str(path), todo="build the image again")
        tree.lay(content.members)
        contents.append(content)
        blobs.append(path)
        progress.advance("read", entry["size"])
    progress.finish("read", f"{len(contents)} layers, {len(tree.nodes)} paths")
    return Side(tree=tree, names=_names(config, layout), layers=tuple(contents), blobs=tuple(blobs))


def base_tree(composed: Side, lock: Lock) -> trees.Tree:
    """The root tree of the base alone: of the layers that the lock does not make."""
    own = {x.name for x in lock.layers}
    tree = trees.Tree()
    for name, content in zip(composed.names, composed.layers, strict=True):
        if name not in own:
            tree.lay(content.members)
    return tree


def compare_layers(composed: Side, built: Side, lock: Lock, progress: Progress) -> Iterator[Row]:
    """Layer by layer, from the top: a layer of the lock has its counterpart at the same place.

    Layers without any entry are passed over: BuildKit makes one for each instruction, whether or not it wrote a file.

    Args:
        composed: our image.
        built: the other, its layers uncompressed.
        lock: names the layers that both builders make.
        progress: where progress is shown.
    """
    theirs = [number for number, content in enumerate(built.layers) if content.members]
    own = {x.name for x in lock.layers}
    count = sum(name in own for name in composed.names)
    split = max(0, len(theirs) - count)
    ours = len(composed.layers) - count
    for number, other in itertools.zip_longest(range(ours), theirs[:split]):
        yield _row(composed, number, None if other is None else built.layers[other].diff_id)
    for number, other in itertools.zip_longest(range(ours, len(composed.layers)), theirs[split:]):
        if other is None:
            yield _row(composed, number, None)
        else:
            yield _recast(composed, number, built, other, lock.epoch, progress)


def _row(composed: Side, number: int | None, built: str | None) -> Row:
    if number is None:
        return Row(layer="further", composed=None, built=built, note="the composed image has no such layer")
    note = "" if built else "missing"
    return Row(layer=composed.names[number], composed=composed.layers[number].diff_id, built=built, note=note)


def _recast(composed: Side, number: int, built: Side, other: int, epoch: int, progress: Progress) -> Row:
    name, wanted, content = composed.names[number], composed.layers[number].diff_id, built.layers[other]
    if content.diff_id == wanted:
        return Row(layer=name, composed=wanted, built=wanted)
    progress.start(f"recast {name}", built.blobs[other].stat().st_size)
    try:
        found = recast.diff_id(
            built.blobs[other], content.members, epoch=epoch, progress=lambda n: progress.advance(f"recast {name}", n)
        )
    except (ProofError, WheelError) as e:
        return Row(layer=name, composed=wanted, built=None, note=e.what)
    finally:
        progress.finish(f"recast {name}")
    return Row(layer=name, composed=wanted, built=found, note="" if found == wanted else "differs")


def owners(*sides: Side) -> dict[str, str]:
    """Path → the pin whose wheel has it, else the layer that put it there; the first side knows best."""
    found: dict[str, str] = {}
    for side in sides:
        records = {path: data for content in side.layers for path, data in content.kept.items()}
        by_layer = {path: f"layer {side.names[number]}" for path, number in side.tree.origin.items()}
        found = by_layer | explain.owners(records) | found
    return found
