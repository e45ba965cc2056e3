"""Whoever only pulls has images and no pins: the verbs that work on an image alone, outside of a checkout."""

import json
import shutil

import pytest

from support import layouts, published
from verlstack import cli, publish
from verlstack.errors import StorageError, UsageError


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VERLSTACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("verlstack.engine.Engine.connect", lambda env: None)


def named(folder):
    index = json.loads((folder / "index.json").read_bytes())
    index["manifests"][0]["annotations"] = {"org.opencontainers.image.ref.name": "x"}
    (folder / "index.json").write_text(json.dumps(index))


def test_an_image_is_enough(tmp_path, capsys):
    named(published.image(tmp_path / "image"))
    assert cli.main(["mirror", "./image", "./carried"]) == 0
    assert cli.main(["diff", "image", "carried"]) == 0
    assert cli.main(["export", "./carried", "image.tar", "--format", "oci-archive"]) == 0
    assert (tmp_path / "image.tar").is_file()
    base = layouts.write(tmp_path / "base", published.LAYERS["base x"], config={"created": "2025-03-04T00:00:00Z"})
    named(base)
    assert cli.main(["sbom", str(base), "--output", "bill.json"]) == 0
    assert json.loads((tmp_path / "bill.json").read_text())["bomFormat"] == "CycloneDX"
    assert not (tmp_path / "constraints").exists()
    capsys.readouterr()


@pytest.mark.parametrize(
    "words",
    [["export", "--format", "oci-archive", "./image"], ["sbom", "./image", "--output"]],
    ids=["export", "sbom"],
)
def test_a_link_to_write_to_stays_one(tmp_path, words, capsys):
    layers, config = published.LAYERS["base x"], {"created": "2025-03-04T00:00:00Z"}
    named(layouts.write(tmp_path / "image", layers, config=config))
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/file")
    assert cli.main([*words, "link"]) == 0
    assert (tmp_path / "link").readlink().name == "file"
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["file"]
    (tmp_path / "loop").symlink_to("loop")
    assert cli.main([*words, "loop"]) == StorageError.exit_code
    assert "round in a circle" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["publish", "cu12", "127.0.0.1:1/verl"],
        ["export", "cu12", "x.sqsh"],
        ["sbom", "cu12"],
        ["attest", "cu12", "127.0.0.1:1/verl"],
        ["diff", "cu12", "cu12"],
        ["smoke", "cu12"],
    ],
)
def test_a_name_that_leads_nowhere(words, tmp_path, capsys):
    assert cli.main(words) == UsageError.exit_code
    assert "'cu12'" in (said := capsys.readouterr().err)
    assert "no constraints/stacks.toml here or above" in said
    (tmp_path / "constraints").mkdir()
    shutil.copy(published.CONSTRAINTS / "stacks.toml", "constraints")
    assert cli.main(words) == UsageError.exit_code
    said = capsys.readouterr().err
    assert "did you mean 'cu121'?" in said
    assert "stacks: cu121, cu121-vllm, cu130" in said


def test_an_image_of_an_older_lock_is_published_and_that_is_said(tmp_path):
    folder = tmp_path / "constraints"
    assert publish.outdated("cu121", published.LOCK, folder) == ""
    folder.mkdir()
    for name in ("stacks.toml", "cu121.txt", "cu121.lock.toml"):
        shutil.copy(published.CONSTRAINTS / name, folder)
    said = publish.outdated("cu121", published.LOCK, folder)
    assert said.startswith(f"the image is of lock {published.LOCK}, the present one of cu121 is sha256:")
    assert publish.outdated("cu121", said.rpartition(" ")[2], folder) == ""
    assert publish.outdated("another", published.LOCK, folder) == ""
    pins = folder / "stacks.toml"
    pins.write_text(pins.read_text().replace('title = "verl v0.2 on', 'title = "other on'))
    assert "cu121.lock.toml" in publish.outdated("cu121", said.rpartition(" ")[2], folder)
    pins.write_text("nothing")
    assert "the pins are not TOML" in publish.outdated("cu121", published.LOCK, folder)
