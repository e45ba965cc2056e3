"""Credentials as Docker's config and credential helpers hold them."""

from __future__ import annotations

import base64
import json

import pytest

from verlstack import shell
from verlstack.base import login
from verlstack.errors import FetchError


@pytest.fixture
def env(tmp_path):
    return {"DOCKER_CONFIG": str(tmp_path), "PATH": "/bin"}


def write(tmp_path, document):
    (tmp_path / "config.json").write_text(document if isinstance(document, str) else json.dumps(document))


def answering(stdout, returncode=0, calls=None):
    def run(args, **how):
        if calls is not None:
            calls.append((args, how))
        return shell.Result(args=tuple(args), returncode=returncode, stdout=stdout, stderr="")

    return run


def test_stored_in_the_config(tmp_path, env):
    assert login.stored("ghcr.io", env) == login.Login()
    for nothing in ("not json", "[]", '{"auths": 1}', '{"auths": {"ghcr.io": 1}}'):
        write(tmp_path, nothing)
        assert login.stored("ghcr.io", env) == login.Login()
    auths = {"https://ghcr.io": {"auth": "dTpw"}, "https://index.docker.io/v1/": {"auth": "aHVi"}, "empty.io": {}}
    write(tmp_path, {"auths": auths | {"azure.io": {"auth": "MDA=", "identitytoken": "refresh"}}})
    assert login.stored("ghcr.io", env).basic == "dTpw"
    assert login.stored("docker.io", env).basic == "aHVi"
    assert login.stored("empty.io", env) == login.Login()
    assert login.stored("azure.io", env).identity == "refresh"
    assert login.stored("azure.io", {"HOME": "/nonexistent"}) == login.Login()


def test_a_helper_is_told_the_host_on_stdin_alone(tmp_path, env):
    write(tmp_path, {"credHelpers": {"a.io": "cloud"}, "credsStore": "desktop"})
    calls = []
    run = answering('{"ServerURL": "a.io", "Username": "u", "Secret": "s3cret"}', calls=calls)
    found = login.stored("a.io", env, run)
    assert base64.b64decode(found.basic) == b"u:s3cret"
    assert "s3cret" not in repr(found)
    assert found.basic not in repr(found)
    login.stored("docker.io", env, run)
    assert [args for args, _ in calls] == [["docker-credential-cloud", "get"], ["docker-credential-desktop", "get"]]
    assert [how["stdin"] for _, how in calls] == ["a.io", "https://index.docker.io/v1/"]


def test_a_helper_gives_an_identity_token(tmp_path, env):
    write(tmp_path, {"credsStore": "x"})
    found = login.stored("a.io", env, answering('{"Username": "<token>", "Secret": "refresh"}'))
    assert (found.basic, found.identity) == (None, "refresh")


def test_a_helper_that_knows_nothing_leaves_it_to_the_config(tmp_path, env):
    write(tmp_path, {"credsStore": "x", "auths": {"a.io": {"auth": "dTpw"}}})
    assert login.stored("a.io", env, answering("credentials not found in native keychain", 1)).basic == "dTpw"


@pytest.mark.parametrize(("said", "status"), [("s3cret", 1), ("s3cret", 0), ('{"Secret": "s3cret"}', 0), ('["s3"]', 0)])
def test_a_broken_helper_is_an_error_that_shows_nothing_of_what_it_said(tmp_path, env, said, status):
    write(tmp_path, {"credsStore": "x"})
    with pytest.raises(FetchError, match="docker-credential-x gives no credentials") as caught:
        login.stored("a.io", env, answering(said, status))
    assert "s3" not in str(caught.value)


def test_a_missing_helper_is_an_error(tmp_path, env):
    write(tmp_path, {"credsStore": "x"})

    def run(*_, **__):
        raise shell.ProgramMissingError("cannot run docker-credential-x: No such file or directory")

    with pytest.raises(FetchError, match="cannot be run"):
        login.stored("a.io", env, run)
