"""An inventory as an SPDX 2.3 document in JSON: the same bytes for the same image."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from verlstack import canonical

if TYPE_CHECKING:
    from verlstack.sbom.inventory import Component, Inventory
    from verlstack.sbom.licences import Licence

MEDIA_TYPE = "application/spdx+json"
PREDICATE = "https://spdx.dev/Document"
_UNKNOWN = "NOASSERTION"
_IMAGE = "SPDXRef-image"
_DOCUMENT = "SPDXRef-DOCUMENT"
# A purpose of SPDX 2.3, table 7.24, for each kind.
_PURPOSES = {
    "wheel": "LIBRARY",
    "carried": "LIBRARY",
    "deb": "LIBRARY",
    "system": "OPERATING-SYSTEM",
    "interpreter": "APPLICATION",
    "own": "APPLICATION",
    "source": "SOURCE",
}


def document(inventory: Inventory) -> bytes:
    """The document; its namespace holds the image's digest, its time is the image's own."""
    hexadecimal = inventory.digest.removeprefix("sha256:")
    sources = {x.made_from.key: x.made_from for x in inventory.components if x.made_from}
    every = (*inventory.components, *(sources[key] for key in sorted(sources)))
    image = {
        "SPDXID": _IMAGE,
        "name": inventory.name,
        **({"versionInfo": inventory.version} if inventory.version else {}),
        "downloadLocation": _UNKNOWN,
        "filesAnalyzed": False,
        "primaryPackagePurpose": "CONTAINER",
        "checksums": [{"algorithm": "SHA256", "checksumValue": hexadecimal}],
        "externalRefs": [_purl(f"pkg:oci/verlstack@sha256%3A{hexadecimal}")],
        "licenseConcluded": _UNKNOWN,
        "licenseDeclared": _UNKNOWN,
        "copyrightText": _UNKNOWN,
    }
    words = sorted({x.licence.words for x in every if x.licence.words})
    return canonical.dumps(
        {
            "spdxVersion": "SPDX-2.3",
            "dataLicense": "CC0-1.0",
            "SPDXID": _DOCUMENT,
            "name": inventory.name,
            "documentNamespace": f"urn:verlstack:spdx:{inventory.digest}",
            "creationInfo": {"created": inventory.created, "creators": ["Tool: verlstack"]},
            "comment": _made_from(inventory),
            "packages": [image, *(_package(x) for x in every)],
            "hasExtractedLicensingInfos": [
                {
                    "licenseId": _own_id(x),
                    "name": x,
                    "extractedText": f"{x}\n(as the package's METADATA calls it; its text lies beside that)",
                }
                for x in words
            ],
            "relationships": [
                {"spdxElementId": _DOCUMENT, "relationshipType": "DESCRIBES", "relatedSpdxElement": _IMAGE},
                *_relations(inventory),
            ],
        }
    )


def _made_from(inventory: Inventory) -> str:
    if inventory.lock is None:
        return "a base image, made from no lock"
    return f"made from the lock {inventory.lock}" + (f", on {inventory.base}" if inventory.base else "")


def _relations(inventory: Inventory) -> list[dict[str, str]]:
    """What holds what, and what was made from what."""
    ids = {x.key: _id(x) for x in inventory.components}
    found = []
    for one in inventory.components:
        holder = ids[one.inside] if one.inside else _IMAGE
        found.append({"spdxElementId": holder, "relationshipType": "CONTAINS", "relatedSpdxElement": _id(one)})
        if one.made_from:
            row = {"spdxElementId": _id(one), "relationshipType": "GENERATED_FROM"}
            found.append({**row, "relatedSpdxElement": _id(one.made_from)})
    return found


def _package(one: Component) -> dict[str, Any]:
    notes = [f"{name}: {value}" for name, value in (("layer", one.layer), ("diff_id", one.diff_id)) if value]
    notes += [f"in the image at /{one.place}"] if one.place else []
    notes += [f"copyright file {one.paper}"] if one.paper else []
    return {
        "SPDXID": _id(one),
        "name": one.name,
        **({"versionInfo": one.version} if one.version else {}),
        **({"packageFileName": one.file} if one.file else {}),
        "downloadLocation": _UNKNOWN,  # the file is named by its hash; where from is the index's business
        "filesAnalyzed": False,
        "primaryPackagePurpose": _PURPOSES[one.kind],
        **({"checksums": [{"algorithm": "SHA256", "checksumValue": one.sha256}]} if one.sha256 else {}),
        "externalRefs": [_purl(one.purl)],
        "licenseConcluded": _UNKNOWN,  # nobody has looked at the files
        "licenseDeclared": _declared(one.licence),
        "copyrightText": _UNKNOWN,
        **({"comment": "; ".join(notes)} if notes else {}),
    }


def _id(one: Component) -> str:
    """An SPDXID: letters, digits, dots and hyphens alone, so a hash keeps apart what would fall together."""
    name = re.sub(r"[^A-Za-z0-9.-]", "-", f"{one.kind}-{one.name}-{one.version or ''}")
    return f"SPDXRef-{name}-{hashlib.sha256(one.key.encode()).hexdigest()[:12]}"


def _purl(purl: str) -> dict[str, str]:
    return {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}


def _declared(licence: Licence) -> str:
    if licence.expression:
        return licence.expression
    return _own_id(licence.words) if licence.words else _UNKNOWN


def _own_id(words: str) -> str:
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", words).strip("-")
    return f"LicenseRef-{name}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"
