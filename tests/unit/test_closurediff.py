"""What sets two sides apart, and what the second costs to pull."""

import dataclasses

import pytest

from support import imagelayers
from verlstack import closurediff, pullcost, sides
from verlstack.closurediff import Side
from verlstack.pullcost import Layer

BASE = Layer(name="base x", diff_id="b", digest="B", size=1000, packages={"debian:gcc": "12"})
PYTHON = Layer(name="interpreter", diff_id="i", digest="I", size=500, packages={})
LIBS = Layer(name="libs", diff_id="l", digest="L", size=100, packages={"a": "1", "b": "1"})
HEAVY = Layer(name="torch", diff_id="t", digest="T", size=9000, packages={"torch": "2"})
NEW_LIBS = Layer(name="libs", diff_id="l2", digest="L2", size=120, packages={"a": "2", "c": "1"})


def image(*layers, kind="layout", digest="D1", **facts):
    own = {"lock": "sha256:1", "documents": 50} | facts
    return Side(name=digest, kind=kind, digest=digest, layers=layers, **own)


def lock(*layers, digest="sha256:1", compression="z"):
    bare = tuple(dataclasses.replace(x, digest=None, size=None) for x in layers)
    return Side(name="lock", kind="lock", lock=digest, layers=bare, compression=compression)


def test_added_removed_changed_and_the_layer_that_has_them():
    found = closurediff.compare(
        image(BASE, PYTHON, HEAVY, LIBS), image(BASE, PYTHON, HEAVY, NEW_LIBS, digest="D2", lock="sha256:2")
    )
    assert [(x.kind, x.name, x.one, x.other) for x in found.packages] == [
        ("changed", "a", "1", "2"),
        ("removed", "b", "1", None),
        ("added", "c", None, "1"),
    ]
    assert [(x.name, x.one, x.other) for x in found.layers] == [("libs", "l", "l2")]
    assert found.pull.layers == (("libs", 120),)
    assert (found.pull.known, found.pull.complete, found.same) == (170, True, False)


def test_the_packages_of_a_base_are_those_of_all_its_layers():
    """Each of them claims all, for no label tells which has which."""
    more = Layer(name="base x", diff_id="b2", digest="B2", size=1, packages=BASE.packages)
    found = closurediff.compare(image(BASE, PYTHON, LIBS), image(BASE, more, PYTHON, LIBS, digest="D2"))
    assert found.packages == ()
    assert [x.name for x in found.layers] == ["base x (2)"]
    newer = dataclasses.replace(more, packages={"debian:gcc": "13"})
    found = closurediff.compare(
        image(BASE, LIBS), image(dataclasses.replace(BASE, packages=newer.packages), newer, LIBS, digest="D2")
    )
    assert [(x.name, x.one, x.other) for x in found.packages] == [("debian:gcc", "12", "13")]


def test_debian_packages_are_the_bases(tmp_path):
    folder = imagelayers.image(tmp_path / "image", labels={"dev.verlstack.base.packages": "gcc=12"})
    side = sides.of_layout(folder, "x", {}, here=True)
    assert [x.packages for x in side.layers[:2]] == [{"debian:gcc": "12"}, {}]


def test_the_same_image_costs_nothing():
    found = closurediff.compare(image(BASE, LIBS), image(BASE, LIBS, kind="registry"))
    assert found.same
    assert found.pull.known == 0


def test_a_label_alone_makes_another_image():
    found = closurediff.compare(image(LIBS, labels={"x": "1"}), image(LIBS, digest="D2", labels={"x": "2"}))
    assert not found.same
    assert [(x.name, x.one, x.other) for x in found.labels] == [("x", "1", "2")]
    assert found.pull.known == 50


def test_a_lock_and_its_image_are_the_same():
    for pair in ((lock(LIBS), image(BASE, PYTHON, LIBS)), (image(BASE, PYTHON, LIBS), lock(LIBS))):
        found = closurediff.compare(*pair)
        assert found.same
        assert found.layers == ()
        assert found.pull.layers == ()
        assert any("does not name them" in note for note in found.notes)


def test_two_locks():
    found = closurediff.compare(lock(HEAVY, LIBS), lock(HEAVY, NEW_LIBS, digest="sha256:2"))
    assert [x.name for x in found.layers] == ["libs"]
    assert found.pull.layers == (("libs", None),)
    assert not found.pull.complete


def test_another_compression_changes_every_blob():
    found = closurediff.compare(lock(HEAVY, LIBS), lock(HEAVY, LIBS, digest="sha256:2", compression="y"))
    assert [name for name, _ in found.pull.layers] == ["torch", "libs"]
    assert not found.same


def test_a_layer_compressed_otherwise_is_fetched_though_nothing_in_it_differs():
    again = dataclasses.replace(LIBS, digest="other", size=77)
    found = closurediff.compare(image(LIBS), image(again, digest="D2"))
    assert found.layers == ()
    assert found.pull.layers == (("libs", 77),)


def test_without_a_lock_the_pins_in_the_labels_tell_some():
    unknown = dataclasses.replace(NEW_LIBS, packages=None)
    found = closurediff.compare(
        image(LIBS, pins={"a": "1"}), image(unknown, kind="registry", digest="D2", pins={"a": "2"})
    )
    assert [(x.name, x.other) for x in found.packages] == [("a", "2")]
    assert "the rest is not known" in found.notes[0]
    found = closurediff.compare(image(LIBS), image(unknown, kind="registry", digest="D2"))
    assert found.packages is None


def test_what_both_have_need_not_be_known():
    dark = dataclasses.replace(HEAVY, packages=None)
    found = closurediff.compare(image(dark, LIBS), image(dark, NEW_LIBS, kind="registry", digest="D2"))
    assert [x.name for x in found.packages] == ["a", "b", "c"]


def test_a_package_that_moves_to_another_layer_is_no_change():
    one = image(Layer(name="libs", diff_id="1", packages={"a": "1", "b": "1"}))
    other = image(
        Layer(name="libs", diff_id="2", packages={"b": "1"}), Layer(name="a", diff_id="3", packages={"a": "1"}),
        digest="D2",
    )  # fmt: skip
    found = closurediff.compare(one, other)
    assert found.packages == ()
    assert [(x.name, x.kind) for x in found.layers] == [("libs", "changed"), ("a", "added")]


def test_bases_of_several_layers():
    two = (dataclasses.replace(BASE, diff_id=x, digest=x) for x in ("b1", "b2"))
    changed = (dataclasses.replace(BASE, diff_id=x, digest=x) for x in ("b1", "b3"))
    found = closurediff.compare(image(*two), image(*changed, digest="D2"))
    assert [(x.name, x.one, x.other) for x in found.layers] == [("base x (2)", "b2", "b3")]


def test_a_layer_that_is_there_twice_is_fetched_once():
    cost = pullcost.cost((), (LIBS, LIBS), documents=0)
    assert cost.known == 100


def test_a_layer_of_unknown_size_leaves_the_documents_unknown():
    manifest = {"layers": [{"digest": "L", "size": 100, "mediaType": "m"}], "config": {"size": 1, "digest": "c"}}
    config = {"rootfs": {"diff_ids": ["l"]}, "history": [{"created": "now"}], "config": {"Labels": {}}}
    new = [dataclasses.replace(NEW_LIBS, size=None)]
    assert pullcost.documents(manifest, config, names=["libs"], new=new, labels={}) is None


@pytest.mark.parametrize("name", ["base bootstrapped from Debian", "interpreter"])
def test_what_no_lock_decides(name):
    assert pullcost.is_below(name)
    assert not pullcost.is_below("libs")
