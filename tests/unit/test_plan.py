"""Which wheels fit, and which packages share a layer."""

import itertools
import types

import pytest
from packaging import tags as packaging_tags
from packaging.tags import Tag
from packaging.utils import parse_wheel_filename

from verlstack import plan
from verlstack.errors import PinsError
from verlstack.pins import Group

PLATFORM = "x86_64-manylinux_2_35"


def rank(filename, python="3.10", platform=PLATFORM):
    accepted = {tag: n for n, tag in enumerate(plan.tags(python, platform))}
    return min((accepted[t] for t in parse_wheel_filename(filename)[3] if t in accepted), default=None)


def test_the_order_is_that_of_packaging(monkeypatch):
    """The list that packaging gives on a machine with glibc 2.35, but for musl, which that machine could not load."""
    monkeypatch.setattr(packaging_tags._manylinux, "_get_glibc_version", lambda: (2, 35))
    monkeypatch.setattr(packaging_tags._manylinux, "_have_compatible_abi", lambda *_: True)
    platforms = [*packaging_tags._manylinux.platform_tags(["x86_64"]), "linux_x86_64"]
    want = [
        *packaging_tags.cpython_tags((3, 10), platforms=platforms),
        *packaging_tags.compatible_tags((3, 10), interpreter="cp310", platforms=platforms),
    ]
    assert list(plan.tags("3.10", PLATFORM)) == want


@pytest.mark.parametrize(
    ("better", "worse"),
    list(
        itertools.pairwise(
            [
                "x-1-cp310-cp310-manylinux_2_35_x86_64.whl",
                "x-1-cp310-cp310-manylinux_2_28_x86_64.whl",
                "x-1-cp310-cp310-manylinux_2_17_x86_64.whl",
                "x-1-cp310-cp310-manylinux2014_x86_64.whl",
                "x-1-cp310-cp310-manylinux2010_x86_64.whl",
                "x-1-cp310-cp310-manylinux1_x86_64.whl",
                "x-1-cp310-cp310-linux_x86_64.whl",
                "x-1-cp310-abi3-manylinux2014_x86_64.whl",
                "x-1-cp310-none-manylinux2014_x86_64.whl",
                "x-1-cp38-abi3-manylinux2014_x86_64.whl",
                "x-1-cp36-abi3-manylinux2014_x86_64.whl",
                "x-1-py3-none-manylinux2014_x86_64.whl",
                "x-1-cp310-none-any.whl",
                "x-1-py310-none-any.whl",
                "x-1-py3-none-any.whl",
                "x-1-py39-none-any.whl",
            ]
        )
    ),
)
def test_better_wheels_come_first(better, worse):
    assert rank(better) < rank(worse)


@pytest.mark.parametrize(
    "filename",
    [
        "x-1-cp311-cp311-manylinux2014_x86_64.whl",
        "x-1-cp310-cp310-manylinux_2_36_x86_64.whl",
        "x-1-cp310-cp310-manylinux2014_aarch64.whl",
        "x-1-cp310-cp310-musllinux_1_2_x86_64.whl",
        "x-1-cp310-cp310-win_amd64.whl",
        "x-1-cp311-abi3-manylinux2014_x86_64.whl",
        "x-1-py2-none-any.whl",
        "x-1-pp310-pypy310_pp73-manylinux2014_x86_64.whl",
    ],
)
def test_wheels_that_do_not_fit(filename):
    assert rank(filename) is None


def test_one_name_may_carry_several_tags():
    assert rank("x-1-py2.py3-none-any.whl") == rank("x-1-py3-none-any.whl")
    assert rank("x-1-cp310-cp310-manylinux_2_17_x86_64.manylinux2014_x86_64.whl") is not None


def test_no_tag_twice():
    found = plan.tags("3.12", "aarch64-manylinux_2_28")
    assert len(found) == len(set(found))
    assert Tag("cp312", "cp312", "manylinux_2_28_aarch64") == found[0]


@pytest.mark.parametrize(
    ("python", "platform"),
    [
        ("3.10.1", PLATFORM),
        ("3", PLATFORM),
        ("2.7", PLATFORM),
        ("", PLATFORM),
        ("3.10", "linux"),
        ("3.10", "x86_64-musllinux_1_2"),
        ("3.10", "x86_64-manylinux2014"),
        ("3.10", PLATFORM + "\n"),
    ],
)
def test_other_forms_are_refused(python, platform):
    with pytest.raises(PinsError, match="is not of the form") as e:
        plan.tags(python, platform)
    assert repr(python) in e.value.what
    assert repr(platform) in e.value.what


GROUPS = (Group(name="cloud", packages=("google-*", "grpcio")), Group(name="libs", packages=("*",)))


def stack(*, requires=(), groups=GROUPS, heavy=100):
    return types.SimpleNamespace(name="demo", requires=requires, groups=groups, heavy_bytes=heavy)


def test_heavy_packages_and_pinned_ones_have_their_own_layer():
    sizes = {"torch": 900, "grpcio": 10, "google-auth": 20, "tiny": 1, "six": 2, "ray": 5, "just": 100, "below": 99}
    found = plan.layers(stack(requires=("ray[default]>=2", "Torch==2.3.1")), sizes)
    assert found == (
        ("torch", ("torch",)),
        ("libs", ("below", "six", "tiny")),
        ("just", ("just",)),
        ("cloud", ("google-auth", "grpcio")),
        ("ray", ("ray",)),
    )


def test_every_package_is_in_one_layer():
    sizes = {f"p{n}": n * 7 % 150 for n in range(60)} | {"grpcio": 3}
    found = [p for _, packages in plan.layers(stack(requires=("p3==1",)), sizes) for p in packages]
    assert sorted(found) == sorted(sizes)


def test_layers_do_not_depend_on_the_order_of_packages():
    sizes = {"b": 5, "a": 5, "c": 100, "d": 100, "grpcio": 10}
    assert plan.layers(stack(), sizes) == plan.layers(stack(), dict(reversed(sizes.items())))
    assert [name for name, _ in plan.layers(stack(), sizes)] == ["c", "d", "cloud", "libs"]


def test_the_first_group_takes_a_package():
    groups = (Group(name="one", packages=("a*",)), Group(name="two", packages=("ab", "*")))
    assert plan.layers(stack(groups=groups), {"ab": 1, "b": 2}) == (("two", ("b",)), ("one", ("ab",)))


def test_globs_match_case_and_whole_names():
    groups = (Group(name="one", packages=("A*", "b")), Group(name="rest", packages=("*",)))
    assert plan.layers(stack(groups=groups), {"ab": 1, "bb": 1}) == (("rest", ("ab", "bb")),)


def test_an_empty_group_is_no_layer():
    assert plan.layers(stack(), {"six": 1}) == (("libs", ("six",)),)
    assert plan.layers(stack(), {}) == ()


def test_a_package_that_no_group_takes():
    with pytest.raises(PinsError, match="no layer group takes six") as e:
        plan.layers(stack(groups=GROUPS[:1]), {"six": 1})
    assert "demo" in e.value.where
    assert '"*"' in e.value.todo


@pytest.mark.parametrize("name", ["torch", plan.VERL_LAYER, plan.SMOKE_LAYER])
def test_layer_names_are_unique(name):
    with pytest.raises(PinsError):
        plan.layers(stack(groups=(Group(name=name, packages=("*",)),)), {"torch": 900, "six": 1})
