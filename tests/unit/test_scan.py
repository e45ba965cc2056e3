"""Which results of a vulnerability scanner may be attached to an image."""

from __future__ import annotations

import copy
import json

import pytest

from support import imagelayers
from verlstack import oci, scan
from verlstack.errors import UsageError


@pytest.fixture
def layout(tmp_path):
    return imagelayers.image(tmp_path / "image")


@pytest.fixture
def result(layout):
    """As Trivy writes it: the image is named by the digest of its config."""
    _, manifest, _ = oci.read_layout(layout)
    return {
        "invocation": {"parameters": None, "uri": "", "event_id": "", "builder.id": ""},
        "scanner": {
            "uri": "pkg:github/aquasecurity/trivy@v0.60.0",
            "version": "v0.60.0",
            "db": {"uri": "", "version": ""},
            "result": {"Metadata": {"ImageID": manifest["config"]["digest"]}, "Results": []},
        },
        "metadata": {"scanStartedOn": "2026-12-01T10:00:00Z", "scanFinishedOn": "2026-12-01T10:00:09Z"},
    }


def written(folder, document):
    path = folder / "scan.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_a_result_of_this_image(layout, result, tmp_path):
    made = scan.document(written(tmp_path, result), layout, "tiny")
    statement = json.loads(made.data)
    digest = oci.read_layout(layout)[0]
    assert statement["subject"] == [{"digest": {"sha256": digest.removeprefix("sha256:")}, "name": "tiny"}]
    assert statement["predicateType"] == made.kind == "https://cosign.sigstore.dev/attestation/vuln/v1"
    assert statement["predicate"] == made.predicate == result
    result["scanner"]["result"] = {"source": {"target": {"manifestDigest": digest}}}  # as Grype says it
    assert scan.document(written(tmp_path, result), layout, "tiny").predicate == result


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (
            ("scanner", "result"),
            {"Metadata": {"ImageID": f"sha256:{'0' * 64}"}},
            "it is of the image",
        ),
        (("scanner", "result"), [], "which scanner found what, and when"),
        (("scanner", "uri"), "", "which scanner found what, and when"),
        (("scanner", "uri"), 1, "which scanner found what, and when"),
        (("metadata", "scanFinishedOn"), None, "which scanner found what, and when"),
        (("metadata",), None, "cosign's form"),
        (("scanner",), [], "cosign's form"),
        (("scanner", "result", "score"), float("nan"), "cosign's form"),
    ],
)
def test_a_result_that_is_none_of_this_image(layout, result, tmp_path, path, value, said):
    changed = copy.deepcopy(result)
    *above, last = path
    place = changed
    for name in above:
        place = place[name]
    place[last] = value
    with pytest.raises(UsageError, match=said):
        scan.document(written(tmp_path, changed), layout, "tiny")


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '"x"', "\xed\xa0\x80"])
def test_what_is_no_result(layout, tmp_path, text):
    with pytest.raises(UsageError, match="no result of a scanner in cosign's form"):
        scan.document(written(tmp_path, text), layout, "tiny")


def test_a_folder_nothing_and_too_much(layout, tmp_path):
    huge = tmp_path / "huge"
    huge.write_bytes(b" " * ((4 << 20) + 1))
    for path in (tmp_path, tmp_path / "absent", huge):
        with pytest.raises(UsageError, match="no result of a scanner here: "):
            scan.document(path, layout, "tiny")
