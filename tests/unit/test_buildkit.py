"""The second builder's command lines, what it says when it fails, and what of the user reaches it; no engine here."""

import json
from pathlib import Path

import pytest

from verlstack import buildkit, shell
from verlstack.buildkit import Request
from verlstack.errors import BaseImageError, BuildError, EngineError, StorageError
from verlstack.progress import Silent

SERVER = '{"Version":"26.1.5+dfsg1"}'
INSPECT = """Name:          default
Driver:        docker
Last Activity: 2026-11-30 17:42:54 +0000 UTC

Nodes:
Name:             default
Status:           running
BuildKit version: {}
"""
# buildx 0.13.1 ends well even where it reaches nobody
NOBODY = """Name:          default
Driver:        docker
Error:         Cannot connect to the Docker daemon at unix:///x.sock. Is the docker daemon running?

Nodes:
"""


def answer(stdout="", stderr="", returncode=0):
    return shell.Result(args=(), returncode=returncode, stdout=stdout, stderr=stderr)


def docker(**answers):
    """A runner; answers by the words' beginning, with `_` for blanks."""
    known = {
        "version": answer(SERVER),
        "buildx_version": answer("github.com/docker/buildx 0.13.1"),
        "buildx_inspect": answer(INSPECT.format("v0.0.0+unknown")),
        "network_inspect": answer("[]"),
    } | answers

    def run(args, **_):
        assert args[0] == "docker"
        words = "_".join(args[1:])
        return next(found for start, found in known.items() if words.startswith(start))

    return run


@pytest.mark.parametrize(
    ("version", "told"),
    [("v0.13.1", "v0.13.1"), ("v0.20.0-rc1", "v0.20.0-rc1"), ("v1.0.0", "v1.0.0"), ("v0.0.0+unknown", None)],
)
def test_an_engine_that_can_build(version, told):
    found = buildkit.check({}, docker(buildx_inspect=answer(INSPECT.format(version))))
    assert (found.engine, found.buildkit, found.driver) == ("26.1.5+dfsg1", told, "docker")
    assert found.network == "default"


def test_an_engine_without_a_bridge_builds_on_the_hosts_network():
    found = buildkit.check({}, docker(network_inspect=answer(stderr="network bridge not found", returncode=1)))
    assert found.network == "host"


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ({"buildx_inspect": answer(INSPECT.format("v0.12.5"))}, "BuildKit v0.12.5 is too old: .* 0.13 or later"),
        ({"version": answer('{"Version":"25.0.5"}')}, "Docker Engine 25.0.5 is too old: .* 26.0 or later"),
        ({"version": answer("null", "Cannot connect to the Docker daemon at unix:///x", 1)}, "no container engine"),
        ({"version": answer("null", "permission denied while trying to connect to the Docker daemon", 1)}, "may not"),
        ({"version": answer("", "Failed to initialize: unable to resolve docker endpoint: x", 1)}, "address is none"),
        ({"version": answer("null", "error during connect: dial tcp: lookup x: no such host", 1)}, "host is not known"),
        ({"version": answer("null", "client version 1.22 is too old.", 1)}, "do not understand each other"),
        ({"version": answer("null", "something new", 1)}, "does not answer:\nsomething new"),
        ({"version": answer("[]")}, "does not answer"),
        ({"version": answer("nonsense")}, "does not answer"),
        ({"buildx_version": answer("", "docker: 'buildx' is not a docker command.", 1)}, "has no buildx"),
        ({"buildx_inspect": answer(NOBODY)}, "no container engine answers"),
        ({"buildx_inspect": answer("", "no builder named x", 1)}, "finds no builder:\nno builder named x"),
    ],
)
def test_an_engine_that_cannot(answers, told):
    with pytest.raises(EngineError, match=told) as e:
        buildkit.check({"DOCKER_HOST": "tcp://there:1"}, docker(**answers))
    assert e.value.todo
    assert e.value.where in {"tcp://there:1", "docker buildx version"}


def test_no_docker_command():
    def run(*_, **__):
        raise shell.ProgramMissingError("cannot run docker", where="docker")

    with pytest.raises(EngineError, match="no docker command"):
        buildkit.check({}, run)


def test_a_builder_of_its_own_may_keep_its_version_to_itself():
    inspected = INSPECT.format("").replace("Driver:        docker", "Driver:        docker-container")
    found = buildkit.check({}, docker(version=answer('{"Version":"20.10"}'), buildx_inspect=answer(inspected)))
    assert (found.driver, found.buildkit, found.network) == ("docker-container", None, "default")


def test_only_what_docker_needs_of_the_environment_reaches_it():
    own = buildkit.environment({"DOCKER_HOST": "x", "HOME": "/h", "TOKEN": "t", "VERLSTACK_LOCK": "v", "UV_INDEX": "u"})
    assert {"DOCKER_HOST", "HOME"} <= set(own)
    assert not {"TOKEN", "VERLSTACK_LOCK", "UV_INDEX"} & set(own)
    assert own["BUILDX_NO_DEFAULT_ATTESTATIONS"] == "1"


def test_the_proxies_are_those_of_the_environment_that_was_given(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://ours.invalid")
    own = buildkit.environment({"http_proxy": "http://given.invalid", "SSL_CERT_FILE": "/ca"})
    assert (own["http_proxy"], own["SSL_CERT_FILE"]) == ("http://given.invalid", "/ca")
    assert "HTTPS_PROXY" not in own


def request(tmp_path, **more):
    files = (Path("docker/docker-bake.hcl"), Path("constraints/cu121.bake.json"))
    return Request(folder=tmp_path, files=files, target="runtime", output=Path("/out/image"), **more)


def test_the_command_line(tmp_path):
    made = request(
        tmp_path,
        contexts={"pip": "/x/pip", "os": "oci-layout:///x/os@sha256:1"},
        secrets={"uv_toml": Path("/s/uv, or not")},
    )
    assert buildkit.command(made) == [
        *("docker", "buildx", "bake", "--progress=plain", "--no-cache"),
        *("--file", "docker/docker-bake.hcl", "--file", "constraints/cu121.bake.json"),
        *("--set", "*.contexts.os=oci-layout:///x/os@sha256:1", "--set", "*.contexts.pip=/x/pip"),
        *("--set", '*.secrets=id=uv_toml,"src=/s/uv, or not"'),
        "--set",
        "runtime.output=type=oci,tar=false,compression=uncompressed,force-compression=true,dest=/out/image",
        "runtime",
    ]
    assert "--no-cache" not in buildkit.command(request(tmp_path, cached=True))


FAILED = """#5 [internal] load build definition from Dockerfile
#6 [wheels-torch wheels 1/1] RUN /run/docker/wheels.sh
#6 0.411 fetching
#6 ERROR: process "/bin/sh -c wheels.sh" did not complete successfully: exit code: 1
------
 > [wheels-torch wheels 1/1] RUN /run/docker/wheels.sh:
0.411 hash mismatch
------
ERROR: failed to solve: process "/bin/sh -c wheels.sh" did not complete successfully: exit code: 1"""


def bake(tmp_path, output, returncode=1, printed='{"target":{"runtime":{},"tools":{}}}', env=None, **more):
    said, seen = [], {}

    class Says(Silent):
        def say(self, line):
            said.append(line)

    def follow(args, *, env, cwd, each):
        seen.update(args=args, env=env, cwd=cwd)
        for line in output.splitlines():
            each(line)
        return answer(output, returncode=returncode)

    def run(args, **_):
        assert args[-1] == "--print"
        return answer(printed)

    buildkit.bake(
        request(tmp_path, **more),
        env={"TOKEN": "t", "HOME": "/h"} | (env or {}),
        scratch=tmp_path,
        progress=Says(),
        run=run,
        follow=follow,
    )
    return said, seen


def test_progress_is_one_line_a_step(tmp_path):
    lines = "#1 [internal] load\n#2 [a 1/2] RUN x\n#2 noise\n#2 [a 1/2] RUN x\n#3 [context os] load\n#4 [b 2/2] COPY "
    said, seen = bake(tmp_path, lines + "y" * 200, returncode=0)
    assert said[0] == "[a 1/2] RUN x"
    assert len(said) == 2
    assert len(said[1]) == 100
    assert seen["cwd"] == tmp_path
    assert "TOKEN" not in seen["env"]


def test_nothing_of_a_build_speaks_to_the_terminal_or_tells_a_password(tmp_path):
    lines = "#2 [a 1/2] RUN \x1b[31mx https://u:s3cret@host.invalid\n#2 0.1 \x1b]0;t\x07http://u:s3cret@proxy.invalid"
    said, _ = bake(tmp_path, lines, returncode=0)
    assert said == ["[a 1/2] RUN x https://host.invalid"]
    failed = f"{lines}\n > [a \x1b[31m1/2] RUN x\n"
    with pytest.raises(BuildError) as e:
        bake(tmp_path, failed)
    assert e.value.where == "stage a 1/2"
    assert "http://proxy.invalid" in e.value.what
    assert "s3cret" not in str(e.value)
    assert "\x1b" not in str(e.value)


def test_what_an_engine_says_is_shown_without_its_colours(tmp_path):
    text = "\x1b[31mnew https://u:s3cret@host.invalid"
    with pytest.raises(EngineError, match=r"does not answer:\nnew https://host\.invalid"):
        buildkit.check({}, docker(version=answer("null", text, 1)))


def test_build_steps_get_the_proxies_and_no_command_line_their_password(tmp_path):
    address = "http://u:s3cret${x}@proxy.invalid"
    _, seen = bake(tmp_path, "", returncode=0, network="host", env={"https_proxy": address, "NO_PROXY": "h.invalid"})
    files = [Path(after) for word, after in zip(seen["args"], seen["args"][1:], strict=False) if word == "--file"]
    own = tmp_path / "proxies.json"
    assert own in files
    assert own.stat().st_mode & 0o777 == 0o600
    arguments = json.loads(own.read_text())["target"]["runtime"]["args"]
    assert arguments == {"HTTPS_PROXY": address.replace("$", "$$"), "NO_PROXY": "h.invalid"}
    assert not [word for word in seen["args"] if "s3cret" in word]


def test_without_proxies_there_is_no_file_for_them(tmp_path):
    bake(tmp_path, "", returncode=0)
    assert not list(tmp_path.iterdir())


def test_a_step_that_fails_is_named_with_its_last_lines(tmp_path):
    noise = "\n".join(f"#6 {n}" for n in range(100))
    with pytest.raises(BuildError) as e:
        bake(tmp_path, f"{noise}\n{FAILED}")
    assert e.value.where == "stage wheels-torch wheels 1/1"
    assert "hash mismatch" in e.value.what
    assert len(e.value.what.splitlines()) == 31


@pytest.mark.parametrize(
    ("line", "kind", "told"),
    [
        ("write /x: no space left on device", StorageError, "disk is full"),
        ('process "cc" did not complete successfully: exit code: 137', BuildError, "killed"),
        ("x: failed to resolve source metadata for r.example.org/b: dial tcp: refused", BaseImageError, "registry"),
        ("OCI exporter is not supported for the docker driver", EngineError, "image store"),
        ("network bridge not found", EngineError, "no bridge"),
        ("failed to solve: DeadlineExceeded: context deadline exceeded", EngineError, "overloaded"),
        ("rpc error: code = Unavailable desc = error reading from server: EOF", EngineError, "ended in the middle"),
        ("unknown flag: --set", EngineError, "buildx is too old"),
        ("Cannot connect to the Docker daemon at unix:///x", EngineError, "no container engine answers"),
        ("never seen", BuildError, "the build fails:\nERROR: never seen"),
    ],
)
def test_what_a_build_may_end_with(tmp_path, line, kind, told):
    with pytest.raises(kind, match=told) as e:
        bake(tmp_path, f"ERROR: {line}")
    assert type(e.value) is kind
    assert line in e.value.what
    assert e.value.where == "target runtime"
    assert e.value.todo


def test_every_target_is_put_on_the_hosts_network(tmp_path):
    _, seen = bake(tmp_path, "", returncode=0, network="host")
    first = Path(seen["args"][seen["args"].index("--file") + 1])  # lowest: the bake files lie over it
    services = json.loads(first.read_text())["services"]
    assert {name: s["build"]["network"] for name, s in services.items()} == {"runtime": "host", "tools": "host"}


def test_bake_files_that_are_none(tmp_path):
    with pytest.raises(EngineError, match="does not understand"):
        bake(tmp_path, "", network="host", printed="")
