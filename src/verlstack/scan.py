"""The result of a vulnerability scanner, for attaching to the image that was scanned; no scanner is run here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verlstack import artifact, canonical, oci, reading
from verlstack.artifact import Document
from verlstack.errors import UsageError
from verlstack.signing import claims

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# cosign's specification "Vulnerability Scan Record Attestation"; Trivy writes it as `--format cosign-vuln`.
PREDICATE = "https://cosign.sigstore.dev/attestation/vuln/v1"
# Where a scanner's own report says which image it is of. Elsewhere in it digests are of layers or files, or stand in a
# label, where whoever made the image writes what they like.
_NAMED = (
    ("Metadata", "ImageID"),  # Trivy: pkg/types/report.go
    ("Metadata", "RepoDigests"),
    *(
        ("source", place, key)
        for place in ("target", "metadata")  # Grype: grype/presenter/models/source.go; Syft since its version 1
        for key in ("imageID", "manifestDigest", "repoDigests")  # of both: syft/source/image_metadata.go
    ),
)
_LONGEST = 300  # characters of a line
_TODO = "let a scanner write it in cosign's form of this very image (`trivy image --input FOLDER --format cosign-vuln`)"
_FEWER = "let the scanner write fewer findings, as with `--severity HIGH,CRITICAL`"


def document(path: Path, layout: Path, name: str) -> Document:
    """A scanner's result, if it is of the image in `layout`.

    Args:
        path: the file that the scanner wrote.
        layout: the image.
        name: of the image, for the statement.

    Raises:
        UsageError: it is none, does not say that it is of this image, or is longer than what `verify` reads.
    """
    digest, manifest, _ = oci.read_layout(layout)
    try:
        known: dict[str, Any] = _predicate(canonical.loads(reading.data(path)))
        scanner, result, when = known["scanner"]["uri"], known["scanner"]["result"], known["metadata"]["scanFinishedOn"]
        statement = claims.statement(name, digest, PREDICATE, known)
    except OSError as e:
        raise UsageError(f"no result of a scanner here: {e.strerror}", where=str(path), todo=_TODO) from None
    except KeyError as e:
        what = f"no result of a scanner in cosign's form here: it lacks {e}"
        raise UsageError(what, where=str(path), todo=_TODO) from None
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise UsageError("no result of a scanner in cosign's form here", where=str(path), todo=_TODO) from None
    if not (isinstance(scanner, str) and scanner and isinstance(when, str) and when and isinstance(result, dict)):
        raise UsageError("this result does not say which scanner found what, and when", where=str(path), todo=_TODO)
    ours = (digest, str(manifest["config"]["digest"]))
    if not any(said == one or said.endswith(f"@{one}") for said in _images(result) for one in ours):
        what = f"this result does not say that it is of the image {digest}: neither that nor its config is named in it"
        raise UsageError(what, where=str(path), todo=_TODO)
    one = Document(name="vuln.json", media_type=claims.IN_TOTO, data=statement, kind=PREDICATE, predicate=known)
    return artifact.check_size(one, str(path), _FEWER)


def _predicate(known: Any) -> Any:
    """What a scanner wrote, or what is in it where that is a statement already, as the specification shows it."""
    return known["predicate"] if known.get("predicateType") == PREDICATE else known


def _images(result: dict[str, Any]) -> Iterator[str]:
    """What a scanner's report names as its image."""
    for path in _NAMED:
        found: Any = result
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        yield from (x for x in (found if isinstance(found, list) else [found]) if isinstance(x, str))


def line(predicate: Any) -> str:
    """Which scanner looked, and when it was done; what it found is not judged.

    Args:
        predicate: of an attestation in cosign's form, from anywhere.
    """
    try:
        scanner, when = predicate["scanner"]["uri"], predicate["metadata"]["scanFinishedOn"]
    except (KeyError, TypeError, IndexError):
        scanner, when = None, None
    if not (isinstance(scanner, str) and scanner and isinstance(when, str) and when):
        return "which scanner looked, and when, is not told in a form that is known here"
    said = f"by {scanner}, finished {when}"
    return said if len(said) <= _LONGEST else f"{said[: _LONGEST - 1]}…"
