"""`verlstack pin` and `verlstack diff` on the tiny stack: what they say is what a later build gives."""

from __future__ import annotations

import json
import shutil

import pytest

from support.synthetic import WHEELS, serve
from support.wheels import Wheel
from verlstack.pin import UNTRIED

METADATA = "Metadata-Version: 2.1\nName: alpha\nVersion: {}\nRequires-Dist: {}\nRequires-Dist: heavy\n"


@pytest.fixture
def newer(tiny):
    """The tiny stack, built, with an alpha 1.1 on its index that wants no beta, and so no gamma."""
    old, new = WHEELS[0], Wheel(name="alpha", version="1.1", files={"alpha/__init__.py": b"new = True\n"},
                                info={"METADATA": METADATA.format("1.1", "delta").encode()})  # fmt: skip
    delta = Wheel(name="delta", files={"delta.py": b"d = 1\n"})
    serve(tiny.index, {"alpha": {w.filename: w.to_bytes() for w in (old, new)}})
    serve(tiny.index, {"delta": {delta.filename: delta.to_bytes()}})
    tiny.run("build")
    return tiny


def state(stack):
    return {p.name: p.read_bytes() for p in (stack.root / "constraints").iterdir()}


def diff(stack, one, other, *, code):
    words = stack.words("diff")
    at = words.index("tiny")
    import subprocess

    words[at : at + 1] = [str(one), str(other), "--json"]
    done = subprocess.run(words, env=stack.environment(), cwd=stack.root, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_a_pin_says_what_the_image_will_cost_and_what_changes(newer):
    shutil.copytree(newer.root / "dist" / "tiny", newer.root / "dist" / "old")
    before = state(newer)
    (newer.root / "old").mkdir()
    for name in ("tiny.lock.toml", "tiny.txt"):
        (newer.root / "old" / name).write_bytes(before[name])
    found = json.loads(newer.run("pin", "alpha==1.1", "--json").stdout)
    report = found["report"]
    assert [(x["name"], x["one"], x["other"]) for x in report["packages"]] == [
        ("alpha", "1.0", "1.1"),
        ("beta", "1.0", None),
        ("delta", None, "1.0"),
        ("gamma", "1.0", None),
    ]
    assert [x["name"] for x in report["layers"]] == ["libs", "alpha"]
    assert report["pins"][0] == {
        "key": "alpha", "before": "==1.0", "after": "==1.1", "why": UNTRIED, "lost": "test"
    }  # fmt: skip
    changed = (newer.root / "constraints" / "stacks.toml").read_text()
    was = 'bound = "==1.0", why = "test"'
    assert changed == before["stacks.toml"].decode().replace(was, f'bound = "==1.1", why = "{UNTRIED}"')
    newer.run("build")
    images = diff(newer, newer.root / "dist" / "old", "tiny", code=1)  # a stack's name is its lock
    assert images["comparison"]["packages"] == report["packages"]
    images = diff(newer, newer.root / "dist" / "old", newer.root / "dist" / "tiny", code=1)
    assert images["comparison"]["pull"] == report["pull"]
    assert images["pull_bytes"] == found["pull_bytes"]  # foretold to the byte
    assert images["comparison"]["pull"]["documents"] == report["pull"]["documents"]
    assert images["comparison"]["packages"] == report["packages"]  # the old lock is gone: its layers were read
    locks = diff(newer, newer.root / "old" / "tiny.lock.toml", "tiny", code=1)
    assert locks["comparison"]["packages"] == report["packages"]
    assert locks["comparison"]["pull"]["layers"] == report["pull"]["layers"]


def test_words_for_people(newer):
    done = newer.run("pin", "alpha==1.1")
    assert f"its reason is now: {UNTRIED}; that of ==1.0 was: test" in done.stdout
    assert "removed  gamma  1.0 → -" in done.stdout
    assert "to pull, where the old image is: 0.0" in done.stdout
    again = newer.run("pin", "alpha==1.0", "--why", "1.1 forgets beta")
    assert "its reason" not in again.stdout
    assert 'why = "1.1 forgets beta"' in (newer.root / "constraints" / "stacks.toml").read_text()


def test_pins_that_are_known_to_break_are_pinned_and_told(newer):
    """Ray 2.10 and click 8.4.0 resolve; `check` knows that they do not import together."""
    for name, version in (("ray", "2.10.0"), ("click", "8.4.0")):
        wheel = Wheel(name=name, version=version, files={f"{name}/__init__.py": b""})
        serve(newer.index, {name: {wheel.filename: wheel.to_bytes()}})
    done = newer.run("pin", "ray==2.10.0", "--why", "test")
    assert "nothing breaks" in done.stdout
    done = newer.run("pin", "click==8.4.0", "--why", "test", "--json", check=False)
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert [(x["code"], x["subject"]) for x in found["check"]["findings"] if x["severity"] == "fail"] == [
        ("RELEASE-PAIR", "click 8.4.0")
    ]
    again = newer.run("pin", "alpha==1.1", check=False)
    assert again.returncode == 1, "what broke before breaks still"
    assert "RELEASE-PAIR" not in again.stdout
    assert "found before, too" in again.stdout
    assert 'click = { bound = "==8.4.0"' in (newer.root / "constraints" / "stacks.toml").read_text()


@pytest.mark.parametrize(
    ("word", "code", "told"),
    [
        ("alpha==7.7", 3, "alpha==7.7"),  # there is none
        ("verl==0.3.0", 2, "pinned by its hash"),
        ("alpha", 2, "is no pin"),
        ("beta==1.0", 2, "carries its reason"),
    ],
)
def test_what_fails_leaves_everything_as_it_was(newer, word, code, told):
    before = state(newer)
    done = newer.run("pin", word, check=False)
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert state(newer) == before


def test_a_wheel_that_cannot_be_composed_leaves_everything_as_it_was(newer):
    rogue = Wheel(name="alpha", version="1.2", files={"heavy/__init__.py": b"mine\n"},
                  info={"METADATA": METADATA.format("1.2", "heavy").encode()})  # fmt: skip
    serve(newer.index, {"alpha": {rogue.filename: rogue.to_bytes()}})
    before = state(newer)
    assert newer.run("pin", "alpha==1.2", check=False).returncode == 7
    assert state(newer) == before


def test_stacks_that_inherit_the_pin_are_named(newer):
    path = newer.root / "constraints" / "stacks.toml"
    own = '[stack.own.requires]\nalpha = { bound = "==1.0", why = "its own" }\n'
    path.write_text(f'{path.read_text()}\n[stack.child]\nextends = "tiny"\ntitle = "a child"\n'
                    f'[stack.own]\nextends = "tiny"\ntitle = "another"\n{own}')  # fmt: skip
    said = newer.run("pin", "alpha==1.1").stdout
    assert "child inherits this, so its lock is stale now: run `verlstack lock child`" in said
    assert "own inherits" not in said


def test_the_same_version_changes_and_costs_nothing(newer):
    before = state(newer)
    found = json.loads(newer.run("pin", "alpha==1.0", "--json").stdout)
    assert found["pull_bytes"] == 0
    assert found["report"]["layers"] == found["report"]["packages"] == []
    assert state(newer) == before


def test_a_stale_lock_has_nothing_to_compare_with(newer):
    path = newer.root / "constraints" / "stacks.toml"
    path.write_text(path.read_text().replace('title = "a tiny stack"', 'title = "another"'))
    before = state(newer)
    done = newer.run("pin", "alpha==1.1", check=False)
    assert done.returncode == 4
    assert state(newer) == before


def test_the_same_is_exit_status_0(newer):
    folder = newer.root / "dist" / "tiny"
    shutil.copytree(folder, newer.root / "copy")
    assert diff(newer, folder, newer.root / "copy", code=0)["pull_bytes"] == 0
    assert diff(newer, "tiny", folder, code=0)["comparison"]["same"] is True
    assert diff(newer, newer.digest(), folder, code=0)["comparison"]["same"] is True
