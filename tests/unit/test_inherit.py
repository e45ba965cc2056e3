"""A stack that extends another: what it takes over, what it replaces, what it leaves, and every way to get it wrong."""

import re
import tomllib

import pytest

from support import stacks
from support.stacks import GONE, bent
from verlstack import pin, pins
from verlstack.errors import PinsError, UsageError

CHILD = {
    "extends": "demo",
    "title": "the child",
    "requires": {"torch": {"bound": "==2.4.0", "why": "newer"}, "vllm": {"bound": "==0.6.3", "why": "rollout"}},
}


def load(folder, name="child", document=None, **changes):
    own = {**CHILD, **changes}
    document = bent(stack__child={k: v for k, v in own.items() if v is not GONE}) if document is None else document
    return pins.load(stacks.write(folder, document), name)


def test_an_entry_replaces_an_entry_and_the_rest_is_the_parents(tmp_path):
    child, parent = load(tmp_path), load(tmp_path, "demo")
    assert child.requires == ("ray[default]>=2.10", "torch==2.4.0", "vllm==0.6.3")
    assert parent.requires == ("ray[default]>=2.10", "torch==2.3.1")
    assert (child.name, child.title) == ("child", "the child")
    same = ("python", "cuda", "platform", "registry_base", "build_tools", "verl", "environment", "flash_attn")
    assert all(getattr(child, name) == getattr(parent, name) for name in same)
    assert child.checksum != parent.checksum


def test_a_stack_that_says_all_itself_is_the_same_as_one_that_inherits_it(tmp_path):
    document = bent(stack__child={**CHILD, "requires": {}})
    written_out = bent(stack__child={**stacks.DOCUMENT["stack"]["demo"], "title": "the child"})
    assert load(tmp_path, document=document).checksum == load(tmp_path, document=written_out).checksum


def test_the_verl_of_a_child_is_whole(tmp_path):
    """A new tag with the hash of the old one's source would be a lie."""
    with pytest.raises(PinsError, match="why must be given"):
        load(tmp_path, verl={"tag": "v0.3.0.post1"})


def test_variables_and_flash_attn_by_entry(tmp_path):
    child = load(
        tmp_path,
        environment={"X": {"value": "1", "why": "new"}},
        flash_attn={"version": "2.6.3", "why": "twice the files"},
    )
    assert ("X", "1") in child.environment
    assert ("TORCH_COMPILE_DISABLE", "1") in child.environment
    assert (child.flash_attn.version, child.flash_attn.cuda_archs) == ("2.6.3", ("8.0", "9.0", "10.0"))


def test_a_compiled_wheel_is_of_one_torch_and_not_inherited(tmp_path):
    name = "flash_attn-2.5.9.post1-cp310-cp310-linux_x86_64.whl"
    pinned = {"wheel": name, "wheel_sha256": "8" * 64, "wheel_size": 9, "wheel_compiler": "nvcc 12.4.131"}
    pinned["prebuilt"] = "https://git.invalid/w.whl"
    document = bent(stack__child=CHILD)
    document["stack"]["demo"]["flash_attn"] |= pinned
    child, parent = load(tmp_path, document=document), load(tmp_path, "demo", document)
    assert (parent.flash_attn.wheel, parent.flash_attn.wheel_size) == (name, 9)
    assert (child.flash_attn.wheel, child.flash_attn.wheel_compiler, child.flash_attn.prebuilt) == (None, None, None)
    assert child.flash_attn.sdist == parent.flash_attn.sdist


def test_what_is_dropped_is_gone_from_the_child_alone(tmp_path):
    drop = {"flash_attn": "not tried", "requires.ray[default]": "no trainer", "environment.TORCH_COMPILE_DISABLE": "ok"}
    child, parent = load(tmp_path, drop=drop), load(tmp_path, "demo")
    assert (child.flash_attn, child.requires) == (None, ("torch==2.4.0", "vllm==0.6.3"))
    assert "TORCH_COMPILE_DISABLE" not in dict(child.environment)
    assert parent.flash_attn
    assert "TORCH_COMPILE_DISABLE" in dict(parent.environment)


def test_a_grandchild(tmp_path):
    document = bent(stack__child=CHILD, stack__third={"extends": "child", "title": "third", "python": "3.12"})
    third = load(tmp_path, "third", document)
    assert (third.python, third.cuda) == ("3.12", "12.1")
    assert "torch==2.4.0" in third.requires


def test_the_capabilities_of_a_parent_are_not_the_childs(tmp_path):
    """What a stack cannot do is measured, for each one."""
    document = bent(stack__child=CHILD, stack__demo__cannot={"vllm": "no release fits"})
    assert load(tmp_path, document=document).requires  # the key is known, and no part of the image
    with_it = load(tmp_path, "demo", document).checksum
    assert with_it == load(tmp_path, "demo").checksum


WRONG = {
    "no such parent": ({"extends": "dem"}, r"extends = 'dem' is no stack; known: child, demo"),
    "itself": ({"extends": "child"}, "extends goes round: child → child"),
    "a number": ({"extends": 1}, "extends = 1 is no str"),
    "no title": ({"title": GONE}, "title must be given"),
    "drops nothing": ({"drop": {"requires.click": "x"}}, r"drop\.'requires\.click': demo has nothing of that name"),
    "drops no part": ({"drop": {"verl2": "x"}}, r"drop\.'verl2': demo has nothing of that name"),
    "drops of no table": ({"drop": {"python.x": "x"}}, r"drop\.'python\.x': demo has nothing of that name"),
    "drops without reason": ({"drop": {"flash_attn": ""}}, r"drop\.flash_attn must be \"the reason\""),
    "drops alone": ({"extends": GONE, "drop": {"flash_attn": "x"}}, "without `extends` nothing is"),
    "one package twice": ({"requires": {"ray": {"bound": "==2.60.0", "why": "x"}}}, "requires bounds ray twice"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_named(name, tmp_path):
    changes, says = WRONG[name]
    with pytest.raises(PinsError) as e:
        load(tmp_path, **changes)
    assert re.search(says, e.value.what)
    assert e.value.where.endswith("[stack.child]")
    assert e.value.todo


def test_a_longer_circle(tmp_path):
    document = bent(stack__child={**CHILD, "extends": "third"}, stack__third={"extends": "child", "title": "x"})
    with pytest.raises(PinsError, match="extends goes round: child → third → child"):
        load(tmp_path, document=document)


TEXT = """[stack.demo.requires]
click = { bound = "==8.5.1", why = "ray" }
[stack.child]
extends = "demo"
[stack.child.requires]
torch = { bound = "==2.4.0", why = "newer" }
"""


def test_pinning_what_is_inherited_needs_a_reason_of_its_own():
    with pytest.raises(UsageError, match=r"child inherits click==8\.5\.1 from demo"):
        pin._repinned(TEXT, "child", "click", "8.5.2", None)
    one = pin._repinned(TEXT, "child", "click", "8.5.2", "fixed there")
    assert (one.key, one.before, one.why) == ("click", None, "fixed there")
    changed = tomllib.loads(pin.edit(TEXT, "stack.child.requires", one, where="f"))["stack"]
    assert changed["child"]["requires"]["click"]["bound"] == "==8.5.2"
    assert changed["demo"]["requires"]["click"]["bound"] == "==8.5.1"
