"""`verlstack bundle`: all that an image is made from in one file, so that it can be made again without any upstream."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import verlstack
from verlstack import bakefile, build, bundlefile, compose, images, lockfile, oci, rebuild, shell
from verlstack.cache import Cache, sha256_file, storage_errors
from verlstack.content import OnDisk
from verlstack.errors import BaseImageError, FetchError, LockError
from verlstack.web import redact
from verlstack.workshop import Workshop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from verlstack.base.bases import Base
    from verlstack.content import Source
    from verlstack.download import Artifact
    from verlstack.lockfile import Lock
    from verlstack.pins import Stack
    from verlstack.progress import Progress
    from verlstack.rebuild import Origin

_PACKAGES = ("verlstack", "verldoctor")
_PROJECT = ("pyproject.toml", "README.md", "LICENSE")  # what an installation of the tool needs
_TASK = "bundle"


@dataclass(frozen=True, kw_only=True)
class Report:
    """A finished bundle.

    Attributes:
        image: digest of the image that it makes again.
        tool: whether the wheels are in it that the tool itself runs on.
    """

    path: Path
    size: int
    sha256: str
    members: int
    stack: str
    lock: str
    image: str
    tool: bool


def bundle(
    stack: Stack, shop: Workshop, layout: Path, target: Path, run: Callable[..., shell.Result] = shell.run
) -> Report:
    """Write the bundle of an image that was composed from the present lock.

    Args:
        stack: as the pins have it.
        shop: the surroundings; what is not in the cache is fetched, but for the base, which must be the image's own.
        layout: the image.
        target: the file to write.
        run: starts programs.

    Raises:
        LockError: the image is of another lock or stack.
        BaseImageError: the cache has another base than the image's.
        FetchError: a file cannot be had.
        StorageError: the disk is full, read-only or forbidden.
    """
    made = rebuild.origin(layout, shop.constraints, layout.parent)
    if made.stack.name != stack.name:
        what = f"this image is of the stack {made.stack.name}, not of {stack.name}"
        raise LockError(what, where=str(layout), todo=f"run `verlstack build {stack.name}`")
    digest, _, _ = oci.read_layout(layout)
    members: dict[str, Source] = {}
    for artifact, path in _artifacts(made.lock, shop, lacks=made.lacks):
        members[f"files/{artifact.sha256}/{path.name}"] = _by_hash(path, artifact.sha256)
    members |= dict(_base(made, shop, layout))
    members |= dict(_project(stack, shop, layout)) | dict(_tool())
    wheels = _tool_wheels(shop, run)
    members |= {f"tool/wheels/{path.name}": _on_disk(path) for path in wheels}
    facts = {"stack": stack.name, "lock": f"sha256:{made.lock.digest}", "image": digest}
    shop.progress.start(_TASK, sum(source.size for source in members.values()))
    written = bundlefile.write(
        target, facts, members, epoch=made.lock.epoch, progress=lambda n: shop.progress.advance(_TASK, n)
    )
    shop.progress.finish(_TASK, f"{written.members} files")
    return Report(
        path=target,
        size=written.size,
        sha256=written.sha256,
        members=written.members,
        stack=stack.name,
        lock=facts["lock"],
        image=digest,
        tool=bool(wheels),
    )


def _artifacts(lock: Lock, shop: Workshop, *, lacks: bool) -> Iterator[tuple[Artifact, Path]]:
    """Everything that the lock names by hash, with its place in the cache."""
    wanted = [*lock.wheels, *lock.build_tools, *(b.source for b in lock.built)]
    if lock.compiled:
        wanted += [lock.compiled.source, *lock.compiled.tools]
    files = shop.fetch(wanted)
    yield from ((artifact, files[artifact.sha256]) for artifact in wanted)
    if lock.compiled and (wheel := lock.compiled.wheel) and not lacks:
        path = shop.cache.file(wheel.sha256, wheel.filename)
        if not path.is_file():  # no index has it
            what = f"the compiled wheel {wheel.filename} is not in the cache"
            raise FetchError(what, todo="run `verlstack fetch`, which looks for it where the pins say")
        yield wheel, path


def _by_hash(path: Path, sha256: str) -> OnDisk:
    """A file whose hash is known; it is checked while it is written into the bundle."""
    return OnDisk(path=path, size=path.stat().st_size, sha256=sha256)


def _on_disk(path: Path) -> OnDisk:
    return _by_hash(path, sha256_file(path))


def _base(made: Origin, shop: Workshop, layout: Path) -> Iterator[tuple[str, Source]]:
    """The image's base as the cache holds it, or, where it was a layout on disk, that layout."""
    base = build.base_of(
        made.stack, dataclasses.replace(shop, offline=True), made.base, shop.find_interpreter(made.stack.python)
    )
    _check_base(base, layout)
    if made.base.startswith("oci:"):
        folder = Path(made.base.removeprefix("oci:"))
        yield from ((f"base/layout/{p.relative_to(folder)}", _on_disk(p)) for p in _files(folder))
    folder = base.layers[0].path.parent
    yield from ((f"bases/{folder.name}/{path.name}", _on_disk(path)) for path in _files(folder))


def _check_base(base: Base, layout: Path) -> None:
    _, _, config = oci.read_layout(layout)
    own = [blob.diff_id for blob in base.layers]
    if config["rootfs"]["diff_ids"][: len(own)] != own:
        raise BaseImageError(
            "the cache has another base than the image, so a bundle could not make that image again",
            where=base.reference,
            todo="build the image again, then bundle it",
        )


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _project(stack: Stack, shop: Workshop, layout: Path) -> Iterator[tuple[str, Source]]:
    """Pins and lock, smoke tests and verldoctor, the image's two documents."""
    names = ["stacks.toml", bakefile.path(shop.constraints, stack.name).name, bakefile.TOOLS]
    names += [path.name for path in lockfile.paths(shop.constraints, stack.name)]
    for name in names:
        if (path := shop.constraints / name).is_file():
            yield f"constraints/{name}", _on_disk(path)
    yield from ((f"smoke_tests/{name}", content) for name, content in compose.sources(shop.smoke_tests))
    yield from ((f"src/verldoctor/{name}", content) for name, content in compose.sources(shop.doctor))
    digest, manifest, _ = oci.read_layout(layout)
    for name in ("index.json", "oci-layout", oci.blob_path(digest), oci.blob_path(manifest["config"]["digest"])):
        yield f"image/{name}", _on_disk(layout / name)


def _tool() -> Iterator[tuple[str, Source]]:
    """The tool's own source."""
    source = Path(verlstack.__file__).parents[1]
    for package in _PACKAGES:
        for path in _files(source / package):
            if "__pycache__" not in path.parts:
                yield f"tool/src/{path.relative_to(source)}", _on_disk(path)
    for name in _PROJECT:
        if (path := source.parent / name).is_file():
            yield f"tool/{name}", _on_disk(path)


def _tool_wheels(shop: Workshop, run: Callable[..., shell.Result]) -> list[Path]:
    """The wheels of `tools.txt` for this machine's Python, kept in the cache; none where there is no such file.

    pip fetches them, because `tools.txt` names hashes for every platform, and no file.

    Raises:
        FetchError: they cannot be had.
    """
    tools = shop.constraints / bakefile.TOOLS
    if not tools.is_file():
        return []
    key = hashlib.sha256(f"{sys.version} {sha256_file(tools)}".encode()).hexdigest()
    folder = shop.cache.root / "tool-wheels" / key
    with shop.cache.lock(f"tool-wheels-{key[:32]}"):
        if not folder.is_dir():
            if shop.offline:
                what = "the wheels that the tool itself runs on are not in the cache"
                raise FetchError(what, todo="run the same command once without --offline")
            _download(tools, folder, shop, run)
    return _files(folder)


def _download(tools: Path, folder: Path, shop: Workshop, run: Callable[..., shell.Result]) -> None:
    words = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    words += ["--require-hashes", "--only-binary", ":all:", "--requirement", str(tools), "--dest"]
    with storage_errors(folder), tempfile.TemporaryDirectory(prefix="tools-", dir=shop.cache.tmp) as name:
        made = Path(name, "wheels")
        done = run([*words, str(made)], env=shop.env)
        if done.returncode:
            what = f"the wheels that the tool itself runs on cannot be had:\n{redact(done.tail)}"
            raise FetchError(what, where=str(tools), todo="check the network and pip's configuration")
        folder.parent.mkdir(exist_ok=True)
        made.rename(folder)


def reproduce(
    path: Path,
    layout: Path | None,
    *,
    cache: Cache,
    env: Mapping[str, str],
    progress: Progress,
    workers: int,
    python_tree: Path | None,
) -> rebuild.Report:
    """Compose the image of a bundle from that bundle alone, and compare it with the digest that the bundle names.

    Args:
        path: the bundle.
        layout: an image to compare with, file by file; None for the bundle's own two documents.
        cache: where to unpack to; nothing of it is used.
        env: the user's environment.
        progress: where progress is shown.
        workers: processes to compose with.
        python_tree: as `Workshop` has it.

    Raises:
        FetchError, HashMismatchError: the bundle is damaged, incomplete, or none.
        VerlstackError: as `rebuild.rebuild`.
    """
    with tempfile.TemporaryDirectory(prefix="bundle-", dir=cache.tmp) as name:
        folder = Path(name)
        progress.start("unpack", path.stat().st_size if path.is_file() else None)
        facts = bundlefile.read(path, folder, lambda n: progress.advance("unpack", n))
        progress.finish("unpack", f"{len(facts['files'])} files, all as the manifest says")
        with Cache(folder).use() as inner:
            shop = Workshop(
                constraints=folder / "constraints",
                smoke_tests=folder / "smoke_tests",
                cache=inner,
                env=env,
                progress=progress,
                workers=workers,
                offline=True,
                python_tree=python_tree,
            )
            return _again(facts, folder, layout, shop)


def _again(facts: Mapping[str, Any], folder: Path, layout: Path | None, shop: Workshop) -> rebuild.Report:
    wanted = layout or folder / "image"
    made = rebuild.origin(wanted, shop.constraints, folder / "base")
    if facts["lock"] != f"sha256:{made.lock.digest}":
        raise LockError("the bundle's manifest names another lock than the one in it", todo="make the bundle again")
    if layout:
        images.check_blobs(layout, shop.workers)
    return rebuild.again(made, wanted, shop, folder / "dist", read=layout is not None)
