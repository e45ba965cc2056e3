"""The verbs for base images on the tiny stack: composing onto a layout, and a registry base put into the pins."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from support import layouts
from support.fake_registry import Fake


def base(tiny, *words, code=0):
    flags = ("--constraints", str(tiny.root / "constraints"), "--python-tree", sys.base_prefix)
    done = subprocess.run(
        [sys.executable, "-m", "verlstack", "base", *map(str, words), *flags],
        env=tiny.environment(), cwd=tiny.root, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture
def unfit():
    """A reference to an image in which nothing can be compiled."""
    registry = Fake()
    yield registry.image([(layouts.GZIP, layouts.tarball({"etc/os-release": b"ID=debian\n"}))])
    registry.close()


def files(tiny):
    return {path.name: path.read_bytes() for path in (tiny.root / "constraints").iterdir()}


def rows(tiny, *words):
    return json.loads(tiny.run("build", "--json", *words).stdout)["rows"]


def test_a_stack_on_a_base_of_our_own_is_the_same_above_it(tiny):
    base(tiny, "build", "tiny", "--base", tiny.base)
    layout = tiny.root / "dist" / "base-tiny"
    plain = rows(tiny)
    composed = rows(tiny, "--base", f"oci:{layout}")
    above = [(row["layer"], row["diff_id"]) for row in plain[1:]]
    assert [(row["layer"], row["diff_id"]) for row in composed if row["layer"] != "base"] == above
    known = json.loads(base(tiny, "show", layout, "--stack", "tiny", "--json"))
    assert [x["diff_id"] for x in known["layers"]] == [row["diff_id"] for row in composed[:2]]
    assert (known["unfit"], known["local"]) == (None, False)


def test_the_layout_of_a_base_is_the_same_again_and_elsewhere(tiny):
    first = base(tiny, "build", "tiny", "--base", tiny.base)
    second = base(tiny, "build", "tiny", "--base", tiny.base, "--dist", tiny.root / "other")
    assert first.split()[1] == second.split()[1]


def test_use_writes_the_reference_and_the_lock(tiny):
    ref = tiny.base.removeprefix("registry:")
    before = files(tiny)
    report = json.loads(base(tiny, "use", "tiny", ref, "--json"))
    assert (report["before"], report["after"]) == (None, ref)
    assert report["lock"] != report["lock_before"]
    after = files(tiny)
    assert {name for name in after if after[name] != before.get(name)} == {"stacks.toml", "tiny.lock.toml"}
    old, new = (texts["stacks.toml"].decode().splitlines() for texts in (before, after))
    assert [line for line in new if line not in old] == [f'registry_base = "{ref}"']
    built = json.loads(tiny.run("build", "--base", "auto", "--json").stdout)
    assert (built["base"], "sha256:" + built["lock"].removeprefix("sha256:")) == (ref, report["lock"])


@pytest.mark.parametrize(
    ("reference", "code", "text"),
    [
        ("{host}/team/base@sha256:" + "0" * 64, 5, "no such image"),
        ("127.0.0.1:1/team/base@sha256:" + "0" * 64, 15, "cannot be reached"),
        ("{host}/team/base:1", 2, "a tag can move"),
        ("{unfit}", 9, "no C compiler"),
    ],
)
def test_use_of_what_cannot_be_had_or_does_not_fit_writes_nothing(tiny, unfit, reference, code, text):
    host = tiny.base.removeprefix("registry:").partition("/")[0]
    before = files(tiny)
    assert text in base(tiny, "use", "tiny", reference.format(host=host, unfit=unfit), code=code)
    assert files(tiny) == before
