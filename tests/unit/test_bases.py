"""Which base a spec means, and which bases are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from verlstack import layer
from verlstack.base import aptsources, bases, debian, pull, python_tree, registry
from verlstack.base.facts import Facts
from verlstack.base.interpreter import Interpreter
from verlstack.cache import Cache
from verlstack.errors import BaseImageError, FetchError, HashMismatchError, UsageError
from verlstack.progress import Silent

FAST = layer.Compression(level=1, window_log=20, long_distance=False, library="1.5.7")
DIGEST = "sha256:" + "ab" * 32
REF = f"docker.io/library/ubuntu@{DIGEST}"
HOST = aptsources.Release(id="debian", version="12", codename="bookworm", name="Debian 12")
BLOB = layer.Blob(path=Path("x"), digest=DIGEST, diff_id=DIGEST, size=1, raw_size=1, media_type="x")
PYTHON = Interpreter(executable=Path("/p/bin/python3.10"), prefix=Path("/p"), version="3.10.13", shared=True)


class Said(Silent):
    def __init__(self):
        self.lines = []

    def say(self, line):
        self.lines.append(line)


def facts(**more):
    plain = {
        "env": (("PATH", "/usr/bin"),), "compiler": "/usr/bin/cc", "python_home": "/usr/bin",
        "python_version": "3.10.12", "headers": True, "os_id": "ubuntu", "os_version": "22.04", "os_name": "Ubuntu",
        "libraries": ("libz.so.1",), "labels": (), "glibc": "2.35", "glibcxx": "3.4.30", "packages": (),
    }  # fmt: skip
    return Facts(**plain | more)


@pytest.fixture
def world(monkeypatch, tmp_path):
    """Replaces the two ways to a base; `world.facts` and `world.manifest` may be changed."""

    class World:
        progress = Said()
        plans = []  # noqa: RUF012 - one test, one instance
        facts = facts()
        manifest_error = None

        def obtain(self, spec, **more):
            arguments = {
                "wanted_python": "3.10", "debian_packages": ("gcc",), "registry_default": REF, "compression": FAST,
                "epoch": 1, "cache": Cache(tmp_path), "interpreter": PYTHON, "env": {"HOME": str(tmp_path)},
                "progress": self.progress, "offline": False, "run": None,
            }  # fmt: skip
            return bases.obtain(spec, bases.Request(**arguments | more))

    world = World()

    def bootstrap(plan, **_):
        world.plans.append(plan)
        return debian.Bootstrap(layer=BLOB, packages=(("gcc", "12"),), release="Debian 12")

    def manifest(self, digest):
        if world.manifest_error:
            raise world.manifest_error
        return {}

    release = tmp_path / "os-release"
    release.write_text("ID=debian\nVERSION_ID=12\nVERSION_CODENAME=bookworm\n")
    monkeypatch.setattr(bases, "_OS_RELEASE", release)
    monkeypatch.setattr(debian, "bootstrap", bootstrap)
    monkeypatch.setattr(pull, "pull", lambda ref, **_: ((BLOB,), world.facts))
    monkeypatch.setattr(registry.Client, "manifest", manifest)
    monkeypatch.setattr(python_tree, "shared_libraries", lambda interp, wanted: frozenset({"libz.so.1"}))
    monkeypatch.setattr(python_tree, "debian_packages", lambda names, run: ["zlib1g"])
    return world


@pytest.mark.parametrize("spec", ["", "alpine", "registry", "dockerfile:x", "oci:"])
def test_an_unknown_spec_lists_the_forms(world, spec):
    with pytest.raises(UsageError) as caught:
        world.obtain(spec)
    assert all(form in caught.value.todo for form in ("debian", "registry:", "oci:", "auto"))


def test_a_tag_is_refused(world):
    with pytest.raises(UsageError, match="a tag can move"):
        world.obtain("registry:ubuntu:22.04")


def test_debian_installs_the_interpreters_libraries_too(world):
    base = world.obtain("debian")
    assert world.plans[0].packages == ("gcc", "zlib1g")
    assert (base.kind, base.local, base.python_home) == ("debian", True, None)
    assert base.packages == (("gcc", "12"),)
    assert base.reference == "bootstrapped from Debian 12"
    world.obtain("debian", interpreter=None)
    assert world.plans[1].packages == ("gcc",)


def test_a_registry_base_brings_its_own_python(world):
    base = world.obtain(f"registry:{REF}")
    assert (base.kind, base.local, base.python_home, base.python_version) == ("registry", False, "/usr/bin", "3.10.12")
    assert base.reference == REF
    assert base.env == (("PATH", "/usr/bin"),)
    assert world.plans == []


def test_a_registry_base_of_the_hosts_release_takes_the_hosts_python(world):
    world.facts = facts(python_home=None, headers=False, os_id="debian", os_version="12")
    base = world.obtain(f"registry:{REF}")
    assert (base.python_home, base.local) == (None, True)
    world.facts = facts(python_home=None, os_id="debian", os_version="12", libraries=())
    with pytest.raises(BaseImageError, match=r"libz\.so\.1"):
        world.obtain(f"registry:{REF}")


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (facts(compiler=None), "no C compiler"),
        (facts(headers=False), "not its headers"),
        (facts(python_home=None), "no Python 3.10"),
        (facts(python_home=None, os_id="debian", os_version="13"), "debian 13"),
    ],
)
def test_what_cannot_carry_the_stack_is_refused(found, text):
    with pytest.raises(BaseImageError, match=text) as caught:
        bases.judge(found, REF, "3.10", host=HOST)
    assert caught.value.todo


def test_auto_takes_the_locks_base_if_it_answers(world):
    assert world.obtain("auto").kind == "registry"
    assert world.obtain("auto", offline=True).kind == "registry"
    assert world.progress.lines == []


def test_auto_falls_back_and_says_why(world):
    world.progress.lines.clear()
    world.manifest_error = FetchError("nobody is there")
    assert world.obtain("auto").kind == "debian"
    assert world.obtain("auto", registry_default=None).kind == "debian"
    assert len(world.progress.lines) == 2
    assert "docker.io" in world.progress.lines[0]
    assert "nobody is there" in world.progress.lines[0]


def test_auto_does_not_pass_over_wrong_bytes(world):
    world.manifest_error = HashMismatchError("other bytes")
    with pytest.raises(HashMismatchError):
        world.obtain("auto")


def test_a_machine_without_os_release(monkeypatch, tmp_path):
    monkeypatch.setattr(bases, "_OS_RELEASE", tmp_path / "none")
    assert bases._host_release() == ""
