"""A disk that refuses what a user asked for outside of the cache: the advice is about that place."""

from pathlib import Path

import pytest

from support.published import image
from verlstack import bundlefile, export, shell
from verlstack.cache import Cache
from verlstack.errors import StorageError, UsageError
from verlstack.progress import Silent
from verlstack.workshop import Workshop


@pytest.fixture
def refused(tmp_path):
    """A path in what is no folder: root is refused, too."""
    (tmp_path / "file").touch()
    return tmp_path / "file" / "out"


def test_a_bundle(refused):
    with pytest.raises(StorageError, match="cannot write") as e:
        bundlefile.write(refused, {}, {}, epoch=0, progress=lambda _: None)
    assert "choose another FILE" in e.value.todo


def test_a_squashfs_is_refused_before_the_image_is_unpacked(refused, tmp_path, monkeypatch):
    ran = []

    def run(args, **_):
        ran.append(Path(args[0]).name)
        return shell.Result(args=(), returncode=0, stdout="mksquashfs version 0\n", stderr="")

    monkeypatch.setattr("verlstack.unpacked.laid", lambda *_: pytest.fail("it was unpacked"))
    shop = Workshop(
        constraints=tmp_path, smoke_tests=tmp_path, cache=Cache(tmp_path), env={}, progress=Silent(), workers=1
    )
    with pytest.raises(StorageError, match="cannot write") as e:
        export.export(image(tmp_path / "image"), refused, shop, run, form="sqsh")
    assert "choose another FILE" in e.value.todo
    assert ran == ["mksquashfs"]  # for its version


@pytest.mark.parametrize(("name", "form"), [("x.sif", "sif"), ("x.sqsh", "sqsh"), ("x.squashfs", "sqsh")])
def test_what_to_export_is_told_by_the_ending(name, form):
    assert export.form_of(Path(name)) == form


@pytest.mark.parametrize("name", ["x.tar", "x", "x.SIF", "sif"])
def test_an_ending_that_does_not_tell_is_asked_about(name):
    with pytest.raises(UsageError, match="does not say what it shall be"):
        export.form_of(Path(name))
