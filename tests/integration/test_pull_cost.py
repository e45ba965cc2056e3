"""What `verlstack pin` says that a host must pull, held against a real client and a real registry."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess

import pytest

from support import debian_programs
from support.real_registry import Line, running
from support.synthetic import WHEELS, serve
from support.wheels import Wheel

pytestmark = pytest.mark.full

INFO = {"METADATA": b"Metadata-Version: 2.1\nName: alpha\nVersion: 1.1\nRequires-Dist: beta\nRequires-Dist: heavy\n"}


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Paths of docker-registry and skopeo."""
    folder = tmp_path_factory.mktemp("programs")
    return [debian_programs.program(name, folder) for name in ("docker-registry", "skopeo")]


def copy(skopeo, *words):
    done = subprocess.run(
        [skopeo, "--insecure-policy", "copy", "--src-tls-verify=false", "--dest-tls-verify=false", *words],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "no_proxy": "*"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_client_with_the_old_image_fetches_what_was_foretold(tiny, programs, tmp_path):
    registry, skopeo = programs
    data = hashlib.shake_128(b"new alpha").digest(600_000)  # incompressible, so that HTTP's headers are small beside it
    new = Wheel(name="alpha", version="1.1", files={"alpha/__init__.py": b"", "alpha/data.bin": data}, info=INFO)
    serve(tiny.index, {"alpha": {w.filename: w.to_bytes() for w in (WHEELS[0], new)}})
    layout, client = f"oci:{tiny.root}/dist/tiny:tiny", f"oci:{tmp_path}/client"
    with running(registry, tmp_path) as host, Line(host) as line:
        tiny.run("build")
        copy(skopeo, layout, f"docker://{host}/team/tiny:old")
        foretold = json.loads(tiny.run("pin", "alpha==1.1", "--json").stdout)
        tiny.run("build")
        copy(skopeo, layout, f"docker://{host}/team/tiny:new")

        copy(skopeo, f"docker://{line.address}/team/tiny:old", f"{client}:old")
        whole, line.received = line.received, 0
        copy(skopeo, f"docker://{line.address}/team/tiny:new", f"{client}:new")

        (changed,) = foretold["report"]["pull"]["layers"]
        assert changed[0] == "alpha"
        assert changed[1] < foretold["pull_bytes"] <= line.received <= 1.05 * changed[1], (foretold, line.received)
        assert whole > 400_000  # the line counts: heavy came with the old image

        both = subprocess.run(
            [*tiny.words("diff")[:4], f"{host}/team/tiny:old", f"{host}/team/tiny:new", "--json",
             *tiny.words("diff")[5:]], env=tiny.environment(), cwd=tiny.root, capture_output=True, text=True,
        )  # fmt: skip
        assert both.returncode == 1, both.stderr
        found = json.loads(both.stdout)
        assert found["pull_bytes"] == foretold["pull_bytes"]
        assert [x["name"] for x in found["comparison"]["layers"]] == ["alpha"]
        # the old lock is not here any more: the pins in the labels tell what they can, and it is said
        assert [(x["name"], x["one"], x["other"]) for x in found["comparison"]["packages"]] == [("alpha", "1.0", "1.1")]
        assert any("the rest is not known" in note for note in found["comparison"]["notes"])
