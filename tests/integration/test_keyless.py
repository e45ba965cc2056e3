"""Signatures without a key, in a real registry: cosign takes ours, we take its, and no faulty service does harm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from types import SimpleNamespace

import pytest

from support import imagelayers, pushed, real_registry
from support.debian_programs import program
from support.sigstore_services import IDENTITY, ISSUER, Services, token
from verlstack import attest, cli, provenance, upload
from verlstack.mirror import mirror
from verlstack.sbom import make
from verlstack.signing import bundles, claims, keyless

WHO = ("--certificate-identity", IDENTITY, "--certificate-oidc-issuer", ISSUER)


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("registry")
    with real_registry.running(program("docker-registry", folder), folder) as address:
        yield address


@pytest.fixture
def services(tmp_path, monkeypatch):
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", token())
    with Services() as one:
        root, config = one.write(tmp_path)
        own = ("--trusted-root", root, "--signing-config", config)
        yield SimpleNamespace(all=one, root=root, config=config, ours=("--keyless", *own), trusted=own[:2])


@pytest.fixture(scope="module")
def cosign_program(tmp_path_factory):
    return program("cosign", tmp_path_factory.mktemp("cosign"), newer=True)


@pytest.fixture
def cosign(cosign_program, services, tmp_path):
    def run(*words, succeed=True, **more):
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **services.all.cosigns(tmp_path), **more}
        command = [cosign_program, *map(str, words)]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) is succeed, done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture
def around(tmp_path):
    return pushed.surroundings(tmp_path)


@pytest.fixture
def image(host, tmp_path, request):
    return pushed.image(host, tmp_path, request.node.name)


@pytest.fixture
def verlstack(capsys):
    def run(*words):
        code = cli.main([str(x) for x in words])
        said = capsys.readouterr()
        assert (os.environ.get("SIGSTORE_ID_TOKEN") or "no such token") not in said.out + said.err
        return code, said.out, said.err

    return run


def referrers(image):
    with upload.writer(image.ref, {}) as client:
        return client.referrers(image.digest)


def cosign_words(services, *, identity=IDENTITY):
    return (
        "--new-bundle-format", "--trusted-root", services.root, "--certificate-identity", identity,
        "--certificate-oidc-issuer", ISSUER, "--allow-insecure-registry",
    )  # fmt: skip


def test_cosign_verifies_ours(image, services, cosign, verlstack):
    code, out, err = verlstack("sign", image.at, *services.ours, "--insecure")
    assert (code, f"signed by {IDENTITY}" in out) == (0, True), err
    kind = ("--type", claims.SIGNATURE)
    said = cosign("verify-attestation", *kind, *cosign_words(services), image.at)
    assert "Existence of the claims in the transparency log was verified offline" in said
    cosign("verify-attestation", *kind, *cosign_words(services, identity=f"{IDENTITY}2"), image.at, succeed=False)
    (entry,) = referrers(image)
    assert entry["artifactType"] == bundles.BUNDLE
    assert entry["annotations"]["dev.sigstore.bundle.predicateType"] == claims.SIGNATURE


def test_we_verify_what_we_and_cosign_sign(image, services, cosign, verlstack, tmp_path):
    verlstack("sign", image.at, *services.ours, "--insecure")
    code, out, _ = verlstack("verify", f"{image.name}:one", *WHO, *services.trusted, "--insecure", "--as", image.name)
    assert (code, f"signed by {IDENTITY} ({ISSUER}) as {image.name}" in out) == (0, True)
    (tmp_path / "predicate").write_text('{"a": 1}')
    url = services.all.url
    cosign(
        "attest", "--new-bundle-format", "--type", "cyclonedx", "--predicate", tmp_path / "predicate", "-y",
        "--fulcio-url", url, "--rekor-url", url, "--identity-token", token(), "--allow-insecure-registry", image.at,
    )  # fmt: skip
    words = ("verify", image.at, *WHO, *services.trusted, "--insecure", "--attestation", "cyclonedx")
    code, out, err = verlstack(*words)
    assert (code, "cyclonedx.org" in out) == (0, True), err


def test_what_cosign_2_signs_is_said_to_be_its_own(image, services, cosign, verlstack):
    url = services.all.url
    cosign("sign", "--fulcio-url", url, "--rekor-url", url, "--identity-token", token(), "--allow-insecure-registry",
           "-y", image.at)  # fmt: skip
    code, _, err = verlstack("verify", image.at, *WHO, *services.trusted, "--insecure")
    assert (code, "which only `cosign verify` reads" in err) == (16, True)


def test_every_document_is_attested(image, services, around, cosign, monkeypatch):
    monkeypatch.setattr(make, "lock_of", lambda *_: imagelayers.lock())
    who = keyless.signer(os.environ, services.root, services.config)
    done = attest.attest(image.folder, image.ref, around, run=provenance.Run(), signer=who)
    assert done.signed == IDENTITY
    assert len(done.attached) == 3
    assert len([x for x in referrers(image) if x["artifactType"] == bundles.BUNDLE]) == 3
    for kind in ("cyclonedx", "spdxjson", "slsaprovenance1"):
        cosign("verify-attestation", "--type", kind, *cosign_words(services), image.at)


def test_after_mirroring_and_without_any_service(image, host, services, verlstack, around, tmp_path):
    verlstack("sign", image.at, *services.ours, "--insecure")
    asked = len(services.all.entries)
    mirror(f"{image.name}:one", f"{host}/elsewhere/keyless:one", around, dist=tmp_path, insecure=True)
    other = f"{host}/elsewhere/keyless@{image.digest}"
    assert verlstack("verify", other, *WHO, *services.trusted, "--insecure")[0] == 0
    mirror(f"{image.name}:one", str(tmp_path / "gap"), around, dist=tmp_path, insecure=True)
    subprocess.run(["tar", "-cf", tmp_path / "gap.tar", "-C", tmp_path / "gap", "."], check=True)
    services.all.refuse = dict.fromkeys(("/api/v1/log/entries", "/api/v2/signingCert"), 500)
    for path in (tmp_path / "gap", tmp_path / "gap.tar"):
        code, out, err = verlstack("verify", path, *WHO, *services.trusted)
        assert (code, "signed by" in out) == (0, True), err
    assert len(services.all.entries) == asked


@pytest.mark.parametrize("path", ["/api/v2/signingCert", "/api/v1/log/entries"])
@pytest.mark.parametrize("status", [400, 500])
def test_a_service_that_refuses(image, services, verlstack, path, status):
    services.all.refuse = {path: status}
    code, _, err = verlstack("sign", image.at, *services.ours, "--insecure")
    assert (code, "refuses, or does not answer" in err, "--key FILE" in err) == (5, True, True)
    assert referrers(image) == []


@pytest.mark.parametrize("path", ["/api/v2/signingCert", "/api/v1/log/entries"])
def test_a_service_that_says_nothing(image, services, verlstack, monkeypatch, path):
    monkeypatch.setattr(keyless, "_SECONDS", 0.5)
    services.all.refuse = {path: 0}
    code, _, err = verlstack("sign", image.at, *services.ours, "--insecure")
    assert (code, "does not answer: " in err) == (5, True), err
    assert referrers(image) == []


def test_services_that_are_not_there(image, services, verlstack):
    gone = Services()  # never entered: nothing listens
    services.config.write_text(json.dumps(gone.signing_config()))
    code, _, err = verlstack("sign", image.at, *services.ours, "--insecure")
    assert (code, "refuses, or does not answer" in err) == (5, True)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "nobody says who signs"), ("", "nobody says who signs"), ("x", "cannot be used"),
        (token(seconds=-60), "cannot be used"), (token(audience="elsewhere"), "cannot be used"),
    ],
)  # fmt: skip
def test_a_token_that_is_none(image, services, verlstack, monkeypatch, value, said):
    monkeypatch.delenv("SIGSTORE_ID_TOKEN")
    if value is not None:
        monkeypatch.setenv("SIGSTORE_ID_TOKEN", value)
    code, _, err = verlstack("sign", image.at, *services.ours, "--insecure")
    assert (code, said in err) == (16, True), err
    assert value is None or len(value) < 2 or value not in err


def test_nothing_is_signed_that_is_not_there(host, services, verlstack):
    absent = f"{host}/team/absent@sha256:{'1' * 64}"
    code, _, err = verlstack("sign", absent, *services.ours, "--insecure")
    assert (code, "does not give this image" in err) == (5, True)
    assert (len(services.all.entries), services.all.certified) == (3, 0), "who signs is published without need"


@pytest.mark.parametrize(
    "words",
    [
        ("--keyless", "--trusted-root", "x"), ("--keyless", "--signing-config", "x"),
        ("--key", "x", "--trusted-root", "x", "--signing-config", "x"), ("--key", "x", "--keyless"), (),
    ],
)  # fmt: skip
def test_options_of_sign_that_do_not_go_together(verlstack, words):
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SIGSTORE_ID_TOKEN", raising=False)
        try:
            code = verlstack("sign", f"127.0.0.1:1/x@sha256:{'0' * 64}", *words)[0]
        except SystemExit as e:
            code = e.code
    assert code == 2


@pytest.mark.parametrize(
    "words",
    [(), ("--certificate-identity", "x"), ("--certificate-oidc-issuer", "x"), ("--key", "x", "--trusted-root", "x")],
)
def test_options_of_verify_that_do_not_go_together(verlstack, words):
    assert verlstack("verify", f"127.0.0.1:1/x@sha256:{'0' * 64}", *words)[0] == 2


@pytest.mark.parametrize("which", ["root", "config"])
@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000, '{"caUrls": [1], "rekorTlogUrls": []}', "eyJsecret"])
def test_files_that_are_none_of_a_sigstore(image, services, verlstack, which, text):
    getattr(services, which).write_text(text)
    code, _, err = verlstack("sign", image.at, *services.ours, "--insecure")
    assert (code, "these are no trusted root and signing config" in err) == (16, True), err
    assert "secret" not in err


@pytest.mark.parametrize("name", ["caUrls", "rekorTlogUrls", "tsaUrls"])
def test_a_service_of_another_machine_without_tls(image, services, verlstack, name):
    config = services.all.signing_config()
    here = {"url": services.all.url, "majorApiVersion": 1, "operator": "test"}
    config[name] = [here, here | {"url": "http://127.0.0.1@fulcio.invalid:80"}]
    services.config.write_text(json.dumps(config))
    code, _, err = verlstack("sign", image.at, *services.ours, "--insecure")
    assert (code, "without TLS: http://fulcio.invalid" in err) == (16, True), err


def test_an_answer_that_does_not_verify_is_not_attached(image, services, verlstack):
    services.root.write_text(json.dumps(services.all.trusted_root() | {"tlogs": Services().trusted_root()["tlogs"]}))
    code, _, err = verlstack("sign", image.at, *services.ours, "--insecure")
    assert (code, "answered does not verify" in err) == (16, True), err
    assert referrers(image) == []


def test_no_timer_is_left(image, services, verlstack):
    before = signal.getsignal(signal.SIGALRM)
    verlstack("sign", image.at, *services.ours, "--insecure")
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) is before


# -- who GitHub says that this is


@pytest.fixture
def job(services, monkeypatch):
    """The environment of a job on GitHub that may ask for a token, changed as given."""
    monkeypatch.delenv("SIGSTORE_ID_TOKEN")

    def set_(**changes):
        known = {
            "GITHUB_ACTIONS": "true",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "of-the-job",
            "ACTIONS_ID_TOKEN_REQUEST_URL": f"{services.all.url}/token?x=1",
        }
        for name, value in (known | changes).items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)

    return set_


def test_a_job_signs_as_itself(image, services, verlstack, job):
    job()
    code, out, err = verlstack("sign", image.at, *services.ours, "--insecure")
    assert (code, f"signed by {IDENTITY}" in out) == (0, True), err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ACTIONS_ID_TOKEN_REQUEST_TOKEN": None}, "permissions"),
        ({"ACTIONS_ID_TOKEN_REQUEST_TOKEN": "of-the-job\n"}, "gives this job no token: "),
        ({"ACTIONS_ID_TOKEN_REQUEST_URL": "http://[bad"}, "gives this job no token: "),
        ({"ACTIONS_ID_TOKEN_REQUEST_URL": "http://127.0.0.1:99999/?"}, "gives this job no token: "),
        ({"ACTIONS_ID_TOKEN_REQUEST_URL": "http://127.0.0.1:9/?"}, "gives this job no token: "),
    ],
)
def test_a_job_that_gets_no_token(image, services, verlstack, job, changes, said):
    job(**changes)
    code, _, err = verlstack("sign", image.at, *services.ours, "--insecure", "--debug")
    assert (code, said in err, "id-token: write" in err) == (5, True, True), err
    assert "of-the-job" not in err


@pytest.mark.parametrize("status", [500, 0])
def test_a_service_for_tokens_that_is_ill(image, services, verlstack, job, monkeypatch, status):
    monkeypatch.setattr(keyless, "_SECONDS", 0.5)
    job()
    services.all.refuse = {"/token?x=1&audience=sigstore": status}
    code, _, err = verlstack("sign", image.at, *services.ours, "--insecure")
    assert (code, "gives this job no token: " in err) == (5, True), err


def test_nobody_else_is_asked_who_this_is(image, services, verlstack, monkeypatch, tmp_path):
    """The library would run a program of this name."""
    monkeypatch.delenv("SIGSTORE_ID_TOKEN")
    agent = tmp_path / "buildkite-agent"
    agent.write_text(f"#!/bin/sh\necho {token()}\n")
    agent.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("BUILDKITE", "true")
    code, _, err = verlstack("sign", image.at, *services.ours, "--insecure")
    assert (code, "nobody says who signs" in err) == (16, True), err


def test_a_token_with_a_line_ending_is_the_same_token(image, services, verlstack, monkeypatch):
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", f"{token()}\n")
    assert verlstack("sign", image.at, *services.ours, "--insecure")[0] == 0
