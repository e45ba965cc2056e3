"""`verlstack base show`: what a base is and holds, for people and as the input of an SBOM."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verlstack import told
from verlstack.base import bases
from verlstack.errors import BaseImageError, UsageError

if TYPE_CHECKING:
    from verlstack.base.bases import Found
    from verlstack.base.dpkg import Package

_SPEC = re.compile(r"debian|registry:.+|oci:.+")


def named(text: str) -> str:
    """The spec that a user's word means: a folder is a layout.

    Raises:
        UsageError: no base is named so; `auto` would not say which base is looked at.
    """
    if text and Path(text).is_dir():
        return f"oci:{text}"
    if not _SPEC.fullmatch(text):
        raise UsageError(
            f"there is no base {text!r}",
            where="BASE",
            todo="write `debian`, `registry:HOST/REPOSITORY@sha256:…`, `oci:DIR` or the folder of a layout",
        )
    return text


def document(found: Found, wanted: str) -> dict[str, Any]:
    """All that is known of a base, for programs: the input of an SBOM.

    Args:
        found: from `bases.look`.
        wanted: the stack's Python, "3.10".
    """
    facts = found.facts
    return {
        "kind": found.kind,
        "reference": found.reference,
        "local": found.local,
        "unfit": unfit(found, wanted),
        "layers": [
            {
                "digest": x.digest,
                "diff_id": x.diff_id,
                "media_type": x.media_type,
                "size": x.size,
                "raw_size": x.raw_size,
            }
            for x in found.layers
        ],
        "system": {"id": facts.os_id, "version": facts.os_version, "name": facts.os_name},
        "glibc": facts.glibc,
        "glibcxx": facts.glibcxx,
        "python": {"home": facts.python_home, "version": facts.python_version, "headers": facts.headers},
        "compiler": facts.compiler,
        "labels": dict(facts.labels),
        "packages": list(facts.packages),
    }


def unfit(found: Found, wanted: str) -> str | None:
    """Why the base cannot carry the stack, or None if it can, as far as the image alone decides that."""
    try:
        bases.judge(found.facts, found.reference, wanted, host=bases.host())
    except BaseImageError as e:
        return e.what
    return None


def lines(known: dict[str, Any], wanted: str) -> list[str]:
    """A `document` for people; sizes in MB (10**6 bytes), a package's by its packager's account."""
    python, layers, packages = known["python"], known["layers"], known["packages"]
    raw, stored = (sum(x[key] for x in layers) / 1e6 for key in ("raw_size", "size"))
    headers = "with headers" if python["headers"] else "no headers"
    shown = [
        f"{known['reference']}  ({known['kind']}, {'local' if known['local'] else 'pinned'})",
        f"system    {known['system']['name']}, glibc {known['glibc'] or '?'}, GLIBCXX {known['glibcxx'] or '?'}",
        f"python    {python['home']}/python{wanted} {python['version'] or ''}, {headers}"
        if python["home"]
        else f"python    no {wanted}; this machine's is put on top",
        f"compiler  {known['compiler'] or 'none'}",
        f"unfit     {known['unfit']}" if known["unfit"] else "fits the stack",
        "",
        f"{len(layers)} layers, {raw:.1f} MB, stored {stored:.1f} MB",
        *(f"  {x['digest']}  {x['raw_size'] / 1e6:8.1f}  {x['size'] / 1e6:8.1f}" for x in layers),
        *(f"  {name} = {value}" for name, value in sorted(known["labels"].items())),
        "",
        f"{len(packages)} packages, {sum(x.installed_kib for x in packages) * 1024 / 1e6:.0f} MB",
        *(f"  {x.installed_kib * 1024 / 1e6:8.1f}  {x.name} {x.version}" for x in sorted(packages, key=_largest)),
    ]
    return [told.escaped(line) for line in shown]  # its names and labels are an image's


def _largest(package: Package) -> tuple[int, str]:
    return -package.installed_kib, package.name
