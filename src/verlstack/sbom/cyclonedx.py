"""An inventory as a CycloneDX 1.6 document (ECMA-424): the same bytes for the same image."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from verlstack import canonical

if TYPE_CHECKING:
    from verlstack.sbom.inventory import Component, Inventory

MEDIA_TYPE = "application/vnd.cyclonedx+json"
PREDICATE = "https://cyclonedx.org/bom"
_TYPES = {
    "wheel": "library",
    "carried": "library",
    "deb": "library",
    "system": "operating-system",
    "interpreter": "platform",
    "own": "application",
    "source": "file",
}
_NAMESPACE = "dev.verlstack"  # as of our labels


def document(inventory: Inventory) -> bytes:
    """The document; its serial number is a function of the image's digest, its time the image's own."""
    image = _ref(inventory)
    return canonical.dumps(
        {
            "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, image)}",
            "version": 1,
            "metadata": {
                "timestamp": inventory.created,
                "component": {
                    "type": "container",
                    "bom-ref": image,
                    "name": inventory.name,
                    **({"version": inventory.version} if inventory.version else {}),
                    "purl": image,
                    "hashes": [{"alg": "SHA-256", "content": inventory.digest.removeprefix("sha256:")}],
                },
                "properties": _properties({"lock": inventory.lock, "base": inventory.base}),
            },
            "components": [_component(x) for x in inventory.components],
            "dependencies": _dependencies(inventory, image),
        }
    )


def _ref(inventory: Inventory) -> str:
    return f"pkg:oci/verlstack@{inventory.digest.replace(':', '%3A')}"


def _dependencies(inventory: Inventory, image: str) -> list[dict[str, Any]]:
    """The image holds all; a package holds what it carries along."""
    held: dict[str, list[str]] = {image: []}
    for one in inventory.components:
        held.setdefault(one.inside or image, []).append(one.key)
    return [{"ref": ref, "dependsOn": sorted(held[ref])} for ref in sorted(held)]


def _component(one: Component) -> dict[str, Any]:
    table: dict[str, Any] = {"type": _TYPES[one.kind], "bom-ref": one.key, "name": one.name, "purl": one.purl}
    if one.version:
        table["version"] = one.version
    if one.sha256:
        table["hashes"] = [{"alg": "SHA-256", "content": one.sha256}]
    if one.licence.expression:
        table["licenses"] = [{"expression": one.licence.expression}]
    elif one.licence.words:
        table["licenses"] = [{"license": {"name": one.licence.words}}]
    if one.made_from:
        table["pedigree"] = {"ancestors": [_component(one.made_from)]}
    told = {"file": one.file, "layer": one.layer or None, "diff_id": one.diff_id, "place": one.place}
    if rows := _properties({**told, "copyright": one.paper, "kind": one.kind}):
        table["properties"] = rows
    return table


def _properties(known: dict[str, str | None]) -> list[dict[str, str]]:
    return [{"name": f"{_NAMESPACE}:{name}", "value": value} for name, value in sorted(known.items()) if value]
