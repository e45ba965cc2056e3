"""The engine's answers, good and bad, and what the user is told of them; the real engine is in test_default_stack."""

from types import SimpleNamespace

import docker
import docker.errors
import pytest
import requests
import urllib3

from verlstack import engine
from verlstack.errors import EngineError, ProofError
from verlstack.order import Order


def client(**calls):
    """A Docker client whose methods are these."""
    images = SimpleNamespace(load=calls.get("load", lambda data: [*data]), get=calls.get("get"))
    return SimpleNamespace(
        images=images,
        containers=SimpleNamespace(create=calls.get("create")),
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
    loaded = engine.Engine(made).load(iter([b"a", b"b"]), "verlstack:x", ("sha256:manifest", "sha256:config"))
    assert loaded == known_as
    assert sent == [b"a", b"b"]


def test_another_image_under_the_name_is_noticed():
    made = client(get=lambda name: SimpleNamespace(id="sha256:other"))
    with pytest.raises(EngineError, match="sha256:other under verlstack:x"):
        engine.Engine(made).load(iter([]), "verlstack:x", ("sha256:manifest",))


@pytest.mark.parametrize("error", [docker.errors.ImageLoadError("no space left"), requests.Timeout("slow")])
def test_an_engine_that_refuses_the_image(error):
    with pytest.raises(EngineError, match="does not load the image"):
        engine.Engine(client(load=raising(error))).load(iter([]), "verlstack:x", ())


class Running:
    """A container that ends as it is told to; how it was made is in `made`."""

    def __init__(self, *, status=0, out=b"", err=b"", fails=None, pieces=()):
        self.status, self.out, self.err, self.fails, self.pieces = status, out, err, fails, pieces
        self.removed = False

    def create(self, image, command, **how):
        self.made = {**how, "image": image, "command": command}
        return self

    def start(self):
        if self.fails:
            raise self.fails

    def wait(self, timeout):
        if isinstance(self.status, Exception):
            raise self.status
        return {"StatusCode": self.status}

    def logs(self, *, stdout, stderr, tail):
        assert tail > 0
        return (self.out if stdout else b"") + (self.err if stderr else b"")

    def remove(self, **_):
        self.removed = True

    def get_archive(self, path):
        return self.pieces, {}


def order(**changes):
    return Order(**{"image": "sha256:1", "name": "n", "command": ("python", "x.py"), "user": 54321, **changes})


def ask(container, **changes):
    try:
        return engine.Engine(client(create=container.create)).ask(order(**changes), 5.0)
    finally:
        assert container.removed


def test_a_command_runs_with_least_privilege_without_network_and_leaves_nothing():
    container = Running(out=b"2.3.1\n", err=b"a warning")
    assert ask(container, labels={"l": "1"}) == "2.3.1"
    wanted = {
        "image": "sha256:1", "name": "n", "user": "54321:54321", "network_mode": "none", "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"], "labels": {"l": "1"}, "init": False,
    }  # fmt: skip
    assert container.made.items() >= wanted.items()


def test_a_command_that_fails_shows_its_last_words():
    container = Running(status=1, out=b"x", err=b"ModuleNotFoundError: \x1b[1mverl")
    with pytest.raises(ProofError, match=r"as uid 0 \(exit status 1\):\nModuleNotFoundError: verl"):
        ask(container, user=0)


@pytest.mark.parametrize("late", [requests.ReadTimeout("slow"), requests.ConnectionError("Read timed out.")])
def test_a_command_that_does_not_end_is_ended(late):
    with pytest.raises(ProofError, match="no end after 5 s"):
        ask(Running(status=late))


def test_a_container_that_does_not_start():
    with pytest.raises(EngineError, match="does not start"):
        ask(Running(fails=docker.errors.APIError("no runtime")))


def broken(error):
    yield b"half"
    raise error


@pytest.mark.parametrize(
    "error", [requests.exceptions.ChunkedEncodingError("IncompleteRead"), urllib3.exceptions.ProtocolError("broken")]
)
def test_an_engine_that_goes_while_it_sends_is_one_error(error):
    container = engine.Container(Running(pieces=broken(error)))
    stream = container.archive("/tmp/x")
    assert next(stream) == b"half"
    with pytest.raises(EngineError, match="does not hand out /tmp/x"):
        next(stream)


@pytest.mark.parametrize("asked", ["name", "architecture"])
def test_an_engine_that_does_not_say_what_it_is(asked):
    made = client()
    made.version = raising(requests.ConnectionError("aborted"))
    with pytest.raises(EngineError, match="does not say what it is"):
        getattr(engine.Engine(made), asked)


def listed(name, one, label, **attrs):
    return SimpleNamespace(name=name, id=one, labels={"l": label}, attrs={"Labels": {"l": label}}, **attrs)


def test_what_only_inherits_our_label_is_not_ours():
    made = client()
    made.containers.list = lambda **_: [listed("ours-1", "a", "1"), listed("theirs", "b", "2")]
    made.networks = SimpleNamespace(list=lambda **_: [listed("ours-2", "c", "3"), listed("x-ours", "d", "4")])
    assert engine.Engine(made).labelled("l", "ours-") == {"a": "1", "c": "3"}


@pytest.mark.parametrize(("known_as", "closed"), [("Engine", True), ("Podman Engine", False)])
def test_a_network_does_not_lead_to_this_machine_where_the_engine_can(known_as, closed):
    seen = {}
    made = client(version={"Components": [{"Name": known_as, "Version": "1"}]})
    made.networks = SimpleNamespace(create=lambda name, **how: seen.update(how) or SimpleNamespace(remove=list))
    with engine.Engine(made).network("n", {}):
        assert seen["internal"] is True
        assert bool(seen["options"]) is closed


def test_the_image_under_a_name_is_told_by_its_digest():
    made = engine.Engine(client(get=lambda name: SimpleNamespace(attrs={"Id": "sha256:1"})))
    assert made.held("verlstack:x", ("sha256:1", "sha256:2")) == "sha256:1"
    assert made.held("verlstack:x", ("sha256:2",)) is None


@pytest.mark.parametrize(
    ("said", "todo"),
    [
        (requests.ConnectionError("('Connection aborted.', PermissionError(13, 'Permission denied'))"), "its group"),
        (docker.errors.APIError("write /var/x: no space left on device"), "free space"),
        (docker.errors.DockerException("client version 1.20 is too old"), "Engine 26"),
        (docker.errors.APIError("crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted"), "default_ulimits"),
        (docker.errors.APIError("container create: container-init binary not found on the host"), "catatonit"),
        (docker.errors.APIError("never seen"), "see its log"),
    ],
)
def test_what_helps_is_said(said, todo):
    with pytest.raises(EngineError) as e:
        ask(Running(fails=said))
    assert todo in e.value.todo
    assert str(said) in e.value.what
