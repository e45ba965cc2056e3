"""What an image says of its stack inside: the same from both builders, short, and in the form that verldoctor reads."""

import dataclasses
import json
from pathlib import Path

import pytest

from support import locks
from support.locks import artifact
from support.stacks import GONE, bent, write
from verldoctor import stackfile
from verlstack import bakefile, build, lockfile, pins, stackvariable
from verlstack.base.bases import Base
from verlstack.layer import Blob
from verlstack.lockfile import Built, Compiled, Layer

CONSTRAINTS = Path(__file__).parents[2] / "constraints"
STACKS = pins.names(CONSTRAINTS / "stacks.toml")
MOST = 1200  # bytes; an environment is copied into every process


def a_lock(compiled=None):
    return locks.demo(
        wheels=(artifact("torch", "2.3.1"), artifact("ray", "2.60.0"), artifact("six", "1.17")),
        built=(Built(source=artifact("verl", "0.2.0.post2"), wheel="verl.whl", wheel_sha256="7" * 64),),
        build_tools=(artifact("pip", "25.0"),),
        compiled=compiled,
        layers=(Layer(name="libs", packages=("six",), diff_id=""),),
    )


def compiled(wheel=None):
    source = artifact("flash-attn", "2.5.9.post1")
    return Compiled(source=source, cuda_archs=("8.0",), cxx11_abi=False, tools=(), wheel=wheel)


@pytest.fixture
def stack(tmp_path):
    return pins.load(write(tmp_path), "demo")


def read(text):
    return stackfile.read({stackvariable.NAME: text})


def test_it_says_what_people_pinned_in_the_locks_versions(stack):
    """`ray[default]>=2.10` is pinned by people, six is not, pip builds and is not there."""
    assert json.loads(stackvariable.value(stack, a_lock(compiled()), complete=False)) == {
        "format": 1,
        "stack": "demo",
        "cuda": "12.1",
        "python": "3.10",
        "pins": {"torch": "2.3.1", "ray": "2.60.0", "verl": "0.2.0.post2", "flash-attn": "2.5.9.post1"},
        "left_out": ["flash-attn"],
        "environment": {"TORCH_COMPILE_DISABLE": "1"},
    }


def test_it_is_canonical(stack):
    text = stackvariable.value(stack, a_lock(), complete=True)
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    lock = dataclasses.replace(a_lock(), wheels=tuple(reversed(a_lock().wheels)))
    assert stackvariable.value(stack, lock, complete=True) == text


def test_what_is_in_the_image_is_not_left_out(stack):
    assert json.loads(stackvariable.value(stack, a_lock(compiled()), complete=True))["left_out"] == []


def test_a_stack_without_an_extension(tmp_path):
    stack = pins.load(write(tmp_path, bent(stack__demo__flash_attn=GONE)), "demo")
    said = json.loads(stackvariable.value(stack, a_lock(), complete=True))
    assert (said["left_out"], set(said["pins"])) == ([], {"torch", "ray", "verl"})


def environment(stack, lock, *, complete, **base):
    blob = Blob(path=Path("x"), digest="sha256:1", diff_id="sha256:2", size=1, raw_size=1, media_type="m")
    ground = Base(kind="debian", reference="d", layers=(blob,), local=True, **base)
    return dict(build._image(stack, lock, ground, [], fast=False, complete=complete).env)


@pytest.mark.parametrize("wheel", [None, artifact("flash-attn", "2.5.9.post1")], ids=["left out", "there"])
def test_both_builders_put_the_same_into_the_environment(stack, wheel):
    lock = a_lock(compiled(wheel))
    bake = json.loads(bakefile.render(stack, lock, uv="uv", torch=()))["variable"]["VERLSTACK_LOCK"]["default"]
    said = environment(stack, lock, complete=wheel is not None)[stackvariable.NAME]
    assert bake["args"][stackvariable.NAME] == said
    assert read(said).left_out == (frozenset() if wheel else {"flash-attn"})


def test_that_of_the_base_gives_way(stack):
    """A base may be an image of another stack."""
    given = environment(stack, a_lock(), complete=True, env=((stackvariable.NAME, "{}"), ("OTHER", "1")))
    assert read(given[stackvariable.NAME]).name == "demo"
    assert given["OTHER"] == "1"


@pytest.mark.parametrize("name", STACKS)
def test_the_real_stacks(name):
    stack = pins.load(CONSTRAINTS / "stacks.toml", name)
    lock = lockfile.load(CONSTRAINTS, stack)
    text = stackvariable.value(stack, lock, complete=False)
    assert len(text.encode()) < MOST
    assert not set(text) & set("$%\\'\n ")  # nothing that a Dockerfile, HCL or a shell would read in its own way
    said = read(text)
    assert not said.problem
    assert (said.name, said.cuda, said.python) == (name, stack.cuda, stack.python)
    assert {"torch", "transformers", "verl", "tensordict"} <= set(said.here)
    assert "NVIDIA_REQUIRE_CUDA" in said.environment


@pytest.mark.parametrize("name", STACKS)
def test_the_real_stacks_have_what_verldoctor_needs(name):
    lock = lockfile.load(CONSTRAINTS, pins.load(CONSTRAINTS / "stacks.toml", name))
    assert {"packaging", "pyyaml"} <= {wheel.project for wheel in lock.wheels}
