"""`verlstack sbom`, `attest` and `verify` on the tiny stack, by the real program."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile

import pytest

from support import real_registry
from support.debian_programs import program
from support.signatures import pair
from verlstack import oci, upload
from verlstack.base import reference


@pytest.fixture(scope="module")
def made(origin, tmp_path_factory):
    """The tiny stack, built."""
    stack = origin.fork(tmp_path_factory.mktemp("sbom") / "checkout")
    stack.run("build")
    return stack


@pytest.fixture
def run(made):
    """Run `verlstack WORDS` beside the tiny stack."""

    def command(*words, check=True, **sets):
        line = [sys.executable, "-m", "verlstack", *map(str, words), "--python-tree", sys.base_prefix]
        done = subprocess.run(line, env=made.environment(**sets), cwd=made.root, capture_output=True, text=True)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return command


def test_the_sbom_names_what_the_lock_names_and_is_the_same_each_time(made, run, tmp_path):
    first = run("sbom", "tiny").stdout
    document = json.loads(first)
    found = {x["name"]: x["version"] for x in document["components"] if x["purl"].startswith("pkg:pypi/")}
    assert found.items() >= {"alpha": "1.0", "verl": "0.2.0.post2"}.items()
    hashes = {x["hashes"][0]["content"] for x in document["components"] if "hashes" in x}
    lock = (made.root / "constraints" / "tiny.txt").read_text()
    assert all(sha in lock for sha in hashes - {verl["hashes"][0]["content"] for verl in of(document, "verl")})
    assert document["metadata"]["component"]["hashes"][0]["content"] == made.digest().removeprefix("sha256:")
    assert run("sbom", "tiny", VERLSTACK_CACHE=str(tmp_path / "cache")).stdout == first
    other = json.loads(run("sbom", str(made.root / "dist" / "tiny"), "--format", "spdx").stdout)
    assert {x["name"] for x in other["packages"]} >= {"alpha", "verl"}


def of(document, name):
    return [x for x in document["components"] if x["name"] == name]


def test_an_image_that_somebody_changed(made, run, tmp_path):
    """A layer more, with a `.pth` file that would run at each start."""
    folder = tmp_path / "image"
    shutil.copytree(made.root / "dist" / "tiny", folder)
    with tarfile.open(tmp_path / "layer", "w") as out:
        (tmp_path / "evil.pth").write_text("import evil")
        out.add(tmp_path / "evil.pth", "opt/verl/lib/python3.11/site-packages/evil.pth")
    data = (tmp_path / "layer").read_bytes()
    digest, manifest, config = oci.read_layout(folder)

    def put(document):
        text = document if isinstance(document, bytes) else json.dumps(document).encode()
        (folder / oci.blob_path(oci.digest(text))).write_bytes(text)
        return {"digest": oci.digest(text), "size": len(text)}

    layer = {"mediaType": "application/vnd.oci.image.layer.v1.tar", **put(data)}
    config["rootfs"]["diff_ids"].append(layer["digest"])
    config["history"].append({"created_by": "verlstack: base more"})
    manifest["layers"].append(layer)
    manifest["config"] |= put(config)
    index = json.loads((folder / "index.json").read_text())
    index["manifests"][0] |= put(manifest)
    (folder / "index.json").write_text(json.dumps(index))
    assert oci.read_layout(folder)[0] != digest
    done = run("sbom", str(folder), check=False)
    assert done.returncode == 4
    assert "evil.pth, which no RECORD names" in done.stderr
    assert done.stdout == ""


def test_what_is_attached_and_signed_is_verified(made, run, tmp_path):
    private, public = pair(tmp_path, "builder", password=b"geheim")
    with real_registry.running(program("docker-registry", tmp_path), tmp_path) as host:
        name = f"{host}/team/tiny"
        push(made.root / "dist" / "tiny", name)
        sets = {"COSIGN_PASSWORD": "geheim"}
        done = run("attest", "tiny", name, "--key", str(private), "--insecure", **sets)
        assert "provenance.json" in done.stdout
        digest = made.digest()
        run("sign", f"{name}@{digest}", "--key", str(private), "--insecure", **sets)
        kinds = ("--attestation", "slsaprovenance1", "--attestation", "cyclonedx")
        words = ("verify", f"{name}@{digest}", "--key", str(public), "--insecure", "--json")
        report = json.loads(run(*words, *kinds).stdout)
        assert (report["digest"], len(report["attested"])) == (digest, 3)
        assert run(*words, "--attestation", "smoke", check=False).returncode == 16


def push(folder, name):
    digest, manifest, _ = oci.read_layout(folder)
    with upload.writer(reference.place(name, insecure=True), {}) as writer:
        for entry in (manifest["config"], *manifest["layers"]):
            writer.push_blob(entry["digest"], folder / oci.blob_path(entry["digest"]))
        writer.push_manifest((folder / oci.blob_path(digest)).read_bytes(), oci.MANIFEST, "one")
