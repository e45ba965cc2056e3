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

from support import engines
from support.password_proxy import PASSWORD, Proxy
from verlstack import buildkit, layer, oci, trees
from verlstack.base import aptsources, mmdebstrap
from verlstack.errors import BaseImageError

pytestmark = [pytest.mark.engine, pytest.mark.full]

ROOT = Path(__file__).parents[2]
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
    engine = engines.docker()
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


def test_a_package_the_mirror_lacks_is_named(world):
    work, engine = world
    done = verlstack(
        work / "cache", "build", "--base", f"oci:{work / 'one' / 'base-cu121'}", "--package", "verlstack-no-such",
        "--mirror", work / "mirror", "--dist", work / "three", env=engine, code=8,
    )  # fmt: skip
    assert "has no package verlstack-no-such" in done.stderr
    assert not (work / "three").exists()
