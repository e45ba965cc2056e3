"""`verlstack publish` into Debian's docker-registry with TLS and a password, and what goes wrong meanwhile."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request

import pytest

from support import debian_programs, engines, published
from support.fake_registry import sha
from support.published import LAYERS, TAG, image
from support.real_registry import LOGIN, Line, Real
from support.writable_registry import Writable
from verlstack import cli, images, oci, publish, upload
from verlstack.cache import Cache
from verlstack.errors import FetchError, PublishError
from verlstack.progress import Silent
from verlstack.workshop import Workshop

LARGE = LAYERS | {"libs": {"opt/blob.bin": hashlib.shake_128(b"large").digest(4 << 20)}}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return debian_programs.program("docker-registry", tmp_path_factory.mktemp("programs"))


@pytest.fixture
def real(program, tmp_path):
    (tmp_path / "real").mkdir()
    with Real(program, tmp_path / "real") as one:
        yield one


@pytest.fixture
def secure(program, tmp_path):
    (tmp_path / "secure").mkdir()
    with Real(program, tmp_path / "secure", secure=True) as one:
        yield one


@pytest.fixture
def fake():
    with Writable() as one:
        yield one


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A workshop whose client does not nap."""
    means = upload.means
    naps = []
    monkeypatch.setattr(upload, "means", lambda *a: {**means(*a), "sleep": naps.append})
    env = {"HOME": str(tmp_path), "naps": naps}
    with Cache(tmp_path / "cache").use() as cache:
        yield Workshop(
            constraints=tmp_path / "constraints",
            smoke_tests=tmp_path,
            cache=cache,
            env=env,
            progress=Silent(),
            workers=1,
        )


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A checkout and an environment for the command line."""
    (tmp_path / "constraints").mkdir()
    (tmp_path / "constraints" / "stacks.toml").write_text((published.CONSTRAINTS / "stacks.toml").read_text())
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    monkeypatch.chdir(tmp_path)
    for name in (
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "SSL_CERT_FILE",
        "http_proxy",
        "https_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VERLSTACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    (tmp_path / "docker").mkdir()
    return tmp_path


def log_in(project, host, password=LOGIN[1]):
    auth = base64.b64encode(f"{LOGIN[0]}:{password}".encode()).decode()
    (project / "docker" / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))


def digest_in(host, tag=TAG, repository="team/verl"):
    """What a registry without password has under a tag, asked for without any of our code; None for nothing."""
    accept = {"Accept": oci.MANIFEST}
    request = urllib.request.Request(f"http://{host}/v2/{repository}/manifests/{tag}", headers=accept)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            return sha(answer.read())
    except urllib.error.HTTPError as e:
        if e.code == 404:
            return None
        raise


# -- the command line, TLS and passwords


def test_over_tls_with_a_password(project, secure, monkeypatch, capsys):
    folder = image(project / "image")
    words = ["publish", str(folder), f"{secure.host}/team/verl"]
    log_in(project, secure.host)
    assert cli.main(words) == FetchError.exit_code
    assert "certificate of 127.0.0.1" in capsys.readouterr().err
    monkeypatch.setenv("SSL_CERT_FILE", str(secure.authority))

    log_in(project, secure.host, "wr0ng-password")
    assert cli.main(words) == FetchError.exit_code
    said = capsys.readouterr()
    assert "the registry refuses the stored credentials (401)" in said.err
    assert "docker login" in said.err
    assert "wr0ng" not in said.err + said.out
    (project / "docker" / "config.json").unlink()
    assert cli.main(words) == FetchError.exit_code
    assert "an anonymous push" in capsys.readouterr().err

    log_in(project, secure.host)
    assert cli.main([*words, "--json"]) == 0
    said = capsys.readouterr()
    done = json.loads(said.out)
    assert done["reference"] == f"{secure.host}/team/verl:{TAG}"
    assert done["digest"] == oci.read_layout(folder)[0]
    assert (done["new"], done["blobs"]["pushed"]) == (True, 6)
    assert LOGIN[1] not in said.out + said.err

    assert cli.main(words) == 0
    assert "was there already" in capsys.readouterr().out


def test_skopeo_pulls_it(project, secure, monkeypatch):
    folder = image(project / "image")
    log_in(project, secure.host)
    monkeypatch.setenv("SSL_CERT_FILE", str(secure.authority))
    assert cli.main(["publish", str(folder), f"{secure.host}/team/verl"]) == 0
    digest = oci.read_layout(folder)[0]
    name = f"{secure.host}/team/verl:{TAG}"
    auth = ["--authfile", project / "docker" / "config.json"]
    skopeo = debian_programs.program("skopeo", project)
    run([skopeo, "--insecure-policy", "copy", *auth, "--src-cert-dir", certificates(project, secure),
         f"docker://{name}", f"oci:{project}/copy:x"])  # fmt: skip
    assert oci.read_layout(project / "copy")[0] == digest
    images.check_blobs(project / "copy", 1)


def test_podman_pulls_it(project, secure, monkeypatch):
    podman = debian_programs.program("podman", project)
    folder = image(project / "image")
    log_in(project, secure.host)
    monkeypatch.setenv("SSL_CERT_FILE", str(secure.authority))
    assert cli.main(["publish", str(folder), f"{secure.host}/team/verl"]) == 0
    name = f"{secure.host}/team/verl@{oci.read_layout(folder)[0]}"
    login = ["--authfile", project / "docker" / "config.json", "--cert-dir", certificates(project, secure)]
    with tempfile.TemporaryDirectory(prefix="podman-") as short:  # its runroot has at most 50 characters
        store = [podman, f"--root={short}/root", f"--runroot={short}/run", "--storage-driver=vfs"]
        run([*store, "pull", *login, name])


@pytest.mark.engine
def test_docker_pulls_it(project, secure, monkeypatch):
    engine = engines.docker()
    folder = image(project / "image")
    log_in(project, secure.host)
    monkeypatch.setenv("SSL_CERT_FILE", str(secure.authority))
    assert cli.main(["publish", str(folder), f"{secure.host}/team/verl"]) == 0
    name = f"{secure.host}/team/verl@{oci.read_layout(folder)[0]}"
    env = engine | {"DOCKER_CONFIG": str(project / "docker")}
    run(["docker", "pull", name], env)  # an engine trusts whatever certificate is on loopback
    run(["docker", "rmi", name], env)


def certificates(project, secure):
    """A folder as skopeo and podman want it."""
    folder = project / "certs"
    folder.mkdir(exist_ok=True)
    (folder / "ca.crt").write_bytes(secure.authority.read_bytes())
    return folder


def run(words, env=None):
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"} | (env or {})
    done = subprocess.run(list(map(str, words)), env=env, capture_output=True, text=True)
    if done.returncode and "Operation not permitted" in done.stderr:
        pytest.skip(f"{words[0]} may not do that here: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_plain_http_is_asked_for_and_is_for_this_machine(project, real, capsys):
    folder = str(image(project / "image"))
    assert cli.main(["publish", folder, f"{real.host}/team/verl"]) == FetchError.exit_code
    assert "does not speak TLS" in capsys.readouterr().err
    assert cli.main(["publish", folder, "reg.example.org/team/verl", "--insecure"]) == 2
    assert "is for a registry on this machine" in capsys.readouterr().err
    assert cli.main(["publish", folder, f"{real.host}/team/verl", "--insecure"]) == 0
    assert digest_in(real.host) == oci.read_layout(image(project / "same"))[0]


@pytest.mark.parametrize("place", ["{host}/team/verl:mine", "{host}/team/verl@sha256:" + "1" * 64, "team/verl"])
def test_the_tag_is_not_for_the_user_to_choose(project, real, place):
    folder = str(image(project / "image"))
    assert cli.main(["publish", folder, place.format(host=real.host), "--insecure"]) == 2


def test_what_must_not_be_published_is_refused_before_anything_is_sent(project, fake, capsys):
    folder = str(image(project / "image", labels={"dev.verlstack.base.scope": "local"}))
    assert cli.main(["publish", folder, f"{fake.host}/team/base", "--insecure"]) == PublishError.exit_code
    assert "base of this image is local" in capsys.readouterr().err
    assert fake.requests == []
    assert cli.main(["publish", "nothing", f"{fake.host}/team/base", "--insecure"]) == 2


def test_a_tag_that_no_registry_takes_is_refused_before_anything_is_sent(project, fake, capsys):
    folder = str(image(project / "image", labels={"dev.verlstack.stack": "x" * 60}))
    assert cli.main(["publish", folder, f"{fake.host}/team/base", "--insecure"]) == PublishError.exit_code
    assert "128" in capsys.readouterr().err
    assert fake.requests == []


def test_a_release_is_recorded(project, fake, capsys, monkeypatch):
    (project / "docs").mkdir()
    folder = str(image(project / "image"))
    words = ["publish", folder, f"{fake.host}/team/base", "--insecure", "--record"]
    assert cli.main(words) == PublishError.exit_code
    assert "the lock of this image" in capsys.readouterr().err
    assert fake.requests == []
    monkeypatch.setattr("verlstack.sides.known_locks", lambda _: {published.LOCK: None})
    assert cli.main(words) == 0
    assert f"`{fake.host}/team/base:{TAG}`" in (project / "docs" / "images.md").read_text()


# -- immutable tags


def test_an_immutable_tag_does_not_move(real, shop, tmp_path):
    one, other = image(tmp_path / "one"), image(tmp_path / "other", LAYERS | {"smoke": {"a": b"1"}})
    publish.publish(one, f"{real.host}/team/verl", shop, insecure=True, record=False)
    with pytest.raises(PublishError, match="never moves") as caught:
        publish.publish(other, f"{real.host}/team/verl", shop, insecure=True, record=False)
    assert "epoch" in caught.value.todo
    assert digest_in(real.host) == oci.read_layout(one)[0]


def test_a_tag_that_somebody_takes_meanwhile_stays_theirs(fake, tmp_path, shop):
    theirs = fake.put({"schemaVersion": 2, "mediaType": oci.MANIFEST, "layers": []})

    class Meanwhile(Silent):
        def finish(self, task, note=""):
            fake.tags[TAG] = theirs

    shop = Workshop(**{**shop.__dict__, "progress": Meanwhile()})
    with pytest.raises(PublishError, match="never moves"):
        publish.publish(image(tmp_path / "image"), f"{fake.host}/team/base", shop, insecure=True, record=False)
    assert fake.tags == {TAG: theirs}


def test_blobs_come_first_and_the_name_last(fake, tmp_path, shop):
    folder = image(tmp_path / "image")
    publish.publish(folder, f"{fake.host}/team/base", shop, insecure=True, record=False)
    assert fake.order[-1] == TAG
    _, manifest, _ = oci.read_layout(folder)
    assert set(fake.order[:-1]) == {x["digest"] for x in (manifest["config"], *manifest["layers"])}


def test_layers_of_the_base_are_mounted(fake, tmp_path, shop):
    base = {"dev.verlstack.base": f"{fake.host}/cluster/base:1@sha256:{'2' * 64}"}
    folder = image(tmp_path / "image", labels=base)
    first = oci.read_layout(folder)[1]["layers"][0]["digest"]
    fake.elsewhere_in["cluster/base"] = {first: (folder / oci.blob_path(first)).read_bytes()}
    done = publish.publish(folder, f"{fake.host}/team/base", shop, insecure=True, record=False)
    assert (done.blobs.mounted, done.blobs.pushed) == (1, 5)


def test_a_layer_that_is_there_but_damaged_here(fake, tmp_path, shop):
    """Its bytes are not sent, but the tag would be made of what it says."""
    folder = image(tmp_path / "image")
    for path in (folder / "blobs" / "sha256").iterdir():
        fake.put(path.read_bytes())
    layer = oci.read_layout(folder)[1]["layers"][1]["digest"]
    other = oci.read_layout(image(tmp_path / "other", LAYERS | {"torch": published.metadata("torch", "9.9")}))[1]
    data = (tmp_path / "other" / oci.blob_path(other["layers"][1]["digest"])).read_bytes()
    (folder / oci.blob_path(layer)).write_bytes(data)
    fake.blobs[layer] = data  # of the same size, so that only a hash tells
    with pytest.raises(Exception, match="not what its digest says"):
        publish.publish(folder, f"{fake.host}/team/base", shop, insecure=True, record=False)
    assert fake.tags == {}


# -- the line, the disk and the registry itself


@pytest.mark.parametrize("side", ["cuts", "back_cuts"])
def test_a_line_that_is_cut_at_any_byte(real, tmp_path, shop, side):
    """The first two connections break after so many bytes of ours, or the registry's; what is there then is right."""
    folder = image(tmp_path / "image")
    digest = oci.read_layout(folder)[0]
    for number, most in enumerate((0, 1, 50, 200, 400, 600, 800, 1000, 1400, 1800, 2400, 3200, 4500)):
        with Line(real.host) as line:
            setattr(line, side, [most, most])
            place = f"{line.address}/team/verl{number}"
            publish.publish(folder, place, shop, insecure=True, record=False)
            assert getattr(line, side) == [], "it was cut"
        assert digest_in(real.host, repository=f"team/verl{number}") == digest
    assert shop.env["naps"]


def test_a_line_that_stays_cut_publishes_nothing(real, tmp_path, shop):
    folder = image(tmp_path / "image")
    with Line(real.host) as line:
        line.cuts = [700] * 500
        with pytest.raises(FetchError, match="hung up"):
            publish.publish(folder, f"{line.address}/team/verl", shop, insecure=True, record=False)
    assert digest_in(real.host) is None
    publish.publish(folder, f"{real.host}/team/verl", shop, insecure=True, record=False)
    assert digest_in(real.host) == oci.read_layout(folder)[0]


class Killing(Silent):
    """Kills a registry when the first bytes are on their way."""

    def __init__(self, real):
        self.real, self.done, self.guard = real, False, threading.Lock()

    def advance(self, task, amount):
        with self.guard:
            if not self.done:
                self.done = True
                self.real.kill()


def test_a_registry_that_is_killed_and_comes_back(real, tmp_path, shop, monkeypatch):
    folder = image(tmp_path / "image", LARGE)

    progress = Killing(real)

    def restart(_):
        with progress.guard:
            if real.server.stderr.closed:
                real.start()

    means = upload.means
    monkeypatch.setattr(upload, "means", lambda *a: {**means(*a), "sleep": restart})
    killing = Workshop(**{**shop.__dict__, "progress": progress})
    publish.publish(folder, f"{real.host}/team/verl", killing, insecure=True, record=False)
    assert progress.done
    assert digest_in(real.host) == oci.read_layout(folder)[0]


def test_a_registry_that_is_killed_and_comes_back_too_late(real, tmp_path, shop):
    folder = image(tmp_path / "image", LARGE)
    killing = Workshop(**{**shop.__dict__, "progress": Killing(real)})
    with pytest.raises(FetchError, match="cannot be reached"):
        publish.publish(folder, f"{real.host}/team/verl", killing, insecure=True, record=False)
    real.start()
    assert digest_in(real.host) is None
    done = publish.publish(folder, f"{real.host}/team/verl", shop, insecure=True, record=False)
    assert done.new
    assert digest_in(real.host) == oci.read_layout(folder)[0]


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], capture_output=True)
    if done.returncode:
        pytest.skip("mounting needs root")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_registry_whose_disk_is_full(program, small_disk, tmp_path, shop):
    folder = image(tmp_path / "image", LARGE)
    with Real(program, small_disk) as real:
        with pytest.raises(FetchError, match="answered 50"):
            publish.publish(folder, f"{real.host}/team/verl", shop, insecure=True, record=False)
        assert digest_in(real.host) is None
        subprocess.run(["mount", "-o", "remount,size=30m", small_disk], check=True)
        publish.publish(folder, f"{real.host}/team/verl", shop, insecure=True, record=False)
        assert digest_in(real.host) == oci.read_layout(folder)[0]


def test_ctrl_c_stops_what_is_on_its_way(fake, tmp_path, shop):
    class Stopping(Silent):
        def advance(self, task, amount):
            raise KeyboardInterrupt

    stopping = Workshop(**{**shop.__dict__, "progress": Stopping()})
    with pytest.raises(KeyboardInterrupt):
        publish.publish(
            image(tmp_path / "image", LARGE), f"{fake.host}/team/base", stopping, insecure=True, record=False
        )
    assert fake.tags == {}
