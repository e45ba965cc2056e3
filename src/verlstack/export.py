"""`verlstack export`: an image as one file, for enroot, pyxis, Apptainer or engines, the same bytes each time."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from verlstack import canonical, oci, shell, sif, unpack, unpacked
from verlstack.cache import atomic, sha256_file, storage_errors
from verlstack.errors import StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from verlstack.workshop import Workshop

_LEVEL = 9  # of zstd, as for layers; blocks of 128 kB leave less to win than a layer's window
Form = Literal["sqsh", "sif", "oci-archive", "docker-archive"]
# What runs where no command is given; `sh` is in every base of ours.
_RC = '#!/bin/sh\n[ $# -gt 0 ] || set -- {command}\nexec "$@"\n'

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)  # of a variable that a shell can set
_APPTAINER = ".singularity.d"

_ELSEWHERE = "see that the folder can be written and has space, or choose another FILE"


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was written.

    Attributes:
        image: `sha256:…` of the image.
        sha256: of the file.
        program: the mksquashfs that made it, for another may give other bytes; None of an archive.
    """

    path: Path
    image: str
    sha256: str
    size: int
    program: str | None


def form_of(target: Path) -> Form:
    """What a file is by its ending: a SIF, or a bare squashfs.

    Raises:
        UsageError: the ending does not tell.
    """
    known: dict[str, Form] = {".sif": "sif", ".sqsh": "sqsh", ".squashfs": "sqsh"}
    if form := known.get(target.suffix):
        return form
    todo = f"name it {' or '.join(f'*{x}' for x in known)}, or say --format"
    raise UsageError("the name of this file does not say what it shall be", where=str(target), todo=todo)


def archive(layout: Path, target: Path, *, docker: bool) -> Report:
    """Write a layout's image as an oci-archive, or one that engines of any age load; what refers to it is not in it.

    Raises:
        UsageError, LockError: as of `oci.archive`.
        StorageError: the disk is full, or a blob is not what its digest says.
    """
    with atomic(target, todo=_ELSEWHERE) as out:
        for piece in oci.archive(layout, tag=oci.engine_tag(layout), docker=docker):
            out.write(piece)
    digest, size = oci.read_layout(layout)[0], target.stat().st_size
    return Report(path=target, image=digest, sha256=sha256_file(target), size=size, program=None)


def export(
    layout: Path, target: Path, shop: Workshop, run: Callable[..., shell.Result] = shell.run, form: Form | None = None
) -> Report:
    """Unpack an image below the cache, and pack it with mksquashfs: sorted, owned by root, with the image's own date.

    Args:
        layout: folder of the image.
        target: file to write; one that is there is replaced when the new one is whole.
        shop: the surroundings.
        run: starts mksquashfs.
        form: what to write; by the target's ending where it is None. An archive needs neither of the two.

    Raises:
        UsageError: as of `form_of`.
        ProgramMissingError: there is no mksquashfs.
        LockError: a layer is not what its digest says.
        ProofError: a layer cannot be unpacked.
        StorageError: the disk is full, or mksquashfs fails.
    """
    form = form or form_of(target)
    if form in {"oci-archive", "docker-archive"}:
        return archive(layout, target, docker=form == "docker-archive")
    digest = oci.read_layout(layout)[0]
    version = _version(run)
    start, mode = (sif.START, 0o755) if form == "sif" else (0, 0o644)
    with (
        atomic(target, mode=mode, todo=_ELSEWHERE) as out,  # before the image is unpacked, which takes a minute
        unpacked.laid(layout, shop.cache, shop.progress) as (root, config),
    ):
        with storage_errors(root):
            _say_how_to_start(root, config["config"])
        epoch = oci.epoch(config, layout)
        _pack(root, Path(out.name), epoch, start, run)
        if start:
            _head(out, digest, epoch)
    return Report(path=target, image=digest, sha256=sha256_file(target), size=target.stat().st_size, program=version)


def _version(run: Callable[..., shell.Result]) -> str:
    try:
        done = run(["mksquashfs", "-version"])
    except shell.ProgramMissingError as e:
        todo = "install squashfs-tools (apt-get install squashfs-tools)"
        raise shell.ProgramMissingError(e.what, where=e.where, todo=todo) from None
    return done.stdout.partition("\n")[0].strip()


def _say_how_to_start(root: Path, config: dict[str, Any]) -> None:
    """Write environment and command where enroot and Apptainer read them: a layout's config is no part of its layers.

    Links of the image are followed within it.
    """
    lines = [str(line) for line in config.get("Env") or []]
    command = shlex.join(map(str, [*(config.get("Entrypoint") or []), *(config.get("Cmd") or ["sh"])]))
    start = _RC.format(command=command)
    files = {
        "etc/environment": "".join(f"{line}\n" for line in lines),  # enroot's documented files
        "etc/rc": start,
        f"{_APPTAINER}/env/10-docker2singularity.sh": "".join(
            map(_exported, lines)
        ),  # as Apptainer makes of OCI images
        f"{_APPTAINER}/env/99-base.sh": "# When it has read this file, Apptainer sets what --env says.\n",
        f"{_APPTAINER}/runscript": start,
        f"{_APPTAINER}/labels.json": canonical.dumps(config.get("Labels") or {}).decode(),
    }
    for name, text in files.items():
        path = unpack.resolve(root, name)
        unpack.folders(path.parent)
        path.unlink(missing_ok=True)  # a hard link would change under its other name, too
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755 if text == start else 0o644)


def _exported(line: str) -> str:
    """One variable for Apptainer; nothing where no shell could set it. A HOME of the user's that is mounted stays."""
    name, _, value = line.partition("=")
    keep = '[ -w "$HOME" ] || ' if name == "HOME" else ""
    return f"{keep}export {name}={shlex.quote(value)}\n" if _NAME.fullmatch(name) else ""


def _pack(root: Path, target: Path, epoch: int, start: int, run: Callable[..., shell.Result]) -> None:
    """Run mksquashfs with nothing left to the machine: times, owners, order, compressor, extended attributes."""
    options = ["-noappend", "-no-progress", "-quiet", "-all-root", "-no-xattrs", "-reproducible"]
    options += ["-mkfs-time", str(epoch), "-all-time", str(epoch)]
    options += ["-comp", "zstd", "-Xcompression-level", str(_LEVEL), "-b", "128K"]
    options += ["-offset", str(start)] if start else []
    done = run(["mksquashfs", root, target, *options], env={"PATH": shell.search_path(), "LC_ALL": "C"})
    if done.returncode:
        what = f"mksquashfs failed (status {done.returncode}):\n{done.tail}"
        raise StorageError(what, where=str(target), todo=_ELSEWHERE)


def _head(out: IO[bytes], image: str, epoch: int) -> None:
    """Write what makes a SIF of the squashfs that begins after it."""
    out.write(sif.head(os.fstat(out.fileno()).st_size - sif.START, image, epoch))
