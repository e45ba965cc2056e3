"""References, credentials, and what a stack of layers is found to hold."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import tarfile

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from verlstack import images
from verlstack.base import imagescan, reference
from verlstack.errors import BaseImageError, UsageError

DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "host", "repository", "tag", "api"),
    [
        ("ubuntu", "docker.io", "library/ubuntu", None, "https://registry-1.docker.io/v2/library/ubuntu"),
        (
            "nvidia/cuda:12.1.1-base",
            "docker.io",
            "nvidia/cuda",
            "12.1.1-base",
            "https://registry-1.docker.io/v2/nvidia/cuda",
        ),
        (
            "index.docker.io/ubuntu",
            "docker.io",
            "library/ubuntu",
            None,
            "https://registry-1.docker.io/v2/library/ubuntu",
        ),
        ("ghcr.io/a/b/c", "ghcr.io", "a/b/c", None, "https://ghcr.io/v2/a/b/c"),
        ("localhost/x", "localhost", "x", None, "http://localhost/v2/x"),
        ("localhost:5000/x:1", "localhost:5000", "x", "1", "http://localhost:5000/v2/x"),
        ("127.0.0.1:5000/x", "127.0.0.1:5000", "x", None, "http://127.0.0.1:5000/v2/x"),
        ("registry.corp:5000/x", "registry.corp:5000", "x", None, "https://registry.corp:5000/v2/x"),
    ],
)
def test_references(text, host, repository, tag, api):
    ref = reference.parse(f"{text}@{DIGEST}")
    assert (ref.host, ref.repository, ref.tag, ref.digest, ref.api) == (host, repository, tag, DIGEST, api)
    assert reference.parse(str(ref)) == ref


@pytest.mark.parametrize("text", ["ubuntu", "ubuntu:22.04", "localhost:5000/x:latest"])
def test_a_reference_without_digest_is_refused(text):
    with pytest.raises(UsageError, match="a tag can move"):
        reference.parse(text)


@pytest.mark.parametrize(
    "text", ["", "@" + DIGEST, "UPPER/case@" + DIGEST, "a b@" + DIGEST, "x@sha256:12", "x/../y@" + DIGEST]
)
def test_nonsense_is_no_reference(text):
    with pytest.raises(UsageError):
        reference.parse(text)


def test_an_error_shows_what_the_user_wrote():
    with pytest.raises(UsageError) as caught:
        reference.place("reg.example.org/UPPER:tag", insecure=False)
    assert caught.value.what == "'reg.example.org/UPPER:tag' is not an image reference"
    assert "TAG" in caught.value.todo


@pytest.mark.parametrize("text", ["sha256:2109205e94", "sha256:AB", DIGEST + "0"])
def test_a_part_of_a_digest_is_no_tag_at_docker_hub(text, tmp_path):
    for read in (
        reference.parse,
        lambda part: reference.parse(f"{part}@{DIGEST}"),
        lambda part: images.find(part, tmp_path),
        lambda part: images.remote(part, tmp_path, {}, offline=False),
    ):
        with pytest.raises(UsageError, match="no whole digest") as e:
            read(text)
        assert e.value.todo == "give all 64 digits"


@given(st.text(max_size=60))
def test_any_text_is_a_reference_or_a_usage_error(text):
    with contextlib.suppress(UsageError):
        assert reference.parse(text).digest.startswith("sha256:")


@pytest.mark.parametrize("text", ["team/x", "ubuntu", "x", "", "reg.io", "reg.io/X", "reg.io/x@sha256:12"])
def test_a_place_to_write_to_names_its_registry(text):
    with pytest.raises(UsageError):
        reference.place(text, insecure=False)


@pytest.mark.parametrize("host", ["reg.io", "10.0.0.1:5000", "127.0.0.1.evil.io", "localhost.evil.io:80"])
def test_plain_http_is_for_this_machine_alone(host):
    with pytest.raises(UsageError, match="--insecure"):
        reference.place(f"{host}/x", insecure=True)


def layer(tmp_path, *members, kind="none"):
    """Members: (name, bytes) a file, (name, None) a directory, (name, "-> target") a link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as out:
        for name, what in members:
            info = tarfile.TarInfo(name)
            if what is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(what, str):
                info.type, info.linkname = tarfile.SYMTYPE, what.removeprefix("-> ")
            else:
                info.size = len(what)
            out.addfile(info, io.BytesIO(what) if isinstance(what, bytes) else None)
    raw = buffer.getvalue()
    path = tmp_path / hashlib.sha256(raw).hexdigest()
    pack = {"none": bytes, "gzip": gzip.compress, "zstd": zstandard.compress}[kind]
    path.write_bytes(pack(raw))
    return path, f"sha256:{hashlib.sha256(raw).hexdigest()}", len(raw)


@pytest.mark.parametrize("kind", ["none", "gzip", "zstd"])
def test_one_pass_gives_the_diff_id(tmp_path, kind):
    path, diff_id, size = layer(tmp_path, ("./usr/bin/cc", b"x"), kind=kind)
    tree = imagescan.Tree()
    assert imagescan.lay(tree, path, kind) == (diff_id, size)
    assert tree.is_file("usr/bin/cc")


@pytest.mark.parametrize("kind", ["none", "gzip", "zstd"])
def test_a_layer_that_is_no_tar_is_refused(tmp_path, kind):
    path = tmp_path / "x"
    path.write_bytes(b"nonsense" * 200)
    with pytest.raises(BaseImageError, match="is no"):
        imagescan.lay(imagescan.Tree(), path, kind)


def stack(tmp_path, *layers):
    tree = imagescan.Tree()
    for members in layers:
        imagescan.lay(tree, layer(tmp_path, *members)[0], "none")
    return tree


def test_links_are_followed_as_linux_does(tmp_path):
    tree = stack(tmp_path, [
        ("bin", "-> usr/bin"), ("usr/bin/gcc-12", b""), ("usr/bin/gcc", "-> gcc-12"),
        ("usr/bin/cc", "-> /etc/alternatives/cc"), ("etc/alternatives/cc", "-> ../../bin/gcc"),
        ("usr/bin/loop", "-> loop"), ("usr/bin/gone", "-> nowhere"), ("bin/late", b""),
        ("etc/os-release", "-> ../usr/lib/os-release"), ("usr/lib/os-release", b"ID=debian\nVERSION_ID=12\n"),
    ])  # fmt: skip
    assert tree.real("bin/cc") == "usr/bin/gcc-12"
    assert tree.is_file("usr/bin/late"), "an entry below a link to a directory lands in that directory"
    assert not tree.is_file("usr/bin/loop")
    assert not tree.is_file("usr/bin/gone")
    assert not tree.is_file("bin")
    assert "VERSION_ID" in tree.text("etc/os-release")
    assert tree.text("etc/none") == ""


def test_whiteouts_take_away_what_lies_below(tmp_path):
    below = [("usr/bin/cc", b""), ("opt/a/x", b""), ("opt/a/y", b""), ("etc/d", None), ("etc/d/f", b"")]
    tree = stack(tmp_path, below, [
        ("usr/bin/.wh.cc", b""), ("opt/a/z", b""), ("opt/a/.wh..wh..opq", b""), ("etc/d", b"now a file"),
    ])  # fmt: skip
    assert not tree.is_file("usr/bin/cc")
    assert not tree.is_file("opt/a/x")
    assert tree.is_file("opt/a/z"), "an opaque folder keeps what its own layer puts there"
    assert tree.is_file("etc/d")
    assert not tree.is_file("etc/d/f")


def test_libraries_are_those_of_the_loaders_folders(tmp_path):
    tree = stack(
        tmp_path, [("usr/lib/x86_64-linux-gnu/libz.so.1", b""), ("opt/x/libz.so.2", b""), ("usr/lib/readme", b"")]
    )
    assert tree.libraries() == ["libz.so.1"]
