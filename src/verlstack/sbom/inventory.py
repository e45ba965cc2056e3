"""What is in an image, each with version, hash and licence: what the lock names, held against what the layers hold."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from packaging.utils import canonicalize_name

from verlstack import pullcost
from verlstack.base import debs
from verlstack.errors import LockError
from verlstack.sbom import licences

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from verlstack.base.dpkg import Package
    from verlstack.lockfile import Lock
    from verlstack.sbom.contents import Contents, Dist
    from verlstack.sbom.licences import Licence

Kind = Literal["wheel", "deb", "system", "interpreter", "carried", "own", "source"]
_PSF = "PSF-2.0"  # the licence of CPython, whose tree holds no METADATA
_TODO = "build the image again; if it stays so, somebody changed the image or the lock"


@dataclass(frozen=True, kw_only=True)
class Component:
    """One thing in an image.

    Attributes:
        kind: `carried`: a package inside another one's files; `own`: a layer of verlstack's own; `source`: what a wheel
            was built from, itself not in the image.
        sha256: of the wheel, source or Debian package; None where neither the lock nor the base names its file.
        file: name of that file.
        layer: name of the layer that holds it.
        inside: the purl of the package that carries it along.
        made_from: the source of a wheel that the lock builds.
        place: folder of its dist-info, where it has one.
        diff_id: of the layer, where the layer is the thing.
        paper: path of its copyright file in the image.
    """

    kind: Kind
    name: str
    version: str | None
    purl: str
    licence: Licence
    sha256: str | None = None
    file: str | None = None
    layer: str = ""
    inside: str | None = None
    made_from: Component | None = None
    place: str | None = None
    diff_id: str | None = None
    paper: str | None = None

    @property
    def key(self) -> str:
        """One name in one image."""
        return f"{self.purl}#{self.place}" if self.kind == "carried" else self.purl


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """An image and all that is in it.

    Attributes:
        name: of the image, `verlstack cu121-sdpa`.
        digest: `sha256:…` of its manifest.
        created: the epoch as ISO 8601 text.
        lock: `sha256:…` of the lock, or None of a base.
        base: what it stands on, with digest where a registry has it; None of a base.
    """

    name: str
    version: str | None
    digest: str
    created: str
    lock: str | None
    components: tuple[Component, ...]
    base: str | None = None


def take(layers: dict[str, Contents], lock: Lock | None, left_out: str | None = None) -> tuple[Component, ...]:
    """Everything in an image.

    Args:
        layers: contents by the layers' names, bottom first.
        lock: what the image was made from; None for a base, which holds no wheels.
        left_out: the package of the lock that the image says it lacks.

    Raises:
        LockError: naming the first thing in which lock and layers do not agree.
    """
    above = ""
    for name, one in layers.items():
        if one.wrong:
            raise _disagreement(f"the layer {name} {one.wrong[0]}")
        if pullcost.is_below(name) and above:
            raise _disagreement(f"the layer {name} lies over the layer {above}, and could replace anything in it")
        above = above or ("" if pullcost.is_below(name) else name)
    release = next((x.release for x in reversed(layers.values()) if x.release), None)
    found = list(_below(layers, release))
    wanted = _wanted(lock) if lock else {}
    for name, one in layers.items():
        if not pullcost.is_below(name) and lock is not None:
            found += _of_layer(name, one, lock, wanted)
        elif one.dists and any(x.installed for x in one.dists):
            raise _disagreement(f"the layer {name} holds {one.dists[0].folder}, and nothing pins that")
        else:
            found += (_carried(x, name, None) for x in one.dists)
    if lock and (lacking := _lacking(lock, layers, left_out)):
        raise _disagreement(f"the lock names {lacking}, and no layer holds it")
    return tuple(sorted(found, key=lambda x: (x.kind, x.key)))


def _disagreement(what: str) -> LockError:
    return LockError(f"the image is not what its lock says: {what}", todo=_TODO)


def _wanted(lock: Lock) -> dict[str, Component]:
    """What the lock has by package; without licences, which only the layers tell."""
    found = {}
    for wheel in lock.wheels:
        found[wheel.project] = _package(wheel.project, wheel.version, wheel.sha256, wheel.filename, None)
    for built in lock.built:
        source = sourced(built.source.project, built.source.version, built.source.sha256, built.source.filename)
        found[source.name] = _package(source.name, built.source.version, built.wheel_sha256, built.wheel, source)
    if lock.compiled and (made := lock.compiled.wheel):
        own = lock.compiled.source
        source = sourced(own.project, own.version, own.sha256, own.filename)
        found[own.project] = _package(own.project, made.version, made.sha256, made.filename, source)
    return found


def _package(name: str, version: str, sha256: str, file: str, source: Component | None) -> Component:
    return Component(
        kind="wheel",
        name=name,
        version=version,
        purl=pypi(name, version),
        licence=licences.Licence(),
        sha256=sha256,
        file=file,
        made_from=source,
    )


def sourced(name: str, version: str, sha256: str, file: str) -> Component:
    """The sdist that a wheel is built from."""
    return Component(
        kind="source",
        name=name,
        version=version,
        purl=f"{pypi(name, version)}?file_name={quote(file, safe='')}",
        licence=licences.Licence(),
        sha256=sha256,
        file=file,
    )


def pypi(name: str, version: str) -> str:
    """The package URL of a Python package (purl-spec, type `pypi`)."""
    return f"pkg:pypi/{quote(canonicalize_name(name), safe='')}@{quote(version, safe='')}"


def _of_layer(name: str, one: Contents, lock: Lock, wanted: Mapping[str, Component]) -> Iterator[Component]:
    """What a layer above base and interpreter holds."""
    planned = next((x for x in lock.layers if x.name == name), None)
    if planned is None:
        raise _disagreement(f"the lock knows no layer {name}")
    if planned.diff_id != one.diff_id:
        raise _disagreement(f"the layer {name} has the diff_id {one.diff_id}, and the lock says {planned.diff_id}")
    if not planned.packages:
        if installed := [x.folder for x in one.dists if x.installed]:
            raise _disagreement(f"the layer {name} holds {installed[0]}, and the lock knows no packages in it")
        yield _own(name, one)
        return
    here: dict[str, Component] = {}
    for dist in (x for x in one.dists if x.installed):
        project = canonicalize_name(dist.name)
        if project not in planned.packages or project in here or project not in wanted:
            raise _disagreement(f"the layer {name} holds {dist.folder}, and the lock does not name it there")
        pinned = wanted[project]
        if not _same_version(dist.version, str(pinned.version)):
            raise _disagreement(f"{project} is {dist.version} in the layer {name}, and {pinned.version} in the lock")
        here[project] = _found(pinned, dist, name)
    if absent := [x for x in planned.packages if x not in here]:
        raise _disagreement(f"the lock names {absent[0]} in the layer {name}, which does not hold it")
    yield from here.values()
    for dist in (x for x in one.dists if not x.installed):
        yield _carried(dist, name, _carrier(dist, here))


def _same_version(one: str, other: str) -> bool:
    return one == other or one.partition("+")[0] == other.partition("+")[0]


def _found(pinned: Component, dist: Dist, layer: str) -> Component:
    licence = licences.of(dist.licence)
    source = pinned.made_from
    return Component(
        **{
            **vars(pinned),
            "licence": licence,
            "layer": layer,
            "place": dist.folder,
            "made_from": Component(**{**vars(source), "licence": licence}) if source else None,
        }
    )


def _carried(dist: Dist, layer: str, inside: str | None) -> Component:
    name = canonicalize_name(dist.name or "unnamed")
    return Component(
        kind="carried",
        name=name,
        version=dist.version or None,
        purl=pypi(name, dist.version or "0"),
        licence=licences.of(dist.licence),
        layer=layer,
        inside=inside,
        place=dist.folder,
    )


def _carrier(dist: Dist, here: Mapping[str, Component]) -> str | None:
    """The purl of the package of a layer in whose files a dist-info lies: by its top folder, else the only one."""
    if len(here) == 1:
        return next(iter(here.values())).purl
    match = re.search(r"site-packages/([^/]+)/", dist.folder)
    owner = here.get(canonicalize_name(match[1])) if match else None
    return owner.purl if owner else None


def _lacking(lock: Lock, layers: dict[str, Contents], left_out: str | None) -> str | None:
    """What the lock names and no layer holds, but for what the image says that it lacks."""
    for planned in lock.layers:
        if planned.name not in layers and planned.packages != (left_out,):
            return planned.packages[0] if planned.packages else f"the layer {planned.name}"
    return None


def _own(name: str, one: Contents) -> Component:
    return Component(
        kind="own",
        name=f"verlstack-{name}",
        version=None,
        purl=f"pkg:generic/verlstack-{quote(name, safe='')}",
        licence=licences.Licence(expression="Apache-2.0"),
        layer=name,
        diff_id=one.diff_id,
    )


def _below(layers: dict[str, Contents], release: tuple[str, str] | None) -> Iterator[Component]:
    """The system, its Debian packages, and the interpreter."""
    holder = next((name for name in reversed(layers) if layers[name].debs is not None), None)
    if release:
        yield Component(
            kind="system",
            name=release[0],
            version=release[1],
            purl=f"pkg:generic/{quote(release[0], safe='')}@{quote(release[1], safe='')}",
            licence=licences.Licence(),
            layer=holder or "",
        )
    # A layer above the bootstrap's may bring a new status file and no hashes; what has stayed the same keeps its own.
    known = {debs.file_name(x): x.sha256 for one in layers.values() for x in one.debs or () if x.sha256}
    for deb in (layers[holder].debs or ()) if holder else ():
        yield _deb(deb, release, str(holder), known.get(debs.file_name(deb)))
    if found := [(name, one) for name, one in layers.items() if one.python]:
        name, one = found[-1]
        yield Component(
            kind="interpreter",
            name="cpython",
            version=one.python,
            purl=f"pkg:generic/cpython@{one.python}",
            licence=licences.Licence(expression=_PSF),
            layer=name,
            diff_id=one.diff_id,
        )


def _deb(deb: Package, release: tuple[str, str] | None, layer: str, sha256: str | None) -> Component:
    vendor = release[0] if release else "debian"
    distro = f"&distro={vendor}-{quote(release[1], safe='')}" if release else ""
    version = quote(deb.version, safe="")
    return Component(
        kind="deb",
        name=deb.name,
        version=deb.version,
        purl=f"pkg:deb/{vendor}/{quote(deb.name, safe='')}@{version}?arch={deb.architecture}{distro}",
        licence=licences.Licence(),
        sha256=sha256,
        file=debs.file_name(deb) if sha256 else None,
        layer=layer,
        paper=deb.licence,
    )
