"""One pin in the text of stacks.toml: bound and reason change, every comment and everything else stays."""

import tomllib
from pathlib import Path

import pytest

from support import stacks
from verlstack import pin, pins
from verlstack.errors import PinsError, UsageError

TEXT = """# first
[stack.s.requires]   # what it wants
torch = { bound = "==1.0", why = "said \\"so\\"" }  # and a comment
"ray[default]" = { bound = ">=2", why = "needs it" }

[stack.s.other]
torch = { bound = "==9", why = "not this one" }
"""


def change(text=TEXT, *, key="torch", before="==1.0", after="==2.0", why="new"):
    one = pin.Repinned(key=key, before=before, after=after, why=why, lost=None)
    return pin.edit(text, "stack.s.requires", one, where="f")


def test_bound_and_reason_are_replaced_and_the_comment_stays():
    old = 'torch = { bound = "==1.0", why = "said \\"so\\"" }'
    assert change() == TEXT.replace(old, 'torch = { bound = "==2.0", why = "new" }')


def test_a_name_with_an_extra():
    assert '"ray[default]" = { bound = "==2.0", why = "new" }\n' in change(key="ray[default]", before=">=2")


def test_a_new_pin_comes_below_the_header():
    changed = change(key="six", before=None)
    assert changed == TEXT.replace("wants\n", 'wants\nsix = { bound = "==2.0", why = "new" }\n')


def test_a_reason_of_any_text():
    why = 'a"b\\c ü\x7f'
    assert tomllib.loads(change(why=why))["stack"]["s"]["requires"]["torch"]["why"] == why


@pytest.mark.parametrize(
    "text",
    [
        "[stack.s]\nrequires = { torch = { bound = '==1.0', why = 'x' } }\n",  # no header
        TEXT.replace('torch = { bound = "==1.0", ', 'torch = { why = "x", bound = "==1.0" }\n#'),  # another order
        TEXT.replace('torch = { bound = "==1.0", why = "said \\"so\\"" }', "torch.bound = '==1.0'\ntorch.why = 'x'"),
        TEXT.replace("[stack.s.requires]", 'x = """\n[stack.s.requires]\n"""\n[stack.s.requires]'),  # in a string
    ],
)
def test_what_cannot_be_edited_safely_is_left_to_people(text):
    with pytest.raises(PinsError) as caught:
        change(text)
    assert 'torch = { bound = "==2.0"' in caught.value.todo


def test_the_real_pins_change_in_one_line():
    text = (Path(__file__).parents[2] / "constraints" / "stacks.toml").read_text()
    one = pin._repinned(text, "cu121", "Ray", "9.9", None)
    changed = pin.edit(text, "stack.cu121.requires", one, where="f")
    rows = [(a, b) for a, b in zip(text.splitlines(), changed.splitlines(), strict=True) if a != b]
    assert len(rows) == 1
    assert rows[0][1] == rows[0][0].replace(one.before, "==9.9").replace(one.lost, pin.UNTRIED)
    assert "not tried" in one.why
    assert one.lost == tomllib.loads(text)["stack"]["cu121"]["requires"]["ray[default]"]["why"]


def test_a_reason_is_not_kept_for_a_version_that_nobody_tried():
    one = pin._repinned(TEXT, "s", "torch", "2.0", None)
    assert (one.why, one.lost) == (pin.UNTRIED, 'said "so"')
    same = pin._repinned(TEXT, "s", "torch", "1.0", None)
    assert (same.why, same.lost) == ('said "so"', None)
    given = pin._repinned(TEXT, "s", "torch", "2.0", "new")
    assert (given.why, given.lost) == ("new", None)


HEIR = """[stack.t]
extends = "s" # of s

# about the next
[stack.s]
title = "x"

[stack.s.requires]
torch = { bound = "==1.0", why = "x" }
"""


@pytest.mark.parametrize(
    "tail", [HEIR, HEIR.partition("\n\n# about")[0], '[stack.t]\nextends = "s"\n[stack.t.cannot]\n']
)
def test_a_stack_that_inherits_all_of_them_gets_a_table_for_its_own(tail):
    changed = tail
    for key in ("torch", "ray[default]"):
        one = pin.Repinned(key=key, before=None, after="==2.0", why="new", lost=None)
        changed = pin.edit(changed, "stack.t.requires", one, where="f")
    both = {"torch": {"bound": "==2.0", "why": "new"}, "ray[default]": {"bound": "==2.0", "why": "new"}}
    before = tomllib.loads(tail)
    before["stack"]["t"]["requires"] = both
    assert tomllib.loads(changed) == before
    assert tail != HEIR or "# of s\n\n[stack.t.requires]\n" in changed


@pytest.mark.parametrize(
    "word", ["alpha", "alpha>=1", "alpha==1.*", "alpha==1,<3", "alpha==x", "alpha @ http://h/x", "a==1; os_name=='nt'"]
)
def test_what_is_no_pin(word, tmp_path):
    with pytest.raises(UsageError, match="is no pin"):
        pin._parse(word, pins.load(stacks.write(tmp_path), "demo"))


@pytest.mark.parametrize(("word", "table"), [("verl==0.3", "verl"), ("flash_attn==2.6", "flash_attn")])
def test_what_is_pinned_by_its_source(word, table, tmp_path):
    with pytest.raises(UsageError) as caught:
        pin._parse(word, pins.load(stacks.write(tmp_path), "demo"))
    assert f"[stack.demo.{table}]" in caught.value.todo


def test_two_versions_of_one_package(tmp_path):
    stack = pins.load(stacks.write(tmp_path), "demo")
    with pytest.raises(UsageError, match=r"b-c is to be pinned to 1 and to 2"):
        pin._versions(["b_c==1", "B.c==2"], stack)
    assert pin._versions(["b_c==1", "b-c==1"], stack) == {"b-c": "1"}


def test_a_new_pin_needs_its_reason():
    with pytest.raises(UsageError, match="carries its reason"):
        pin._repinned(TEXT, "s", "six", "1.0", None)
    assert pin._repinned(TEXT, "s", "six", "1.0", "because").why == "because"


@pytest.mark.parametrize(
    ("typed", "meant"), [("torhc", "'torch'"), ("rya", None), ("raj", None), ("toch", "'torch'"), ("six", None)]
)
def test_a_pin_that_was_mistyped(typed, meant):
    with pytest.raises(UsageError) as e:
        pin._repinned(TEXT, "s", typed, "1.0", None)
    assert "--why" in e.value.todo
    assert e.value.todo.startswith(f"did you mean {meant}?" if meant else "give the reason")
