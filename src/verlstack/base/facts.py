"""What an image is and holds, read off its scanned tree: system, C library, Python, compiler, packages."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from verlstack.base import aptsources, debs, dpkg

if TYPE_CHECKING:
    from collections.abc import Mapping

    from verlstack.base.imagescan import Tree

_PATCH_LEVEL = re.compile(r'^#define\s+PY_VERSION\s+"([\d.]+)', re.MULTILINE)
_GLIBC = re.compile(rb"GNU C Library [^\n]{0,80}release version (\d+\.\d+)")  # its banner, csu/version.c
_GLIBCXX = re.compile(rb"GLIBCXX_(\d+\.\d+(?:\.\d+)?)\0")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a scan found in an image.

    Attributes:
        env: the config's environment, in its order.
        labels: the config's labels, sorted.
        compiler: path of `cc` or `gcc`, or None.
        python_home: folder of the wanted Python, or None.
        python_version: all three numbers, where its headers say so.
        headers: whether that Python's Python.h is there.
        os_id: ID of os-release.
        os_version: VERSION_ID of os-release.
        os_name: PRETTY_NAME of os-release, for people.
        libraries: names in the loader's default folders, sorted.
        glibc: "2.36", or None where libc.so.6 does not say.
        glibcxx: newest GLIBCXX symbol version of libstdc++.so.6, "3.4.30", or None without one.
        packages: what dpkg installed; empty where there is no dpkg.
    """

    env: tuple[tuple[str, str], ...]
    labels: tuple[tuple[str, str], ...]
    compiler: str | None
    python_home: str | None
    python_version: str | None
    headers: bool
    os_id: str
    os_version: str
    os_name: str
    libraries: tuple[str, ...]
    glibc: str | None
    glibcxx: str | None
    packages: tuple[dpkg.Package, ...]

    def to_json(self) -> dict[str, Any]:
        """As `from_json` reads it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> Facts:
        """The facts that `to_json` wrote.

        Raises:
            TypeError, ValueError: written by something else.
        """
        pairs = {key: tuple((name, value) for name, value in known[key]) for key in ("env", "labels")}
        packages = tuple(dpkg.Package(**one) for one in known["packages"])
        return cls(**dict(known) | pairs | {"packages": packages, "libraries": tuple(known["libraries"])})


def read(tree: Tree, config: Mapping[str, Any], wanted: str) -> Facts:
    """The facts of an image.

    Args:
        tree: all its layers, laid over one another.
        config: its OCI config; whatever is malformed in it counts as absent.
        wanted: Python's "3.10".
    """
    release = aptsources.parse_release(tree.text("etc/os-release"))
    home = _python_home(tree, wanted)
    include = f"{home}/../include/python{wanted}" if home else ""
    version = _PATCH_LEVEL.search(tree.text(f"{include}/patchlevel.h"))
    inner = config.get("config")
    inner = inner if isinstance(inner, dict) else {}
    return Facts(
        env=_environment(inner.get("Env")),
        labels=_labels(inner.get("Labels")),
        compiler=_first_file(tree, "usr/bin/cc", "usr/bin/gcc", "usr/local/bin/cc", "usr/local/bin/gcc"),
        python_home=home,
        python_version=version[1] if version else None,
        headers=bool(home) and tree.is_file(f"{include}/Python.h"),
        os_id=release.id,
        os_version=release.version,
        os_name=release.name,
        libraries=tuple(tree.libraries()),
        glibc=_newest(_GLIBC, tree.library("libc.so.6")),
        glibcxx=_newest(_GLIBCXX, tree.library("libstdc++.so.6")),
        packages=_packages(tree),
    )


def _environment(entries: object) -> tuple[tuple[str, str], ...]:
    pairs = (str(entry).partition("=") for entry in (entries if isinstance(entries, list) else ()))
    return tuple((name, value) for name, _, value in pairs)


def _labels(entries: object) -> tuple[tuple[str, str], ...]:
    known = entries if isinstance(entries, dict) else {}
    return tuple(sorted((str(name), str(value)) for name, value in known.items()))


def _first_file(tree: Tree, *paths: str) -> str | None:
    return next((f"/{path}" for path in paths if tree.is_file(path)), None)


def _python_home(tree: Tree, wanted: str) -> str | None:
    deeper = [path.rpartition("/")[0] for path in tree.paths(rf"opt/[^/]+/bin/python{re.escape(wanted)}")]
    for folder in ("usr/local/bin", "usr/bin", *deeper):
        if tree.is_file(f"{folder}/python{wanted}"):
            return f"/{folder}"
    return None


def _newest(pattern: re.Pattern[bytes], data: bytes) -> str | None:
    found = {match.decode() for match in pattern.findall(data)}
    return max(found, key=lambda text: [int(part) for part in text.split(".")], default=None)


def _packages(tree: Tree) -> tuple[dpkg.Package, ...]:
    single = tree.paths(r"var/lib/dpkg/status\.d/[^/]+")
    status = "\n\n".join(tree.text(path) for path in ("var/lib/dpkg/status", *single))
    found, _ = debs.read(tree.text(debs.PATH), dpkg.parse(status))  # `verlstack sbom` says what is wrong
    papers = {one.name: tree.real(f"usr/share/doc/{one.name}/copyright") for one in found}
    return tuple(dataclasses.replace(one, licence=f"/{path}" if (path := papers[one.name]) else None) for one in found)
