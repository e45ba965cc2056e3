"""What an image was made from, as an SLSA predicate; and which smoke reports may be attached."""

from __future__ import annotations

import dataclasses
import json

import pytest

from support import imagelayers
from support.imagelayers import GCC, HASHED, artifact, image, layers, lock, surroundings
from support.signatures import DIGEST, OTHER
from verlstack import attest, provenance
from verlstack.errors import UsageError
from verlstack.lockfile import Compiled
from verlstack.pins import FORMAT
from verlstack.sbom import contents
from verlstack.sbom.inventory import take

RUN = provenance.Run()
LABELS = {"dev.verlstack.base": f"reg.invalid/base@{DIGEST}"}


@pytest.fixture
def components(tmp_path):
    files = layers(**{"base debian": HASHED})
    return take(contents.read(image(tmp_path / "image", files), **vars(surroundings(tmp_path))), lock())


@pytest.fixture
def predicate(tmp_path, components):
    def make(pinned=None, labels=LABELS, run=RUN):
        for name in ("tiny.txt", "tiny.lock.toml"):
            (tmp_path / name).write_text(name)
        return provenance.predicate(pinned or lock(), tmp_path, labels, components, run)

    return make


def materials(made):
    return {x["name"]: x for x in made["buildDefinition"]["resolvedDependencies"]}


def test_every_file_of_the_lock_is_a_material_with_its_hash(predicate):
    found = materials(predicate())
    for name in ("torch-2.3.1-py3-none-any.whl", "verl-0.2.0.post2.tar.gz", "setuptools-75.8.0-py3-none-any.whl"):
        assert found[name]["digest"] == {"sha256": imagelayers.sha(name)}
    assert found["constraints/tiny.txt"]["digest"] == {"sha256": imagelayers.sha("tiny.txt")}
    assert found[LABELS["dev.verlstack.base"]]["digest"] == {"sha256": "a" * 64}
    assert found["libc6"]["uri"].startswith("pkg:deb/debian/libc6@2.36-9")
    assert "digest" not in found["libc6"]
    assert found["gcc"]["digest"] == {"sha256": imagelayers.sha(GCC)}
    assert found["interpreter"]["digest"]


def test_it_says_what_was_asked_for_and_nothing_that_it_does_not_know(predicate):
    made = predicate()
    asked = made["buildDefinition"]["externalParameters"]
    assert (asked["lock"], asked["stack"]) == (f"sha256:{'d' * 64}", "tiny")
    assert made["buildDefinition"]["internalParameters"]["format"] == FORMAT
    assert made["runDetails"] == {"builder": {"id": "https://verlstack.dev/builder/unnamed"}}
    assert predicate() == made
    run = provenance.told("https://ci.invalid/b", "run-7", "2026-11-30T12:00:00+01:00")
    known = predicate(run=run)["runDetails"]
    assert known["builder"]["id"] == "https://ci.invalid/b"
    assert known["metadata"] == {"invocationId": "run-7", "startedOn": "2026-11-30T11:00:00Z"}


@pytest.mark.parametrize(
    ("builder", "started"), [("me", None), ("https://a b", None), (None, "yesterday"), (None, "9")]
)
def test_what_is_no_builder_or_time(builder, started):
    with pytest.raises(UsageError):
        provenance.told(builder, None, started)


def test_what_was_left_out_is_no_material(predicate):
    pinned = lock()
    compiled = Compiled(
        source=artifact("flash-attn", "2.5", "flash_attn-2.5.tar.gz"), cuda_archs=("8.0",), cxx11_abi=False,
        tools=(artifact("ninja", "1.11", "ninja-1.11.whl"),), wheel=artifact("flash-attn", "2.5", "flash_attn-2.5.whl"),
    )  # fmt: skip
    pinned = dataclasses.replace(pinned, compiled=compiled)
    names = {"flash_attn-2.5.tar.gz", "ninja-1.11.whl", "flash_attn-2.5.whl"}
    assert names <= set(materials(predicate(pinned)))
    without = predicate(pinned, labels=LABELS | {"dev.verlstack.left-out": "flash-attn"})
    assert not names & set(materials(without))
    assert without["buildDefinition"]["internalParameters"]["leftOut"] == "flash-attn"


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ({"image": f"tiny@{OTHER}", "ok": True}, "this report is of"),
        ({"image": f"tiny@{DIGEST}", "ok": False}, "did not pass"),
        ({"image": f"tiny@{DIGEST}", "ok": "yes"}, "did not pass"),
        ({"image": f"tiny@{DIGEST}", "ok": 1}, "did not pass"),
        ({"image": f"tiny@{DIGEST}", "ok": True, "runs": ["x" * 3_096_576]}, "(?s)may have 3096576.*fewer hosts"),
        ({"image": f"tiny@{DIGEST}"}, "no report"),
        ([], "no report"),
        ({"image": f"tiny@{DIGEST}", "ok": True, "seconds": float("nan")}, "no report"),
        (None, "no report"),
    ],
)
def test_smoke_reports_that_are_not_this_images(tmp_path, report, said):
    if report is not None:
        (tmp_path / "smoke.json").write_text(json.dumps(report))
    with pytest.raises(UsageError, match=said):
        attest.smoke_report(tmp_path, DIGEST)


def test_a_smoke_report_of_this_image(tmp_path):
    report = {"image": f"tiny@{DIGEST}", "ok": True, "gpu_pass": False, "said": "?"}
    (tmp_path / "smoke.json").write_text(json.dumps(report | {"said": "\udcff"}))
    for path in (tmp_path, tmp_path / "smoke.json"):
        assert attest.smoke_report(path, DIGEST).predicate == report
