"""What of packages a layer holds: read from its bytes once, and kept in the cache under its digest."""

from __future__ import annotations

import base64
import csv
import dataclasses
import email.parser
import io
import json
import posixpath
import re
from collections import Counter
from concurrent import futures
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from verlstack import canonical, images, oci, pullcost, trees
from verlstack.base import aptsources, debs, dpkg
from verlstack.cache import atomic
from verlstack.errors import LockError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from verlstack.cache import Cache
    from verlstack.progress import Progress

_FORM = 3  # of what is kept: raise it when this module reads something else
_SITE = re.compile(r"(opt/verl/lib/[^/]+/site-packages)/.+")
_ABOVE = re.compile(r"opt(/verl(/lib(/[^/]+(/site-packages)?)?)?)?")
_METADATA = re.compile(r"(?P<folder>(?:.*/)?[^/]+\.dist-info)/METADATA")
_RECORD = re.compile(r"(?P<site>opt/verl/lib/[^/]+/site-packages)/(?P<name>[^/]+\.dist-info)/RECORD")
_STATUS = re.compile(r"var/lib/dpkg/status(\.d/[^/]+)?")
_PAPER = re.compile(r"usr/share/doc/([^/]+)/copyright")
_RELEASE = ("etc/os-release", "usr/lib/os-release")
_PATCH_LEVEL = re.compile(r'^#define\s+PY_VERSION\s+"([\w.+]+)"', re.MULTILINE)
KEEP = re.compile(  # what `describe` wants kept
    r".*\.dist-info/METADATA|opt/verl/lib/[^/]+/site-packages/[^/]+\.dist-info/RECORD|var/lib/dpkg/status(\.d/[^/]+)?"
    rf"|{re.escape(debs.PATH)}"
    r"|etc/os-release|usr/lib/os-release|(usr|usr/local|opt/[^/]+)/include/python3\.\d+/patchlevel\.h"
)
_MOST_WRONG = 20  # of one layer that are kept: one is enough to refuse it


@dataclass(frozen=True, kw_only=True)
class Dist:
    """A `*.dist-info` in a layer.

    Attributes:
        folder: its path from the root.
        name: as METADATA has it.
        licence: the fields of METADATA that tell of a licence, `License-Expression`, `License` and the classifiers.
    """

    folder: str
    name: str
    version: str
    licence: tuple[tuple[str, str], ...]

    @property
    def installed(self) -> bool:
        """Whether it is a package of the image's environment, not one that another package carries along."""
        return bool(_SITE.fullmatch(self.folder)) and posixpath.dirname(self.folder).endswith("/site-packages")


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What one layer holds.

    Attributes:
        dists: every dist-info in it, by folder.
        wrong: what is not as a RECORD says, or belongs to none, or of the list of Debian packages' hashes fits none of
            them; each a sentence without subject.
        debs: Debian packages as its status file has them, with hash where it has that list; None where it has no
            status file.
        release: ID and VERSION_ID of its os-release, or None.
        python: three numbers of the interpreter whose headers are in it, or None.
    """

    diff_id: str
    dists: tuple[Dist, ...]
    wrong: tuple[str, ...]
    debs: tuple[dpkg.Package, ...] | None
    release: tuple[str, str] | None
    python: str | None


def read(layout: Path, cache: Cache, workers: int, progress: Progress) -> dict[str, Contents]:
    """The contents of every layer of an image, by the layer's name, bottom first.

    A layer that was read before is not read again: its digest names its bytes, and its contents with them.

    Raises:
        LockError: a layer is missing, not what its digest says, or two of the lock's have one name.
        ProofError: a layer cannot be read.
    """
    _, manifest, config = oci.read_layout(layout)
    names = tuple(_apart(images.names(manifest, config)))
    if len(set(names)) != len(names):
        raise LockError("two layers of this image have one name", where=str(layout), todo="build the image again")
    known = [_kept(cache, entry["digest"]) for entry in manifest["layers"]]
    todo = [number for number, one in enumerate(known) if one is None]
    if todo:
        progress.start("read layers", sum(manifest["layers"][n]["size"] for n in todo))
        with futures.ThreadPoolExecutor(workers) as pool:
            jobs = {n: pool.submit(_read, layout, manifest["layers"][n], cache) for n in todo}
            for number, job in jobs.items():
                known[number] = job.result()
                progress.advance("read layers", manifest["layers"][number]["size"])
        progress.finish("read layers", f"{len(todo)} layers")
    found = {name: one for name, one in zip(names, known, strict=True) if one is not None}
    for (name, one), diff_id in zip(found.items(), config["rootfs"]["diff_ids"], strict=True):
        if one.diff_id != diff_id:
            what = f"the layer {name} is not what the image's config says: {one.diff_id}, not {diff_id}"
            raise LockError(what, where=str(layout), todo="build the image again")
    return found


def _apart(names: tuple[str, ...]) -> Iterator[str]:
    """The names with a number at a base's second layer and those after it, for they are all called after the base."""
    seen: Counter[str] = Counter()
    for name in names:
        seen[name] += 1
        yield f"{name} ({seen[name]})" if name.startswith(pullcost.BASE) and seen[name] > 1 else name


def _place(cache: Cache, digest: str) -> Path:
    return cache.root / "contents" / f"{digest.removeprefix('sha256:')}.json"


def _kept(cache: Cache, digest: str) -> Contents | None:
    """What the cache has of a layer, or None."""
    try:
        table: dict[str, Any] = json.loads(_place(cache, digest).read_bytes())
        return from_json(table["contents"]) if table["form"] == _FORM else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def from_json(known: Mapping[str, Any]) -> Contents:
    """What `canonical.dumps` wrote.

    Raises:
        KeyError, TypeError: it was something else.
    """
    dists = tuple(Dist(**x | {"licence": tuple((k, v) for k, v in x["licence"])}) for x in known["dists"])
    debs = known["debs"]
    return Contents(
        diff_id=known["diff_id"],
        dists=dists,
        wrong=tuple(known["wrong"]),
        debs=None if debs is None else tuple(dpkg.Package(**x) for x in debs),
        release=tuple(known["release"]) if known["release"] else None,
        python=known["python"],
    )


def _read(layout: Path, entry: Mapping[str, Any], cache: Cache) -> Contents:
    images.check_blob(layout, entry["digest"])
    content = trees.read(layout / oci.blob_path(entry["digest"]), entry["mediaType"], keep=KEEP)
    found = describe(content)
    with atomic(_place(cache, entry["digest"]), tmp=cache.tmp) as out:
        out.write(canonical.dumps({"form": _FORM, "contents": found}))
    return found


def describe(content: trees.Content) -> Contents:
    """What a layer's entries and the texts kept of it say."""
    files = {x.path: _bytes_of(x) for x in content.members if x.node is None or x.node.kind != "dir"}
    texts = {path: data.decode("utf-8", "replace") for path, data in content.kept.items()}
    status = [texts[path] for path in sorted(texts) if _STATUS.fullmatch(path)]
    papers = {match[1]: f"/{path}" for path in files if (match := _PAPER.fullmatch(path))}
    packages, complaints = debs.read(texts.get(debs.PATH, ""), _debs(status, papers))
    release = next((texts[path] for path in _RELEASE if texts.get(path)), None)  # one is a link
    parsed = aptsources.parse_release(release) if release else None
    versions = (_PATCH_LEVEL.search(text) for path, text in sorted(texts.items()) if path.endswith("/patchlevel.h"))
    return Contents(
        diff_id=content.diff_id,
        dists=tuple(_dist(path, texts[path]) for path in sorted(texts) if _METADATA.fullmatch(path)),
        wrong=tuple(sorted((*_wrong(files, texts), *complaints))[:_MOST_WRONG]),
        debs=packages if status else None,
        release=(parsed.id, parsed.version) if parsed else None,
        python=next((match[1] for match in versions if match), None),
    )


def _bytes_of(member: trees.Member) -> str:
    """What a path has: SHA-256 of a file, else something that no RECORD names."""
    if member.node is None or member.node.kind != "file":
        return f"no file: {member.node.kind if member.node else 'hard link or whiteout'}"
    return member.node.content


def _debs(status: Iterable[str], papers: Mapping[str, str]) -> tuple[dpkg.Package, ...]:
    found = dpkg.parse("\n\n".join(status))
    return tuple(dataclasses.replace(x, licence=papers.get(x.name)) for x in found)


def _dist(path: str, metadata: str) -> Dist:
    known = email.parser.HeaderParser().parsestr(metadata)
    licence = [(key, str(known[key])) for key in ("License-Expression", "License") if known[key]]
    rows = [str(x) for x in known.get_all("Classifier", [])]
    licence += [("Classifier", x) for x in rows if x.startswith("License ::")]
    return Dist(
        folder=posixpath.dirname(path),
        name=str(known["Name"] or ""),
        version=str(known["Version"] or ""),
        licence=tuple(licence),
    )


def _wrong(files: Mapping[str, str], texts: Mapping[str, str]) -> Iterator[str]:
    """Where files below site-packages and the RECORDs beside them do not agree."""
    owned: set[str] = set()
    for path, text in texts.items():
        if match := _RECORD.fullmatch(path):
            for file, digest in _rows(text, match["site"]):
                owned.add(file)
                if file not in files:
                    yield f"lacks /{file}, which /{path} names"
                elif files[file] != digest and file != path:  # a RECORD cannot name its own hash
                    yield f"has other bytes at /{file} than /{path} says"
    for path in files:
        if _SITE.fullmatch(path) and path not in owned:
            yield f"has /{path}, which no RECORD names"
        elif _ABOVE.fullmatch(path) or (path.startswith("opt/verl/") and posixpath.basename(path).startswith(".wh.")):
            yield f"has /{path}, which hides the environment below it"


def _rows(record: str, site: str) -> Iterator[tuple[str, str]]:
    """Path from the root and SHA-256 of each line of a RECORD (PyPA "recording installed projects")."""
    for row in csv.reader(io.StringIO(record)):
        if len(row) == 3:
            kind, _, text = row[1].partition("=")
            try:
                digest = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).hex() if kind == "sha256" else ""
            except ValueError:
                digest = ""
            yield posixpath.normpath(f"/{site}/{row[0]}").lstrip("/"), digest
