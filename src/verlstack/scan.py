"""The result of a vulnerability scanner, for attaching to the image that was scanned; no scanner is run here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from verlstack import canonical, oci, reading
from verlstack.artifact import IN_TOTO, Document
from verlstack.errors import UsageError
from verlstack.signing import claims

if TYPE_CHECKING:
    from pathlib import Path

# cosign's specification "Vulnerability Scan Record Attestation"; Trivy writes it as `--format cosign-vuln`.
PREDICATE = "https://cosign.sigstore.dev/attestation/vuln/v1"
_MOST = 4 << 20  # bytes, what a registry must take of a document
_TODO = "let a scanner write it in cosign's form of this very image (`trivy image --input FOLDER --format cosign-vuln`)"


def document(path: Path, layout: Path, name: str) -> Document:
    """A scanner's result, if it is of the image in `layout`.

    Args:
        path: the file that the scanner wrote.
        layout: the image.
        name: of the image, for the statement.

    Raises:
        UsageError: it is none, or does not say that it is of this image.
    """
    try:
        data = reading.data(path, _MOST)
        known: dict[str, Any] = canonical.loads(data)
        scanner, result, when = known["scanner"]["uri"], known["scanner"]["result"], known["metadata"]["scanFinishedOn"]
    except OSError as e:
        raise UsageError(f"no result of a scanner here: {e.strerror}", where=str(path), todo=_TODO) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError("no result of a scanner in cosign's form here", where=str(path), todo=_TODO) from None
    if not (isinstance(scanner, str) and scanner and isinstance(when, str) and when and isinstance(result, dict)):
        raise UsageError("this result does not say which scanner found what, and when", where=str(path), todo=_TODO)
    digest, manifest, _ = oci.read_layout(layout)
    if not any(x.encode() in json.dumps(result).encode() for x in (digest, str(manifest["config"]["digest"]))):
        what = f"this result does not say that it is of the image {digest}: neither that nor its config is named in it"
        raise UsageError(what, where=str(path), todo=_TODO)
    statement = claims.statement(name, digest, PREDICATE, known)
    return Document(name="vuln.json", media_type=IN_TOTO, data=statement, kind=PREDICATE, predicate=known)
