"""What is named to be read and is no file is refused at once, wherever it is named; a shell's pipe is read."""

import os
import threading
from pathlib import Path

import pytest

from verlstack import attest, bakefile, bundlefile, capabilities, content, layer, lockfile, oci, pins, reading, releases
from verlstack.base import aptsources
from verlstack.cache import sha256_file
from verlstack.check import asked
from verlstack.errors import VerlstackError
from verlstack.layoutplace import LayoutPlace
from verlstack.signing import keys


class _Lock:
    stack = "demo"
    digest = "0"


READERS = {
    "smoke report": lambda path: attest.smoke_report(path, "sha256:0"),
    "key": keys.public,
    "private key": lambda path: keys.private(path, lambda: b""),
    "pins": pins.names,
    "releases": lambda path: releases.load(path.rename(path.with_name(releases.FILE)).parent),
    "lock": lambda path: lockfile._read(path, "-"),
    "variables": lambda path: bakefile.of_lock(path.parent, _Lock()),
    "measured": capabilities._read,
    "bundle": bundlefile._opened,
    "apt sources": lambda path: aptsources.given(path, None, None),
    "authority": lambda path: aptsources.given(None, path, None),
    "file to check": asked.read,
    "hash": sha256_file,
    "a file for a layer": lambda path: content.Reader().read(content.OnDisk(path=path, size=0, sha256="")),
    "a stretch of one": lambda path: content.Reader().read(content.Slice(path=path, offset=0, size=1, sha256="")),
    "layer": lambda path: layer.opened(path, "none").__enter__(),
    "a document for an archive": oci._small,
    "index": lambda path: LayoutPlace(path.rename(path.with_name("index.json")).parent).resolve("x"),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "zero"])
def test_no_reader_waits_or_goes_on_for_ever(tmp_path, read, make):
    make(path := tmp_path / "demo.bake.json")
    with pytest.raises((VerlstackError, OSError), match="no regular file") as e:
        read(path)
    assert isinstance(e.value, OSError) or e.value.todo


def handles():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_refused_is_closed_again(tmp_path, make):
    make(tmp_path / "there")
    before = handles()
    with pytest.raises(OSError):
        reading.opened(tmp_path / "there")
    assert handles() == before


@pytest.fixture
def piped():
    """Where a shell's `<(command)` would lead, and the command, which says a line."""
    ours, theirs = os.pipe()
    writer = threading.Thread(target=lambda: (os.write(theirs, b"line\r\n"), os.close(theirs)))
    yield Path(f"/dev/fd/{ours}"), writer
    os.close(ours)


def test_a_pipe_of_the_shell_is_read_to_its_end(piped):
    path, writer = piped
    with reading.opened(path) as file:
        assert os.get_blocking(file.fileno())  # else what comes later is not waited for
        writer.start()
        assert file.read() == b"line\r\n"
    writer.join()


def test_a_text_has_the_line_endings_of_unix(piped):
    path, writer = piped
    writer.start()
    writer.join()
    assert reading.text(path) == "line\n"


def test_what_is_too_long_is_not_read(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    assert reading.data(tmp_path / "file", 3) == b"abc"
    with pytest.raises(OSError, match="more than 2 bytes"):
        reading.data(tmp_path / "file", 2)


def test_a_folder_is_called_one(tmp_path):
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        reading.opened(tmp_path)
