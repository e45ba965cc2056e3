"""A base with more packages in it: made by the Dockerfile's stage `base` in an engine, rewritten by our own rules."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verlstack import buildkit, layer, oci, shell
from verlstack.base import aptsources, bases, imagescan, mmdebstrap, rootfs
from verlstack.base import facts as reading
from verlstack.cache import storage_errors
from verlstack.errors import BaseImageError, UsageError
from verlstack.oci import Image, NamedBlob

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from verlstack.base.bases import Base, Found, Request

_STAGE = "base"
_PROBE_SECONDS = 10.0


@contextlib.contextmanager
def extended(found: Found, request: Request, packages: Sequence[str], folder: Path) -> Iterator[Base]:
    """The base with packages installed in it, and with Python and a compiler where it had none.

    Its own layers stay as they are; what the stage added becomes one layer by the composer's rules, whose file
    lives as long as the context.

    Args:
        found: the image, from `bases.look`.
        request: epoch, compression, apt's settings; the engine is the one that its environment names.
        packages: Debian packages.
        folder: the checkout, which holds the Dockerfile.

    Raises:
        EngineError: there is no engine that can build.
        BuildError: the stage fails, say because the mirror lacks a package; its last lines are shown.
        BaseImageError: what came out cannot carry the stack, or deleted or linked what our layers cannot.
        UsageError: there is no Dockerfile, or something was asked that only a bootstrap can do.
    """
    if not (folder / "Dockerfile").is_file():
        raise UsageError(
            "packages are put into such a base by the Dockerfile, which is not here",
            where=str(folder / "Dockerfile"),
            todo="run in a checkout, or use `--base debian`",
        )
    if request.apt and request.apt.trusted:
        raise UsageError(
            "--trust-ca works with `--base debian` alone",
            todo="put the certificate into the base before, or a package that brings it: --package NAME",
        )
    builder = buildkit.check(request.env)
    with tempfile.TemporaryDirectory(prefix="staged-", dir=request.cache.tmp) as name:
        shop = Path(name)
        with storage_errors(shop):
            order = buildkit.Request(
                folder=folder,
                files=(_bake_file(found, request, packages, shop),),
                target=_STAGE,
                output=shop / "out",
                secrets=_secrets(found, request, shop),
                network=builder.network,
                cached=False,  # the engine's cache knows neither the mirror's state nor the secrets
            )
            (shop / "scratch").mkdir()
            buildkit.bake(order, env=request.env, scratch=shop / "scratch", progress=request.progress)
            grown = _base(found, request, shop)
        yield grown  # what our caller does with it is not ours to explain


def _bake_file(found: Found, request: Request, packages: Sequence[str], shop: Path) -> Path:
    """The one target, with the base beside it as a layout: then the engine needs no login to the base's registry."""
    image = Image(
        layers=tuple(NamedBlob(name=f"base {found.reference}", blob=blob) for blob in found.layers),
        env=found.facts.env,
        labels=found.facts.labels,
        epoch=request.epoch,
        architecture="amd64",
        working_dir="/",
        command=("bash",),
    )
    oci.write_layout(image, shop / "os", tag="os")
    target = {
        "dockerfile": "Dockerfile",
        "target": _STAGE,
        "contexts": {"os": f"oci-layout://{shop / 'os'}@{image.digest}"},
        "args": {
            "OS": "os",
            "PYTHON": request.wanted_python,
            "PACKAGES": " ".join(packages),
            "SOURCE_DATE_EPOCH": str(request.epoch),
        },
    }
    path = shop / "bake.json"
    path.write_text(json.dumps({"target": {_STAGE: target}}))
    return path


def _secrets(found: Found, request: Request, shop: Path) -> dict[str, Path]:
    """Files for what must leave no trace; the engine reads them once and keeps nothing."""
    apt = request.apt
    texts = {
        "apt_sources": aptsources.joined(apt.sources if apt and apt.sources else _machines_sources(found)),
        "ca": "".join(apt.authority) if apt else "",
        "proxy": _proxies(request),
    }
    written = {}
    for name, text in texts.items():
        if text:
            written[name] = shop / name
            written[name].touch(mode=0o600)
            written[name].write_text(text)
    return written


def _machines_sources(found: Found) -> dict[str, str]:
    """This machine's own mirror, for a base of its own release; another base keeps to its own."""
    host = bases.host()
    if (found.facts.os_id, found.facts.os_version) != (host.id, host.version):
        return {}
    try:
        return aptsources.own_sources(aptsources.read(mmdebstrap.ETC_APT), host)
    except BaseImageError:
        return {}


def _proxies(request: Request) -> str:
    """Lines `http=ADDRESS` and `https=ADDRESS`: apt's own settings, else the environment's."""
    known = {
        name: request.env.get(f"{name}_proxy") or request.env.get(f"{name}_proxy".upper()) for name in ("http", "https")
    }
    with contextlib.suppress(shell.ProgramMissingError):
        dump = request.run(("apt-config", "dump"), timeout=_PROBE_SECONDS).stdout
        known |= dict(re.findall(r'^Acquire::(https?)::Proxy "(http[^"]+)";$', dump, re.MULTILINE))
    return "".join(f"{name}={address}\n" for name, address in known.items() if address)


def _base(found: Found, request: Request, shop: Path) -> Base:
    _, manifest, config = oci.read_layout(shop / "out")
    below = len(found.layers)
    if config["rootfs"]["diff_ids"][:below] != [blob.diff_id for blob in found.layers]:
        raise BaseImageError("the engine changed the base's own layers", todo="report this with the engine's version")
    added = tuple(_own(shop, described, number, request) for number, described in enumerate(manifest["layers"][below:]))
    layers = (*found.layers, *(blob for blob in added if blob))
    tree = imagescan.Tree()
    for blob in layers:
        imagescan.lay(tree, blob.path, blob.media_type.rpartition("+")[2])
    facts = reading.read(tree, config, request.wanted_python)
    grown = dataclasses.replace(found, layers=layers, facts=facts, local=True, reference=f"{found.reference} and more")
    return bases.fit(grown, request)


def _own(shop: Path, described: dict[str, Any], number: int, request: Request) -> layer.Blob | None:
    """An engine's layer, uncompressed, by our rules; None if it holds nothing."""
    entries = rootfs.entries(shop / "out" / oci.blob_path(described["digest"]), epoch=request.epoch)
    if not any(entry.kind != "dir" for entry in entries):
        return None
    path = shop / f"layer-{number}"
    with path.open("wb") as out:
        diff_id, digest, size, raw_size = layer.write(
            layer.arrange(entries), out, request.compression, epoch=request.epoch, progress=lambda _: None
        )
    media_type = layer.MEDIA_TYPES["zstd"]
    return layer.Blob(path=path, digest=digest, diff_id=diff_id, size=size, raw_size=raw_size, media_type=media_type)
