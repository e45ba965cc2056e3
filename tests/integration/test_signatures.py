"""Signatures and attestations in Debian's registry: what we sign cosign verifies, what cosign signs we verify."""

from __future__ import annotations

import json
import os
import subprocess
from types import SimpleNamespace

import pytest

from support import imagelayers, layouts, pushed, real_registry
from support.debian_programs import program
from support.signatures import pair
from support.writable_registry import Fault, Writable
from verlstack import artifact, attest, cli, oci, provenance, upload
from verlstack.base import reference
from verlstack.errors import FetchError, LockError, UsageError
from verlstack.mirror import mirror
from verlstack.sbom import make

PASSWORD = "geheim and long"
OFFLINE = ("--insecure-ignore-tlog=true", "--allow-insecure-registry")


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("registry")
    with real_registry.running(program("docker-registry", folder), folder) as address:
        yield address


@pytest.fixture(scope="module")
def cosign(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cosign")
    path = program("cosign", folder, newer=True)

    def run(*words, succeed=True):
        env = {"PATH": os.environ["PATH"], "HOME": str(folder), "COSIGN_PASSWORD": PASSWORD}
        done = subprocess.run([path, *words], cwd=folder, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) is succeed, done.stderr
        return done.stdout

    run("generate-key-pair")
    return SimpleNamespace(run=run, key=folder / "cosign.key", pub=folder / "cosign.pub")


@pytest.fixture
def around(tmp_path):
    return pushed.surroundings(tmp_path)


@pytest.fixture
def image(host, tmp_path, request):
    return pushed.image(host, tmp_path, request.node.name)


@pytest.fixture
def verlstack(capsys, monkeypatch):
    """Run the command line in this process: (exit code, stdout, stderr)."""
    monkeypatch.setenv("COSIGN_PASSWORD", PASSWORD)

    def run(*words):
        code = cli.main([str(x) for x in words])
        said = capsys.readouterr()
        assert PASSWORD not in said.out + said.err
        return code, said.out, said.err

    return run


def test_cosign_verifies_ours(image, cosign, verlstack, tmp_path):
    plain, public = pair(tmp_path, "plain")
    for private in (cosign.key, plain):
        code, out, _ = verlstack("sign", image.at, "--key", private, "--insecure")
        assert (code, "signed by" in out) == (0, True)
    for pub in (cosign.pub, public):
        cosign.run("verify", "--key", pub, *OFFLINE, image.at)
    cosign.run("verify", "--key", pair(tmp_path, "other")[1], *OFFLINE, image.at, succeed=False)
    _, out, _ = verlstack("sign", image.at, "--key", cosign.key, "--insecure")
    assert "already" in out


def test_we_verify_cosigns(image, cosign, verlstack, tmp_path):
    cosign.run("sign", "--key", cosign.key, "--tlog-upload=false", "--allow-insecure-registry", "-y", image.at)
    code, out, _ = verlstack("verify", f"{image.name}:one", "--key", cosign.pub, "--insecure")
    assert (code, f"as {image.name}" in out) == (0, True)
    code, _, err = verlstack("verify", image.at, "--key", pair(tmp_path, "other")[1], "--insecure")
    assert (code, "none of these keys" in err) == (16, True)
    (tmp_path / "predicate").write_text('{"a": 1}')
    words = ("--tlog-upload=false", "--allow-insecure-registry", "-y", "--predicate", tmp_path / "predicate")
    cosign.run("attest", "--key", cosign.key, "--type", "cyclonedx", *words, image.at)
    code, out, _ = verlstack("verify", image.at, "--key", cosign.pub, "--insecure", "--attestation", "cyclonedx")
    assert (code, "cyclonedx.org" in out) == (0, True)


def test_several_builders_sign_one_after_another(image, cosign, verlstack, tmp_path):
    cosign.run("sign", "--key", cosign.key, "--tlog-upload=false", "--allow-insecure-registry", "-y", image.at)
    private, public = pair(tmp_path, "second")
    keys = ("--key", cosign.pub, "--key", public)
    assert verlstack("verify", image.at, *keys, "--insecure", "--threshold", 2)[0] == 16
    assert verlstack("verify", image.at, *keys, "--insecure", "--threshold", 1)[0] == 0
    verlstack("sign", image.at, "--key", private, "--insecure")
    assert verlstack("verify", image.at, *keys, "--insecure", "--threshold", 2)[0] == 0
    cosign.run("verify", "--key", cosign.pub, *OFFLINE, image.at)


def test_what_is_attached_leaves_the_digest_as_it_is(image, cosign, around, monkeypatch, tmp_path):
    monkeypatch.setattr(make, "lock_of", lambda *_: imagelayers.lock())
    key = attest_key(cosign)
    report = {"image": f"tiny@{image.digest}", "ok": True}
    (tmp_path / "smoke.json").write_text(json.dumps(report))
    scanned = {"scanner": {"uri": "pkg:generic/scanner@1", "result": {"Metadata": {"ImageID": image.digest}}}}
    (tmp_path / "scan.json").write_text(json.dumps(scanned | {"metadata": {"scanFinishedOn": "2026-12-01T10:00:09Z"}}))
    how = {"run": provenance.Run(), "smoke": tmp_path, "scanned": tmp_path / "scan.json", "signer": key}
    done = attest.attest(image.folder, image.ref, around, **how)
    again = attest.attest(image.folder, image.ref, around, **how)
    assert done == again, "the same documents are the same artifacts"
    assert done.scan == "by pkg:generic/scanner@1, finished 2026-12-01T10:00:09Z"
    with upload.writer(image.ref, {}) as client:
        rows = client.referrers(image.digest)
        for name, digest in done.attached.items():
            (layer,) = client.manifest(digest)["layers"]
            assert layer["annotations"] == {"org.opencontainers.image.title": name}
        assert client.resolve("one") == image.digest == done.digest
        assert {x["digest"] for x in rows} == set(done.attached.values())
        signed = client.manifest(client.resolve(f"{image.digest.replace(':', '-')}.att"))["layers"]
    assert len(signed) == len(rows) == 5
    assert {x["artifactType"] for x in rows} == {
        "application/vnd.cyclonedx+json", "application/spdx+json", "application/vnd.in-toto+json",
        "application/vnd.verlstack.smoke.v1+json",
    }  # fmt: skip
    for kind in ("cyclonedx", "spdxjson", "slsaprovenance1", "vuln", "https://verlstack.dev/smoke/v1"):
        cosign.run("verify-attestation", "--type", kind, "--key", cosign.pub, *OFFLINE, image.at)


def test_what_is_known_of_an_image_from_the_command_line(image, verlstack, monkeypatch, tmp_path):
    monkeypatch.setattr(make, "lock_of", lambda *_: imagelayers.lock())
    monkeypatch.setenv("VERLSTACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "constraints").mkdir()
    for name in ("tiny.txt", "tiny.lock.toml"):
        (tmp_path / "constraints" / name).touch()
    scanned = {"scanner": {"uri": "a scanner", "result": {"Metadata": {"ImageID": image.digest}}}}
    (tmp_path / "scan.json").write_text(json.dumps(scanned | {"metadata": {"scanFinishedOn": "\x1b[31mnow"}}))
    (tmp_path / "smoke.json").write_text(json.dumps({"image": f"tiny@{image.digest}", "ok": True}))
    files = ("--scan", tmp_path / "scan.json", "--smoke", tmp_path)
    code, out, _ = verlstack("attest", image.folder, image.name, *files, "--insecure")
    assert code == 0
    assert [x.split()[-1] for x in out.splitlines()[1:6]] == [
        "sbom.cdx.json", "sbom.spdx.json", "provenance.json", "smoke.json", "vuln.json",
    ]  # fmt: skip
    assert out.splitlines()[6:] == [
        "smoke tests: what was run is not told in a form that is known here",
        r"vulnerability scan: by a scanner, finished \x1b[31mnow",
        "not signed: give --key or --keyless",
    ]


def attest_key(cosign):
    from verlstack.signing import keys, sign

    return sign.Keyed(keys.private(cosign.key, PASSWORD.encode))


def test_an_image_that_is_not_there_or_not_what_its_lock_says(host, around, monkeypatch, tmp_path):
    monkeypatch.setattr(make, "lock_of", lambda *_: imagelayers.lock())
    ref = reference.place(f"{host}/team/empty", insecure=True)
    with pytest.raises(FetchError, match="does not give this image"):
        attest.attest(imagelayers.image(tmp_path / "image"), ref, around, run=provenance.Run())
    monkeypatch.setattr(artifact, "LARGEST", 1000)
    with pytest.raises(UsageError, match=r"sbom\.cdx\.json would have \d+ bytes, and what is signed may have 1000"):
        attest.attest(imagelayers.image(tmp_path / "long"), ref, around, run=provenance.Run())
    evil = imagelayers.layers(torch=imagelayers.TORCH | {f"{imagelayers.SITE}/evil.pth": b"import evil"})
    with pytest.raises(LockError, match=r"evil\.pth"):
        attest.attest(imagelayers.image(tmp_path / "evil", evil), ref, around, run=provenance.Run())


def test_after_mirroring_and_across_an_air_gap(image, host, cosign, verlstack, around, tmp_path):
    verlstack("sign", image.at, "--key", cosign.key, "--insecure")
    mirror(f"{image.name}:one", f"{host}/elsewhere/verl:one", around, dist=tmp_path, insecure=True)
    other = f"{host}/elsewhere/verl@{image.digest}"
    assert verlstack("verify", other, "--key", cosign.pub, "--insecure")[0] == 0
    assert verlstack("verify", other, "--key", cosign.pub, "--insecure", "--as", image.name)[0] == 0
    code, _, err = verlstack("verify", other, "--key", cosign.pub, "--insecure", "--as", f"{host}/elsewhere/verl")
    assert (code, "not as" in err) == (16, True)
    mirror(f"{image.name}:one", str(tmp_path / "gap"), around, dist=tmp_path, insecure=True)
    assert verlstack("verify", tmp_path / "gap", "--key", cosign.pub)[0] == 0
    cosign.run("save", "--allow-insecure-registry", "--dir", tmp_path / "saved", image.at)
    subprocess.run(["tar", "-cf", tmp_path / "saved.tar", "-C", tmp_path / "saved", "."], check=True)
    for path in (tmp_path / "saved", tmp_path / "saved.tar"):
        assert verlstack("verify", path, "--key", cosign.pub)[0] == 0
    _, manifest, _ = oci.read_layout(image.folder)
    layer = tmp_path / "saved" / oci.blob_path(manifest["layers"][0]["digest"])
    layer.chmod(0o644)
    layer.write_bytes(b"evil")
    code, _, err = verlstack("verify", tmp_path / "saved", "--key", cosign.pub)
    assert (code, "not what its digest says" in err) == (16, True)


def test_a_signature_moved_to_another_image(image, cosign, verlstack, tmp_path):
    verlstack("sign", image.at, "--key", cosign.key, "--insecure")
    other = layouts.write(tmp_path / "other", {"a": b"evil"})
    digest, manifest, _ = oci.read_layout(other)
    with upload.writer(image.ref, {}) as writer:
        for entry in (manifest["config"], *manifest["layers"]):
            writer.push_blob(entry["digest"], other / oci.blob_path(entry["digest"]))
        writer.push_manifest((other / oci.blob_path(digest)).read_bytes(), oci.MANIFEST, "evil")
        signature = writer.raw("manifests", writer.resolve(f"{image.digest.replace(':', '-')}.sig"))
        writer.push_manifest(signature, oci.MANIFEST, f"{digest.replace(':', '-')}.sig")
    code, _, err = verlstack("verify", f"{image.name}:evil", "--key", cosign.pub, "--insecure")
    assert (code, "for another image" in err) == (16, True)


@pytest.fixture
def fake():
    with Writable() as one:
        yield one


def test_somebody_who_signs_meanwhile_is_not_overwritten(fake, verlstack, tmp_path):
    one, other = pair(tmp_path, "one"), pair(tmp_path, "other")
    digest = fake.put(b"{}")
    ref, tag = f"{fake.host}/team/base@{digest}", f"{digest.replace(':', '-')}.sig"
    verlstack("sign", ref, "--key", other[0], "--insecure")
    theirs = fake.blobs[fake.tags.pop(tag)]
    fake.planted.append(Fault(method="PUT", path=r"\.sig$", swap=theirs))  # they were faster, and the tag is theirs
    assert verlstack("sign", ref, "--key", one[0], "--insecure")[0] == 0
    words = ("verify", ref, "--key", one[1], "--key", other[1], "--insecure", "--threshold", 2)
    assert verlstack(*words)[0] == 0
    fake.tags.pop(tag)
    fake.planted += [Fault(method="PUT", path=r"\.sig$", swap=theirs)] * 9
    code, _, err = verlstack("sign", ref, "--key", one[0], "--insecure")
    assert (code, "moved the tag" in err) == (6, True)


@pytest.mark.parametrize("layers", [None, [1], [{"digest": "x"}]])
def test_a_place_for_signatures_that_holds_something_else(fake, verlstack, tmp_path, layers):
    digest = fake.put(b"{}")
    fake.tags[f"{digest.replace(':', '-')}.sig"] = fake.put({"layers": layers})
    code, _, err = verlstack("sign", f"{fake.host}/team/base@{digest}", "--key", pair(tmp_path, "k")[0], "--insecure")
    assert (code, "no list of them" in err) == (16, True)


@pytest.mark.parametrize("body", [b"[]", b"x" * (5 << 20), b'{"manifests": [{"digest": "../x"}]}'])
def test_a_hostile_list_of_referrers_does_not_stop_what_is_signed(fake, verlstack, tmp_path, body):
    private, public = pair(tmp_path, "k")
    ref = f"{fake.host}/team/base@{fake.put(b'{}')}"
    list_of_them = Fault(method="GET", path="/referrers/", status=200, body=body)
    fake.planted.append(list_of_them)
    assert verlstack("verify", ref, "--key", public, "--insecure")[0] == 5, "nothing could be read"
    assert verlstack("sign", ref, "--key", private, "--insecure")[0] == 0
    fake.planted.append(list_of_them)
    code, out, _ = verlstack("verify", ref, "--key", public, "--insecure")
    assert (code, "signed by" in out, "does not count" in out) == (0, True, True)


def test_what_cannot_be_signed(image, host, cosign, verlstack, monkeypatch):
    code, _, err = verlstack("sign", f"{image.name}:one", "--key", cosign.key, "--insecure")
    assert (code, "a tag can move" in err) == (2, True)
    code, _, err = verlstack("sign", f"{image.name}@sha256:{'0' * 63}1", "--key", cosign.key, "--insecure")
    assert code == 5
    monkeypatch.setenv("COSIGN_PASSWORD", "wrong")
    code, _, err = verlstack("sign", image.at, "--key", cosign.key, "--insecure")
    assert (code, "does not open" in err, "wrong" in err) == (16, True, False)
    monkeypatch.delenv("COSIGN_PASSWORD")
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    code, _, err = verlstack("sign", image.at, "--key", cosign.key, "--insecure")
    assert (code, "set COSIGN_PASSWORD" in err) == (16, True)
