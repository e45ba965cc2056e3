"""A wheel put into a real registry by the very command of docs/compiled-wheels.md, and found there by its hash."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import shlex
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from support import debian_programs, stacks
from support.wheels import Wheel
from verlstack import pins
from verlstack.cache import Cache
from verlstack.download import Artifact
from verlstack.extension import find as finding

DOCUMENT = Path(__file__).parents[2] / "docs" / "compiled-wheels.md"
CONFIG = """
version: 0.1
storage:
  filesystem: {{rootdirectory: {folder}}}
  delete: {{enabled: true}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Paths of oras and docker-registry."""
    folder = tmp_path_factory.mktemp("programs")
    return debian_programs.program("oras", folder, newer=True), debian_programs.program("docker-registry", folder)


@pytest.fixture
def host(programs, tmp_path):
    """Address of an empty registry on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "registry.yml").write_text(CONFIG.format(folder=tmp_path / "registry", port=port))
    words = [programs[1], "serve", tmp_path / "registry.yml"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as server:
        try:
            for line in server.stderr:  # it says so once it listens
                if "listening on" in line:
                    break
            else:
                pytest.fail("docker-registry ended before it listened")
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()


def documented(repository, key, wheel):
    """The command as the document has it, with its placeholders filled."""
    text = re.search(r"^oras push (?:.*\\\n)*.*$", DOCUMENT.read_text(), re.MULTILINE)[0]
    words = shlex.split(text.replace("\\\n", " ").replace("HOST/REPOSITORY", repository).replace("KEY", key))
    return [re.sub(r"flash_attn-\S+?\.whl", wheel, word) for word in words]


def test_what_the_document_says_puts_a_wheel_where_it_is_found(programs, host, tmp_path):
    wheel = Wheel(name="flash_attn", version="2.5.9.post1").write(tmp_path)
    data = wheel.read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    program, *words = documented(f"{host}/team/wheels", "0123456789" * 4, wheel.name)
    assert program == "oras"
    assert f"{wheel.name}:application/vnd.pypa.wheel" in words
    done = subprocess.run(
        [programs[0], *words, "--plain-http"], cwd=tmp_path, env={"HOME": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr

    places = pins.load(stacks.write(tmp_path), "demo").flash_attn
    places = dataclasses.replace(places, wheelhouse=f"{host}/team/wheels", prebuilt=None)
    wanted = Artifact(
        project="flash-attn", version="2.5.9.post1", filename=wheel.name, sha256=sha256, size=len(data)
    )  # fmt: skip
    env = {"HOME": str(tmp_path), "no_proxy": "*"}
    with Cache(tmp_path / "cache").use() as cache:
        found = finding.find(wanted, places, cache=cache, env=env, offline=False)
        assert found.path is not None, found.tried
        assert found.path.read_bytes() == data
        other = dataclasses.replace(wanted, sha256="0" * 64)
        assert finding.find(other, places, cache=cache, env=env, offline=False).path is None

    # What people and garbage collectors see: a manifest under the key, whose one layer is the wheel.
    address = f"http://{host}/v2/team/wheels/manifests/{'0123456789' * 4}"
    accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        urllib.request.Request(address, headers=accept)
    ) as answer:
        manifest = answer.read().decode()
    assert '"artifactType":"application/vnd.verlstack.wheel.v1"' in manifest
    assert f"sha256:{sha256}" in manifest
