"""The engine's answers, good and bad, and what the user is told of them; the real engine is in test_default_stack."""

from types import SimpleNamespace

import docker
import docker.errors
import pytest
import requests

from verlstack import engine
from verlstack.errors import EngineError, ProofError


def client(**calls):
    """A Docker client whose methods are these."""
    images = SimpleNamespace(load=calls.get("load", lambda data: [*data]), get=calls.get("get"))
    return SimpleNamespace(
        images=images,
        containers=SimpleNamespace(run=calls.get("run")),
        ping=calls.get("ping", lambda: True),
        version=lambda: calls.get("version", {"Components": [{"Name": "Engine", "Version": "26.1.5"}]}),
    )


def raising(error):
    def call(*_, **__):
        raise error

    return call


def connect(monkeypatch, made, env):
    monkeypatch.setattr(docker.DockerClient, "from_env", lambda **_: made)
    return engine.Engine.connect(env)


def test_nobody_on_the_default_socket_is_no_error(monkeypatch):
    gone = client(ping=raising(requests.ConnectionError("no such file")))
    assert connect(monkeypatch, gone, {}) is None


@pytest.mark.parametrize("error", [docker.errors.APIError("denied"), requests.ConnectionError("refused"), OSError("x")])
def test_nobody_where_docker_host_points_is_one(monkeypatch, error):
    with pytest.raises(EngineError) as e:
        connect(monkeypatch, client(ping=raising(error)), {"DOCKER_HOST": "unix:///nowhere.sock"})
    assert e.value.where == "unix:///nowhere.sock"
    assert "DOCKER_HOST" in e.value.todo


def test_its_name(monkeypatch):
    assert connect(monkeypatch, client(), {}).name == "Engine 26.1.5"
    assert engine.Engine(client(version={"Version": "4.3.1"})).name == "engine 4.3.1"


@pytest.mark.parametrize("known_as", ["sha256:manifest", "sha256:config"])  # containerd store, classic store
def test_the_image_that_was_sent_is_the_one_that_is_there(known_as):
    sent = []
    made = client(load=sent.extend, get=lambda name: SimpleNamespace(id=known_as))
    engine.Engine(made).load(iter([b"a", b"b"]), "verlstack:x", ("sha256:manifest", "sha256:config"))
    assert sent == [b"a", b"b"]


def test_another_image_under_the_name_is_noticed():
    made = client(get=lambda name: SimpleNamespace(id="sha256:other"))
    with pytest.raises(EngineError, match="sha256:other under verlstack:x"):
        engine.Engine(made).load(iter([]), "verlstack:x", ("sha256:manifest",))


@pytest.mark.parametrize("error", [docker.errors.ImageLoadError("no space left"), requests.Timeout("slow")])
def test_an_engine_that_refuses_the_image(error):
    with pytest.raises(EngineError, match="does not load the image"):
        engine.Engine(client(load=raising(error))).load(iter([]), "verlstack:x", ())


def test_a_command_runs_as_the_user_asked_for_without_network():
    seen = {}

    def run(image, command, **how):
        seen.update(how, image=image, command=command)
        return b"2.3.1\n"

    assert engine.Engine(client(run=run)).run("verlstack:x", ("python", "x.py"), user=54321) == "2.3.1"
    assert (seen["user"], seen["network_mode"], seen["remove"]) == ("54321:54321", "none", True)


def test_a_command_that_fails_shows_its_last_words():
    failed = docker.errors.ContainerError("c", 1, "python x.py", "verlstack:x", b"ModuleNotFoundError: verl")
    with pytest.raises(ProofError, match=r"as uid 0 \(exit status 1\):\nModuleNotFoundError: verl"):
        engine.Engine(client(run=raising(failed))).run("verlstack:x", ("python", "x.py"), user=0)


def test_a_container_that_does_not_start():
    with pytest.raises(EngineError, match="does not start"):
        engine.Engine(client(run=raising(docker.errors.APIError("no runtime")))).run("x", ("y",), user=0)


@pytest.mark.parametrize(
    ("said", "todo"),
    [
        (requests.ConnectionError("('Connection aborted.', PermissionError(13, 'Permission denied'))"), "its group"),
        (docker.errors.APIError("write /var/x: no space left on device"), "free space"),
        (docker.errors.DockerException("client version 1.20 is too old"), "Engine 26"),
        (docker.errors.APIError("crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted"), "default_ulimits"),
        (docker.errors.APIError("never seen"), "see its log"),
    ],
)
def test_what_helps_is_said(said, todo):
    with pytest.raises(EngineError) as e:
        engine.Engine(client(run=raising(said))).run("verlstack:x", ("y",), user=0)
    assert todo in e.value.todo
    assert str(said) in e.value.what
