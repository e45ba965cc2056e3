"""The stage `base` for real: a bootstrap with apt, one package more through an engine, and no trace of any secret."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from uv import find_uv_bin

from support import engines
from support.bad_server import BadServer
from support.password_proxy import PASSWORD, Proxy
from support.synthetic import serve
from support.wheels import Wheel
from verlstack import buildkit, layer, oci, trees
from verlstack.base import aptsources, mmdebstrap
from verlstack.errors import BaseImageError
from verlstack.progress import Silent

pytestmark = [pytest.mark.engine, pytest.mark.full]

ROOT = Path(__file__).parents[2]
FETCH = """FROM os
RUN --mount=type=bind,from=programs,target=/run/programs cd /tmp && \
    python3=$(ls /usr/local/bin/python3.*[0-9]) && \
    $python3 /run/programs/pip.whl/pip --isolated download -q --no-deps -i {index} by-pip && \
    /run/programs/uv --no-config pip install -q --no-cache --python $python3 --target /tmp/uv -i {index} by-uv
"""
# apt reads it for an https mirror alone; what matters here is where it ends up.
CA = "-----BEGIN CERTIFICATE-----\nbm90IHJlYWxseSBhIGNlcnRpZmljYXRl\n-----END CERTIFICATE-----\n"


def verlstack(cache, *words, env=None, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "verlstack", "base", *map(str, words)],
        cwd=ROOT, env={**os.environ, "VERLSTACK_CACHE": str(cache), **(env or {})}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def mirror():
    """The machine's own sources, as one text."""
    try:
        release = aptsources.parse_release(Path("/etc/os-release").read_text())
        sources = aptsources.own_sources(aptsources.read(mmdebstrap.ETC_APT), release)
    except (OSError, BaseImageError) as e:
        pytest.skip(f"no Debian mirror here: {e}")
    if len(sources) != 1 or "https://" in (text := next(iter(sources.values()))):
        pytest.skip("needs a mirror over plain http, for the proxy to see")
    return text


@pytest.fixture(scope="module")
def world(tmp_path_factory, mirror):
    """An engine, a cache, and a bootstrapped base that has apt."""
    engine = engines.docker(start=True)
    if not shutil.which("mmdebstrap"):
        pytest.skip("needs mmdebstrap (make host-tools)")
    if buildkit.check(os.environ | engine).network != "host":
        pytest.skip("the engine's build steps do not see this machine's loopback")
    work = tmp_path_factory.mktemp("stage")
    (work / "mirror").write_text(mirror)
    (work / "ca").write_text(CA)
    words = ("--package", "apt", "--package", "debian-archive-keyring")
    verlstack(work / "cache", "build", *words, "--dist", work / "one")
    return work, engine


@pytest.fixture(scope="module")
def grown(world):
    """The base with one package more, fetched through a proxy that asks for a password."""
    work, engine = world
    with Proxy() as proxy:
        done = verlstack(
            work / "cache", "build", "--base", f"oci:{work / 'one' / 'base-cu121'}", "--package", "less",
            "--mirror", work / "mirror", "--ca", work / "ca", "--dist", work / "two",
            env=engine | {"http_proxy": proxy.address},
        )  # fmt: skip
        return work / "one" / "base-cu121", work / "two" / "base-cu121", done, list(proxy.served), proxy.host


def test_the_packages_came_through_the_proxy(grown):
    assert any("/less_" in address for address in grown[3])


def test_one_layer_more_with_that_package_and_nothing_of_the_moment(grown, world):
    one, two, *_ = grown
    before, after = (oci.read_layout(layout)[1]["layers"] for layout in (one, two))
    assert after[: len(before)] == before
    assert len(after) == len(before) + 2, "the stage's, and the venv of a base that has Python"
    found = json.loads(verlstack(world[0] / "cache", "diff", one, two, "--json", code=1).stdout)
    assert [change["name"] for change in found["packages"]] == ["less:amd64"]
    allowed = r"(usr/bin|usr/share/doc|usr/lib/mime/packages)/less.*|var/lib/dpkg/.*|etc/alternatives/pager"
    assert [x["path"] for x in found["files"] if not re.fullmatch(allowed, x["path"])] == []


def test_no_secret_and_no_mirror_in_layers_config_or_messages(grown, mirror):
    one, two, done, _, proxy = grown
    hosts = {urlsplit(word).hostname.encode() for word in mirror.split() if "://" in word}
    needles = [PASSWORD.encode(), proxy.encode(), CA.splitlines()[1].encode()]
    _, manifest, config = oci.read_layout(two)
    for needle in (*needles, *hosts):
        assert needle not in json.dumps([manifest, config]).encode()
    for needle in needles:
        assert needle not in (done.stdout + done.stderr).encode()
    for described in manifest["layers"][len(oci.read_layout(one)[1]["layers"]) :]:
        with layer.opened(two / oci.blob_path(described["digest"]), "zstd") as stream:
            data = stream.read()
        assert [needle for needle in needles if needle in data] == []
        assert [host for host in hosts if re.search(rb"://[^\s]*" + re.escape(host), data)] == []
        members = trees.read(two / oci.blob_path(described["digest"]), described["mediaType"]).members
        assert [m.path for m in members if m.path.startswith(("run", "tmp", "dev", "var/lib/apt/lists/"))] == []


@pytest.mark.parametrize("name", ["verlstack-no-such", "less+", "python3.1"])
def test_a_package_the_mirror_lacks_by_that_very_name_is_named(world, name):
    """To apt the second would be an order to install less, the third a pattern."""
    work, engine = world
    done = verlstack(
        work / "cache", "build", "--base", f"oci:{work / 'one' / 'base-cu121'}", "--package", name,
        "--mirror", work / "mirror", "--dist", work / "three", env=engine, code=8,
    )  # fmt: skip
    assert f"has no package {name}\n" in done.stderr
    assert not (work / "three").exists()


def test_pip_and_uv_fetch_through_the_proxy_and_leave_no_trace_of_it(world, build_tools, tmp_path):
    work, engine = world
    one = work / "one" / "base-cu121"
    (tmp_path / "programs").mkdir()
    shutil.copy(build_tools["pip"], tmp_path / "programs" / "pip.whl")
    shutil.copy(find_uv_bin(), tmp_path / "programs" / "uv")
    (tmp_path / "scratch").mkdir()
    with BadServer() as index, Proxy() as proxy:
        wheels = [Wheel(name=name, version="1.0") for name in ("by_pip", "by_uv")]
        serve(index, {wheel.name.replace("_", "-"): {wheel.filename: wheel.to_bytes()} for wheel in wheels})
        (tmp_path / "Dockerfile").write_text(FETCH.format(index=f"{index.url}/simple"))
        bake = {"target": {"fetch": {"dockerfile": "Dockerfile"}}}
        (tmp_path / "bake.json").write_text(json.dumps(bake))
        env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")} | engine
        order = buildkit.Request(
            folder=tmp_path, files=(tmp_path / "bake.json",), target="fetch", output=tmp_path / "out",
            contexts={
                "os": f"oci-layout://{one}@{oci.read_layout(one)[0]}", "programs": str(tmp_path / "programs")
            },
            network="host",
        )  # fmt: skip
        env["http_proxy"] = proxy.address
        buildkit.bake(order, env=env, scratch=tmp_path / "scratch", progress=Silent())
        fetched = {path.rpartition("/")[2] for path in proxy.served}
        secrets = [PASSWORD.encode(), proxy.host.encode()]
    assert {wheel.filename for wheel in wheels} <= fetched
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(files) > 4
    below = {x["digest"].removeprefix("sha256:") for x in oci.read_layout(one)[1]["layers"]}
    texts = {path: path.read_bytes() for path in files if path.name not in below}
    assert any(b"by_uv" in data for data in texts.values()), "uncompressed layers, or a search would see nothing"
    assert [path for path, data in texts.items() if any(secret in data for secret in secrets)] == []
