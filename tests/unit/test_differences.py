"""Differences in words: the pin, the known cause; and what must not be in an image."""

import re
import tomllib
from importlib import resources

import pytest

from verlstack import explain, leftovers
from verlstack.trees import Difference, Node

SITE = "opt/verl/lib/python3.10/site-packages"


def node(kind="file", **facts):
    return Node(**{"kind": kind, "mode": 0o644, "uid": 0, "gid": 0, "content": "a" * 64, "size": 3} | facts)


def cause(path, one, other):
    (found,) = explain.explain([Difference(path=path, one=one, other=other)], {path: "torch 2.3.1"})
    assert found.path == f"/{path}"
    assert found.owner == "torch 2.3.1"
    return found


@pytest.mark.parametrize(
    ("path", "one", "other", "words"),
    [
        (f"{SITE}/torch-2.3.1.dist-info/INSTALLER", None, node(), "installer's note"),
        (f"{SITE}/torch-2.3.1.dist-info/RECORD", node(), node(content="b"), "RECORD rule"),
        (f"{SITE}/x/__pycache__/a.cpython-310.pyc", node(), node(content="b"), "hash seed"),
        (f"{SITE}/x/__pycache__/a.cpython-310.pyc", None, node(), "compiled by one builder alone"),
        (f"{SITE}/triton.libs", None, node("dir"), "empty folder"),
        ("opt/verl/bin/torchrun", node(), node(content="b"), "another template"),
        ("opt/verl/.lock", None, node(), "uv made the venv"),
        ("etc/resolv.conf", node(), node(content="b"), "engine's own file"),
        ("tmp/x", None, node(), "running container"),
        ("var/lib/apt/lists/x", None, node(), "package manager"),
        ("root/.cache/uv/x", None, node(), "home folder"),
        (f"{SITE}/x/a.py", node(), node(uid=1000), "another user"),
        (f"{SITE}/x/a.py", node(), node(mode=0o600), "umask"),
        (f"{SITE}/x/a.so", node(), node("symlink"), "a link"),
        (f"{SITE}/x/a.py", node(), node(xattrs=(("user.x", "1"),)), "extended attribute"),
    ],
)
def test_a_known_cause(path, one, other, words):
    found = cause(path, one, other)
    assert words in found.cause
    assert found.source


def test_an_unknown_cause_says_so():
    found = cause(f"{SITE}/x/a.py", node(), node(content="b" * 64, size=4))
    assert (found.cause, found.source) == (explain.UNKNOWN, "")
    assert found.shows == ("size", "content")
    assert (found.one, found.other) == (f"size 3 content {'a' * 64}", f"size 4 content {'b' * 64}")


def test_what_lies_on_one_side_alone():
    found = cause("f", node(), None)
    assert (found.shows, found.one, found.other) == (("only-one",), "file 0644 of 3 bytes", "nothing")
    assert cause("f", None, node()).shows == ("only-other",)


def test_owners_come_from_the_wheels_own_records():
    record = b'torch/__init__.py,sha256=x,1\n../../../bin/torchrun,,\n"odd,name.py",,\n\n'
    found = explain.owners({f"{SITE}/torch-2.3.1+cu121.dist-info/RECORD": record, f"{SITE}/odd/RECORD": b"x,,\n"})
    assert found == {
        f"{SITE}/torch/__init__.py": "torch 2.3.1+cu121",
        "opt/verl/bin/torchrun": "torch 2.3.1+cu121",
        f"{SITE}/odd,name.py": "torch 2.3.1+cu121",
    }


def test_a_record_that_is_no_csv():
    """The csv module takes no field of more than 131072 bytes."""
    record = b"torch/a.py,,\n" + b"x" * 200_000 + b",,\n"
    found = explain.owners(
        {f"{SITE}/torch-2.dist-info/RECORD": record, f"{SITE}/six-1.dist-info/RECORD": b"six.py,,\n"}
    )
    assert found == {f"{SITE}/torch/a.py": "torch 2", f"{SITE}/six.py": "six 1"}


def table(name):
    return tomllib.loads(resources.files("verlstack").joinpath(f"data/{name}.toml").read_text(encoding="utf-8"))


def test_every_row_of_the_data_is_whole():
    known = {"only-one", "only-other", "kind", "mode", "uid", "gid", "size", "content", "xattrs"}
    for row in table("differences")["cause"]:
        assert set(row) <= {"pattern", "shows", "cause", "source"}
        assert set(row.get("shows", [])) <= known
        assert row["cause"]
        assert row["source"]
    for row in [*table("leftovers")["rule"], *table("engine_trouble")["trouble"]]:
        re.compile(row["pattern"])
        re.compile(row.get("but", ""))


@pytest.mark.parametrize(
    "path",
    [
        "usr/local/cuda-12.1/bin/nvcc",
        "usr/bin/nvcc",
        "opt/verl/bin/nvcc",
        "usr/bin/ninja",
        "var/lib/apt/lists/deb.example.org_dists_x_InRelease",
        "var/cache/apt/pkgcache.bin",
        "etc/apt/sources.list",
        "root/.cache/pip/x",
        "tmp/.cache/uv/x",
        "opt/verl/.uv/x",
        "run/secrets/ca",
        "home/x/.netrc",
        "root/.docker/config.json",
        "opt/x/id_rsa",
        "etc/pip.conf",
        "etc/uv/uv.toml",
        "usr/local/share/ca-certificates/ours.crt",
        "tmp/requirements.txt",
    ],
)
def test_what_must_not_be_there(path):
    (found,) = leftovers.find({path: node()}, {})
    assert found.path == f"/{path}"
    assert found.why


@pytest.mark.parametrize(
    "path",
    [
        f"{SITE}/triton/common/../third_party/cuda/bin/ptxas",
        f"{SITE}/nvidia/cuda_runtime/include/cuda.h",
        "opt/verl/bin/ninja",
        "var/lib/apt/lists/lock",
        "usr/bin/gcc",
        "root/.bashrc",
        f"{SITE}/pip/_vendor/cachecontrol/cache.py",
        "etc/ssl/certs/ca-certificates.crt",
        f"{SITE}/ray/dashboard/auth.config",
    ],
)
def test_what_may_be_there(path):
    assert leftovers.find({path: node()}, {}) == ()


def test_an_empty_folder_does_no_harm():
    assert leftovers.find({"run/secrets": node("dir"), "root/.cache/x": node("dir")}, {}) == ()


def test_what_the_base_has_is_not_left_by_a_build():
    path = "etc/apt/sources.list"
    assert leftovers.find({path: node()}, {path: node()}) == ()
    assert len(leftovers.find({path: node()}, {path: node("symlink")})) == 1
