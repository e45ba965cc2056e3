"""What an image says of itself, the tag made of it, and images that must not be published."""

from __future__ import annotations

import pytest

from support import published
from support.published import LAYERS, image, metadata
from verlstack import imagefacts
from verlstack.errors import LockError, PublishError


def test_the_tag_says_what_is_inside(tmp_path):
    facts = imagefacts.read(image(tmp_path))
    assert facts.tag == published.TAG
    assert imagefacts.IMMUTABLE.fullmatch(facts.tag)
    assert (facts.cuda, facts.date, facts.versions["torch"]) == ("12.1", "20250304", "2.3.1")
    imagefacts.verify(tmp_path)


def test_the_tag_does_not_say_what_was_asked_for(tmp_path):
    pins = {"dev.verlstack.pins": "torch==9.9.9 transformers==9.9.9"}
    layers = LAYERS | {"torch": metadata("torch", "2.4.0", "nvidia-cuda-runtime==13.0.48")}
    layers.pop("flash-attn")
    tag = imagefacts.read(image(tmp_path, layers, pins)).tag
    assert tag == "cu121-torch2.4.0-cuda13.0-transformers4.41.2-sdpa-verl0.2.0.post2-20250304-11111111"


@pytest.mark.parametrize("requires", [(), ("numpy", "not a requirement!"), ("nvidia-cuda-runtime-cu12",)])
def test_a_torch_without_cuda(tmp_path, requires):
    tag = imagefacts.read(image(tmp_path, LAYERS | {"torch": metadata("torch", "2.3.1+cpu", *requires)})).tag
    assert "-torch2.3.1_cpu-cpu-" in tag


def test_images_of_two_locks_have_two_tags(tmp_path):
    """A bump of what the tag does not name is another lock, and keeps all the other layers, for the epoch stays."""
    tags = {
        imagefacts.read(image(tmp_path / x, labels={"dev.verlstack.lock": f"sha256:{x}1234567{'0' * 56}"})).tag
        for x in ("a", "b")
    }
    assert tags == {published.TAG.replace("1" * 8, "a1234567"), published.TAG.replace("1" * 8, "b1234567")}


def test_tags_of_before_do_not_move_either():
    assert imagefacts.IMMUTABLE.fullmatch(published.TAG.removesuffix("-11111111"))


def test_what_a_stack_lacks_altogether_is_left_out(tmp_path):
    layers = {"verl": LAYERS["verl"]}
    assert imagefacts.read(image(tmp_path, layers)).tag == "cu121-sdpa-verl0.2.0.post2-20250304-11111111"


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ({"torch": LAYERS["torch"]}, "no layer of this image is called verl"),
        (LAYERS | {"torch": LAYERS["verl"]}, "called torch holds no metadata of torch"),
        (LAYERS | {"verl": {"a": b""}}, "called verl holds no metadata"),
        (LAYERS | {"verl": {f"{published.SITE}/verl-1.dist-info/METADATA": b"\xff\0"}}, "holds no metadata"),
    ],
)
def test_layers_that_are_not_what_they_are_called(tmp_path, layers, text):
    with pytest.raises(LockError, match=text):
        imagefacts.read(image(tmp_path, layers))


def test_layers_that_are_damaged(tmp_path):
    folder = image(tmp_path)
    path = max((folder / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(LockError, match="not what its digest says"):
        imagefacts.verify(folder)
    path.write_bytes(b"no archive")
    with pytest.raises(LockError):
        imagefacts.read(folder)


@pytest.mark.parametrize("created", ["", "yesterday", "99999-01-01"])
def test_an_image_without_a_date(tmp_path, created):
    with pytest.raises(LockError, match="when the image was made"):
        imagefacts.read(image(tmp_path, created=created))


def test_an_image_that_may_be_published(tmp_path):
    assert imagefacts.check(image(tmp_path))["dev.verlstack.stack"] == "cu121"


LEFT_OUT = {"dev.verlstack.left-out": "flash-attn", "org.opencontainers.image.title": "verlstack cu121-sdpa"}

BOTH = LEFT_OUT | {
    "dev.verlstack.base.scope": "local",
    "org.opencontainers.image.title": "verlstack cu121-sdpa-local-sdpa",
}


@pytest.mark.parametrize(
    ("labels", "what", "todo"),
    [
        ({"dev.verlstack.base.scope": "local"}, "base of this image is local", "cu121-local"),
        ({"dev.verlstack.base.scope": None}, "base of this image is local", "base use"),
        (LEFT_OUT, "lacks flash-attn", "cu121-sdpa"),
        ({"dev.verlstack.compression": "fast"}, "--fast", "verlstack build cu121"),
        ({"dev.verlstack.stack": None}, "which stack and lock", "mirror"),
        ({"dev.verlstack.lock": None}, "which stack and lock", "mirror"),
        ({"dev.verlstack.lock": "weird"}, "which stack and lock", "mirror"),
    ],
)
def test_images_that_must_not_be_published(tmp_path, labels, what, todo):
    with pytest.raises(PublishError, match=what) as caught:
        imagefacts.check(image(tmp_path, labels=labels))
    assert todo in caught.value.todo


def test_all_that_stands_against_publishing_is_said_at_once(tmp_path):
    labels = LEFT_OUT | {"dev.verlstack.base.scope": "local"}
    with pytest.raises(PublishError, match=r"base of this image is local .*; this image lacks flash-attn") as caught:
        imagefacts.check(image(tmp_path, labels=labels))
    assert caught.value.todo.endswith("a stack whose name says it: cu121-local-sdpa")


@pytest.mark.parametrize(
    ("stack", "labels"),
    [
        ("cu121-local", {"dev.verlstack.base.scope": "local"}),
        ("cu121-sdpa", LEFT_OUT | {"org.opencontainers.image.title": "verlstack cu121-sdpa-sdpa"}),
        ("cu121-sdpa-local", BOTH),
    ],
)
def test_a_stack_whose_name_says_so(tmp_path, stack, labels):
    imagefacts.check(image(tmp_path, labels=labels | {"dev.verlstack.stack": stack}))


@pytest.mark.parametrize("stack", ["cu121-localized", "cu121"])
def test_a_name_that_only_looks_like_it(tmp_path, stack):
    with pytest.raises(PublishError):
        imagefacts.check(image(tmp_path, labels={"dev.verlstack.stack": stack, "dev.verlstack.base.scope": "local"}))


@pytest.mark.parametrize("tag", ["stable", "cu121", "2025-03-04", "cu121-verl", "20250304"])
def test_tags_that_people_move(tag):
    assert not imagefacts.IMMUTABLE.fullmatch(tag)
