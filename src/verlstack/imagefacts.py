"""What is really in an image, read from the metadata in its layers, and the tag that says so."""

from __future__ import annotations

import contextlib
import datetime as dt
import email.parser
import re
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from verlstack import images, layer, oci
from verlstack.cache import sha256_file
from verlstack.errors import LockError, PublishError
from verlstack.foreigntar import Bounded

if TYPE_CHECKING:
    from collections.abc import Mapping
    from email.message import Message
    from pathlib import Path

LABEL = "dev.verlstack"
_SHOWN = ("torch", "transformers", "flash-attn", "verl")  # each has a layer of its own, if it is in the image at all
_METADATA = re.compile(r"opt/verl/lib/[^/]+/site-packages/([^/]+?)-([^/-]+)\.dist-info/METADATA")
_CUDA = re.compile(r"nvidia-cuda-runtime(-cu\d+)?")
_MOST = 1 << 20  # bytes of a METADATA
_READ = 1 << 20
# Date and lock at the end mark our immutable tags; whoever moves tags by hand must not move those.
IMMUTABLE = re.compile(r"[\w.-]+-verl[\w.]+-\d{8}(-[0-9a-f]{8})?")  # before December 2026 the date was the end


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What an image holds.

    Attributes:
        stack: name of the stack, from the label.
        versions: package → version as its own metadata in the image has it; of torch, transformers, flash-attn, verl.
        cuda: major.minor of the CUDA runtime that torch demands; None where it demands none.
        date: of the epoch, YYYYMMDD.
        lock: the first eight digits of the lock's checksum, from the label: what is not named is in it.
    """

    stack: str
    versions: Mapping[str, str]
    cuda: str | None
    date: str
    lock: str

    @property
    def tag(self) -> str:
        """The one name of such an image."""
        words = [self.stack]
        if torch := self.versions.get("torch"):
            words += [f"torch{torch}", f"cuda{self.cuda}" if self.cuda else "cpu"]
        if transformers := self.versions.get("transformers"):
            words.append(f"transformers{transformers}")
        flash_attn = self.versions.get("flash-attn")
        words += [f"flashattn{flash_attn}" if flash_attn else "sdpa", f"verl{self.versions['verl']}"]
        words += [self.date, self.lock]
        return re.sub(r"[^A-Za-z0-9_.-]", "_", "-".join(words))


def check(layout: Path) -> dict[str, str]:
    """The labels of an image that may be published: made of nothing but pins, and complete.

    An image on a local base, or one that lacks something, may be if the name of its stack says so: a word of it is
    `local`, or what the tag of an incomplete image ends in.

    Raises:
        PublishError: it may not; naming the way out.
        UsageError, LockError: as `oci.read_layout`.
    """
    labels = images.labels(oci.read_layout(layout)[2])
    where = str(layout)
    stack = labels.get(f"{LABEL}.stack")
    if not stack or not oci.DIGEST.fullmatch(labels.get(f"{LABEL}.lock", "")):
        todo = "copy it with `verlstack mirror`; `publish` is for images of a stack"
        raise PublishError("this image does not say which stack and lock it was made from", where=where, todo=todo)
    words, said, ways, name = stack.split("-"), [], [], stack
    if labels.get(f"{LABEL}.base.scope") != "pinned" and "local" not in words:
        base = labels.get(f"{LABEL}.base", "unknown")
        said.append(f"the base of this image is local ({base}): nobody else can make it again")
        ways.append("publish a base and pin it (`verlstack base build`, `verlstack mirror`, `verlstack base use`)")
        name += "-local"
    lacks = labels.get("org.opencontainers.image.title", "").removeprefix(f"verlstack {stack}-")
    if (left_out := labels.get(f"{LABEL}.left-out")) and lacks not in words:
        said.append(f"this image lacks {left_out}, and the name of its stack does not say so")
        ways.append(f"have {left_out} (docs/compiled-wheels.md)")
        name += f"-{lacks}"
    if said:
        todo = f"{' and '.join(ways)}, then build again; or give such images a stack whose name says it: {name}"
        raise PublishError("; ".join(said), where=where, todo=todo)
    if labels.get(f"{LABEL}.compression"):
        todo = f"run `verlstack build {stack}` without --fast"
        raise PublishError(
            "this image was built with --fast: its digest is not that of its lock", where=where, todo=todo
        )
    return labels


def read(layout: Path) -> Facts:
    """Read the facts of an image that `check` lets through; they hold once `verify` has seen the layers, too.

    Raises:
        LockError: a layer does not hold what it is named after.
    """
    _, manifest, config = oci.read_layout(layout)
    found = {name: _metadata(layout, name, entry) for name, entry in _named(manifest, config)}
    if "verl" not in found:
        raise LockError("no layer of this image is called verl", where=str(layout), todo="build the image again")
    torch = found.get("torch")
    labels = images.labels(config)
    return Facts(
        stack=labels[f"{LABEL}.stack"],
        versions={name: str(known["Version"]) for name, known in found.items()},
        cuda=_cuda(torch) if torch else None,
        date=f"{_created(config, layout):%Y%m%d}",
        lock=labels[f"{LABEL}.lock"].removeprefix("sha256:")[:8],
    )


def verify(layout: Path) -> None:
    """Hash the layers that `read` reads.

    Raises:
        LockError: one is missing, or not what its digest says.
    """
    _, manifest, config = oci.read_layout(layout)
    for _, entry in _named(manifest, config):
        path = layout / oci.blob_path(entry["digest"])
        if not path.is_file() or f"sha256:{sha256_file(path)}" != entry["digest"]:
            what = "a layer is missing, or is not what its digest says"
            raise LockError(what, where=str(path), todo="build the image again")


def _named(manifest: Mapping[str, Any], config: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Name and descriptor of the layers that are read."""
    rows = zip(images.names(manifest, config), manifest["layers"], strict=True)
    return [(name, entry) for name, entry in rows if name in _SHOWN]


def _created(config: Mapping[str, Any], layout: Path) -> dt.datetime:
    try:
        return dt.datetime.fromisoformat(str(config["created"])).astimezone(dt.UTC)
    except (KeyError, ValueError, OverflowError):
        what = "the config does not say when the image was made"
        raise LockError(what, where=str(layout), todo="build the image again") from None


def _metadata(layout: Path, name: str, entry: Mapping[str, Any]) -> Message:
    """The METADATA of a package in the layer that is named after it; what follows it is not unpacked."""
    path = layout / oci.blob_path(entry["digest"])
    with contextlib.suppress(tarfile.TarError, EOFError, ValueError, OSError, layer.ZstdError):
        kind = entry["mediaType"].rpartition("+")[2]
        with (
            layer.opened(path, kind) as raw,
            tarfile.open(fileobj=raw, mode="r|", bufsize=_READ, tarinfo=Bounded) as archive,
        ):
            for member in archive:
                match = _METADATA.fullmatch(member.name)
                if match and canonicalize_name(match[1]) == name and (content := archive.extractfile(member)):
                    known = email.parser.BytesHeaderParser().parsebytes(content.read(_MOST))
                    if known["Version"]:
                        return known
    what = f"the layer called {name} holds no metadata of {name}"
    raise LockError(what, where=str(path), todo="build the image again")


def _cuda(torch: Message) -> str | None:
    """CUDA's major.minor, from what torch's own metadata demands."""
    for line in torch.get_all("Requires-Dist", []):
        with contextlib.suppress(InvalidRequirement):
            one = Requirement(str(line))
            version = re.search(r"\d+\.\d+", str(one.specifier))
            if version and _CUDA.fullmatch(canonicalize_name(one.name)):
                return version[0]
    return None
