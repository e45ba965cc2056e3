"""`verlstack attest`: what is known of an image, attached to it in a registry."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from verlstack import artifact, canonical, images, oci, provenance, reading, scan, upload
from verlstack.artifact import Document
from verlstack.errors import UsageError
from verlstack.sbom import cyclonedx, make, spdx
from verlstack.signing import claims
from verlstack.signing.verify import TYPES
from verlstack.smoke import said

if TYPE_CHECKING:
    from verlstack.base.reference import Reference
    from verlstack.provenance import Run
    from verlstack.sbom.inventory import Inventory
    from verlstack.signing.signer import Signer
    from verlstack.workshop import Workshop

SMOKE = "application/vnd.verlstack.smoke.v1+json"
_FEWER = "run the smoke tests on fewer hosts for this"  # a report of two has 100 kB


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was attached.

    Attributes:
        attached: name → digest of the manifest that refers to the image.
        signed: who signed all of them: `sha256:…` of a key, or an identity; or None.
        smoke: what the attached smoke report says was run; None where none was attached.
        scan: what the attached scan says of itself; None where none was attached.
    """

    reference: str
    digest: str
    attached: dict[str, str]
    signed: str | None
    smoke: str | None
    scan: str | None


def attest(
    layout: Path,
    ref: Reference,
    shop: Workshop,
    *,
    run: Run,
    smoke: Path | None = None,
    scanned: Path | None = None,
    signer: Signer | None = None,
) -> Report:
    """Attach what is known of an image to it in a registry that has it; its digest stays what it is.

    Args:
        layout: the image here, which is held against its lock.
        ref: HOST/REPOSITORY; the digest is the layout's.
        shop: the surroundings.
        run: what the builder says of itself.
        smoke: folder of the report of `verlstack smoke`, or its `smoke.json`.
        scanned: what a vulnerability scanner wrote of this image, in cosign's form.
        signer: signs every document as an in-toto statement, too.

    Raises:
        LockError, ProofError: the image is not what its lock says.
        UsageError: the smoke report or the scan is another image's, the image is none of a stack, or a document is
            longer than what `verify` reads.
        FetchError: the registry does not have the image, or refuses.
    """
    digest = oci.read_layout(layout)[0]
    given, tests, scanner = [], None, None  # looked at first: reading the layers takes a while
    if smoke is not None:
        given.append(report := smoke_report(smoke, digest))
        tests = said.line(report.predicate)
    if scanned is not None:
        given.append(result := scan.document(scanned, layout, make.name(layout)))
        scanner = scan.line(result.predicate)
    found = make.inventory(layout, shop.constraints, cache=shop.cache, workers=shop.workers, progress=shop.progress)
    made = documents(layout, found, shop.constraints, run)
    for one in made:
        artifact.check_size(
            one, str(layout), "attach to an image with fewer packages; this one can be signed, not attested"
        )
    made += given
    ref = dataclasses.replace(ref, digest=digest)
    with upload.writer(ref, shop.env) as writer, tempfile.TemporaryDirectory(prefix="verlstack-") as folder:
        about = artifact.subject(writer)
        attached = {}
        for one in made:
            notes = {artifact.CREATED: found.created, claims.PREDICATE: one.kind}
            attached[one.name] = artifact.attach(
                writer, one.data, one.media_type, about, Path(folder), notes=notes, title=one.name
            )
        done = signer.attest(writer, {one.kind: one.predicate for one in made}) if signer else None
    name = f"{ref.host}/{ref.repository}@{digest}"
    signed = done.by if done else None
    return Report(reference=name, digest=digest, attached=attached, signed=signed, smoke=tests, scan=scanner)


def documents(layout: Path, found: Inventory, constraints: Path, run: Run) -> list[Document]:
    """Both SBOMs, and of an image of a stack its provenance."""
    made = [_bill("sbom.cdx.json", cyclonedx.document(found), cyclonedx.MEDIA_TYPE, cyclonedx.PREDICATE)]
    made.append(_bill("sbom.spdx.json", spdx.document(found), spdx.MEDIA_TYPE, spdx.PREDICATE))
    labels = images.labels(oci.read_layout(layout)[2])
    if lock := make.lock_of(labels, constraints, layout):
        predicate = provenance.predicate(lock, constraints, labels, found.components, run)
        data = claims.statement(found.name, found.digest, provenance.PREDICATE, predicate)
        kind = provenance.PREDICATE
        made.append(
            Document(name="provenance.json", media_type=claims.IN_TOTO, data=data, kind=kind, predicate=predicate)
        )
    return made


def _bill(name: str, data: bytes, media_type: str, kind: str) -> Document:
    return Document(name=name, media_type=media_type, data=data, kind=kind, predicate=json.loads(data))


def smoke_report(path: Path, digest: str) -> Document:
    """The report of the smoke tests, if it is this image's and they passed.

    Raises:
        UsageError: it is not.
    """
    path = path / "smoke.json" if path.is_dir() else path
    todo = "run `verlstack smoke --report DIR` on this image, and name DIR"
    try:
        known = canonical.mended(reading.data(path))
        image, passed = str(known["image"]), known["ok"]
    except OSError as e:
        raise UsageError(f"no report of the smoke tests here: {e.strerror}", where=str(path), todo=todo) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError("no report of the smoke tests here", where=str(path), todo=todo) from None
    if not image.endswith(f"@{digest}"):
        raise UsageError(f"this report is of {image}, and the image is {digest}", where=str(path), todo=todo)
    if passed is not True:
        raise UsageError("the smoke tests did not pass", where=str(path), todo="see why, and run them again")
    kind = TYPES["smoke"]
    one = Document(name="smoke.json", media_type=SMOKE, data=canonical.dumps(known), kind=kind, predicate=known)
    return artifact.check_size(one, str(path), _FEWER)
