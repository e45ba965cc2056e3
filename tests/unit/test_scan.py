"""Which results of a vulnerability scanner may be attached to an image."""

from __future__ import annotations

import copy
import json

import pytest

from support import imagelayers
from support.signatures import DIGEST, OTHER, pair
from verlstack import artifact, oci, scan
from verlstack.base.transport import MAX_DOCUMENT
from verlstack.errors import UsageError
from verlstack.signing import claims, keys


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


@pytest.mark.parametrize(
    ("named", "counts"),
    [
        ({"Metadata": {"ImageID": "CONFIG"}}, True),
        ({"Metadata": {"ImageID": "MANIFEST"}}, True),
        (
            {"Metadata": {"ImageID": OTHER, "RepoDigests": [1, f"reg.invalid/x@{OTHER}", "reg.invalid/x@MANIFEST"]}},
            True,
        ),
        ({"source": {"target": {"imageID": "CONFIG"}}}, True),
        ({"source": {"target": {"manifestDigest": "MANIFEST"}}}, True),
        ({"source": {"target": {"repoDigests": ["reg.invalid/x@MANIFEST"]}}}, True),
        ({"source": {"metadata": {"manifestDigest": "MANIFEST"}}}, True),
        ({"Metadata": {"RepoDigests": ["reg.invalid/x@MANIFEST"], "ImageID": OTHER}}, True),
        ({"Metadata": {"ImageID": OTHER, "ImageConfig": {"config": {"Labels": {"ImageID": "CONFIG"}}}}}, False),
        ({"Metadata": {"DiffIDs": ["CONFIG"]}}, False),
        ({"source": {"target": {"layers": [{"digest": "MANIFEST"}]}}}, False),
        ({"Results": [{"Target": "MANIFEST", "Vulnerabilities": [{"Layer": {"Digest": "CONFIG"}}]}]}, False),
        ({"MANIFEST": {"CONFIG": "MANIFEST"}}, False),
        ({"Metadata": {"ImageID": "MANIFESTff"}}, False),
        ({"Metadata": {"ImageID": "this is none of MANIFEST"}}, False),
        ({"Metadata": ["ImageID", "MANIFEST"], "source": {"target": "MANIFEST"}}, False),
    ],
)
def test_only_what_names_the_image_counts(layout, result, tmp_path, named, counts):
    digest, manifest, _ = oci.read_layout(layout)
    text = json.dumps(named).replace("MANIFEST", digest).replace("CONFIG", manifest["config"]["digest"])
    result["scanner"]["result"] = json.loads(text)
    result["invocation"]["uri"] = digest  # outside of the scanner's report it is whose word one likes
    if counts:
        assert scan.document(written(tmp_path, result), layout, "tiny").predicate == result
    else:
        with pytest.raises(UsageError, match="does not say that it is of the image"):
            scan.document(written(tmp_path, result), layout, "tiny")


def test_a_statement_as_the_specification_shows_it(layout, result, tmp_path):
    whole = {"_type": "x", "predicateType": scan.PREDICATE, "predicate": result}
    assert scan.document(written(tmp_path, whole), layout, "tiny").predicate == result
    with pytest.raises(UsageError, match="it lacks 'scanner'"):
        scan.document(written(tmp_path, whole | {"predicateType": "y"}), layout, "tiny")


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
        (("scanner", "result", "title"), "\ud800", "cosign's form"),
        (("scanner", "result", "\ud800"), 1, "cosign's form"),
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


def test_a_number_that_is_too_large(layout, result, tmp_path):
    text = json.dumps(result).replace('"Results": []', '"Results": [1e999]')
    with pytest.raises(UsageError, match="cosign's form"):
        scan.document(written(tmp_path, text), layout, "tiny")
    text = json.dumps(result).replace('"Results": []', '"Results": [1e300]')
    assert scan.document(written(tmp_path, text), layout, "tiny")


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '"x"', "\xed\xa0\x80"])
def test_what_is_no_result(layout, tmp_path, text):
    with pytest.raises(UsageError, match="no result of a scanner in cosign's form"):
        scan.document(written(tmp_path, text), layout, "tiny")


def test_a_folder_nothing_and_too_much(layout, tmp_path):
    huge = tmp_path / "huge"
    huge.write_bytes(b" " * ((16 << 20) + 1))
    for path in (tmp_path, tmp_path / "absent", huge):
        with pytest.raises(UsageError, match="no result of a scanner here: "):
            scan.document(path, layout, "tiny")


def padded(result, size):
    """The result with as many findings more that what is signed has `size` bytes."""
    result["scanner"]["result"]["Results"] = [""]
    result["scanner"]["result"]["Results"] = [
        "x" * (size - len(claims.statement("tiny", DIGEST, scan.PREDICATE, result)))
    ]
    return result


def test_what_verify_would_not_read_is_not_attached(layout, result, tmp_path):
    made = scan.document(written(tmp_path, padded(result, artifact.LARGEST)), layout, "tiny")
    assert len(made.data) == artifact.LARGEST
    private, _ = pair(tmp_path, "one")
    assert len(claims.envelope(made.data, keys.private(private, lambda: b""))) < MAX_DOCUMENT
    with pytest.raises(UsageError, match=r"(?s)may have 3096576.*--severity HIGH,CRITICAL"):
        scan.document(written(tmp_path, padded(result, artifact.LARGEST + 1)), layout, "tiny")


def test_a_line_says_which_scanner_and_when(result):
    assert scan.line(result) == "by pkg:github/aquasecurity/trivy@v0.60.0, finished 2026-12-01T10:00:09Z"
    result["scanner"]["uri"] *= 20
    assert len(scan.line(result)) == 300


@pytest.mark.parametrize(
    "strange",
    [None, [], "scanner", {}, {"scanner": {"uri": "x"}}, {"scanner": {"uri": 1}, "metadata": {"scanFinishedOn": "now"}},
     {"scanner": {"uri": "x"}, "metadata": {"scanFinishedOn": ["now"]}}, {"scanner": ["uri"], "metadata": []},
     {"scanner": {"uri": ""}, "metadata": {"scanFinishedOn": "now"}}],
)  # fmt: skip
def test_a_line_of_a_strange_attestation_says_nothing(strange):
    assert scan.line(strange) == "which scanner looked, and when, is not told in a form that is known here"
