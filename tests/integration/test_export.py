"""An image as one file: what unsquashfs, siftool and Apptainer find in it; the same bytes whoever makes it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess

import pytest

from support import apptainer, debian_programs, layouts
from support.published import CONSTRAINTS, LAYERS, image
from verlstack import cli, export, oci, shell, sif
from verlstack.cache import Cache
from verlstack.errors import LockError, StorageError
from verlstack.progress import Silent
from verlstack.workshop import Workshop

LINKED = LAYERS | {
    "smoke": {"opt/a": b"a" * 5000, "opt/link": "-> a", "etc/environment": "-> ../opt/env", "opt/env": b"OLD=1\n"}
}


@pytest.fixture
def shop(tmp_path):
    with Cache(tmp_path / "cache").use() as cache:
        yield Workshop(
            constraints=tmp_path, smoke_tests=tmp_path, cache=cache, env={}, progress=Silent(), workers=1
        )  # fmt: skip


@pytest.fixture(scope="module")
def _squashfs():
    if not shutil.which("mksquashfs"):
        pytest.skip("mksquashfs is not installed: apt-get install squashfs-tools")


@pytest.mark.usefixtures("_squashfs")
def test_a_new_folder_is_made_and_one_that_cannot_be_is_told(shop, tmp_path):
    folder = image(tmp_path / "image")
    assert export.export(folder, tmp_path / "new" / "er" / "x.sqsh", shop).path.is_file()
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError) as e:
        export.export(folder, tmp_path / "file" / "x.sqsh", shop)
    assert e.value.where in {str(tmp_path / "file"), str(tmp_path / "file" / "x.sqsh")}


@pytest.mark.usefixtures("_squashfs")
def test_the_same_bytes_again(shop, tmp_path, monkeypatch):
    folder = image(tmp_path / "image", LINKED)
    one = export.export(folder, tmp_path / "one.sqsh", shop)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    umask = os.umask(0o077)
    try:
        other = export.export(image(tmp_path / "moved", LINKED), tmp_path / "other.sqsh", shop)
    finally:
        os.umask(umask)
    assert (tmp_path / "one.sqsh").read_bytes() == (tmp_path / "other.sqsh").read_bytes()
    assert one.sha256 == other.sha256 == hashlib.sha256((tmp_path / "one.sqsh").read_bytes()).hexdigest()
    assert one.image == oci.read_layout(folder)[0]
    assert "mksquashfs version" in one.program
    changed = export.export(image(tmp_path / "changed"), tmp_path / "changed.sqsh", shop)
    assert changed.sha256 != one.sha256
    assert [path.name for path in tmp_path.glob("*.sqsh*")] == [path.name for path in tmp_path.glob("*.sqsh")]
    assert list((tmp_path / "cache" / "verlstack-tmp").iterdir()) == []


@pytest.mark.usefixtures("_squashfs")
def test_what_is_in_it(shop, tmp_path):
    export.export(image(tmp_path / "image", LINKED), tmp_path / "x.sqsh", shop)
    words = ["unsquashfs", "-no-xattrs", "-d", tmp_path / "out", tmp_path / "x.sqsh"]
    subprocess.run(words, check=True, capture_output=True)
    out = tmp_path / "out"
    assert (out / "opt/a").read_bytes() == b"a" * 5000
    assert (out / "opt/link").readlink().name == "a"
    assert (out / "opt/verl/lib/python3.10/site-packages/torch/__init__.py").read_bytes() == b"x = 1\n"
    assert (out / "etc/environment").is_symlink(), "what the image links stays linked"
    assert (out / "opt/env").read_text() == "PATH=/usr/bin\n"
    done = subprocess.run(["sh", out / "etc/rc", "echo", "a b"], capture_output=True, text=True, check=True)
    assert done.stdout == "a b\n"
    assert subprocess.run(["sh", out / "etc/rc"], input="echo c", capture_output=True, text=True).stdout == "c\n"
    listed = subprocess.run(["unsquashfs", "-lln", tmp_path / "x.sqsh"], capture_output=True, text=True, check=True)
    rows = [line.split() for line in listed.stdout.splitlines() if "squashfs-root" in line]
    assert len(rows) > 20
    assert {row[1] for row in rows} == {"0/0"}
    assert {row[3] for row in rows} == {"2025-03-04"}


@pytest.mark.usefixtures("_squashfs")
def test_a_sif_is_what_siftool_writes(shop, tmp_path):
    siftool = debian_programs.program("siftool", tmp_path / "debian", newer=True)
    folder = image(tmp_path / "image", LINKED)
    export.export(folder, tmp_path / "image.sqsh", shop)
    said = export.export(folder, tmp_path / "x.sif", shop)
    data = (tmp_path / "x.sif").read_bytes()
    assert said.sha256 == hashlib.sha256(data).hexdigest()
    assert data[sif.START :] == (tmp_path / "image.sqsh").read_bytes()
    assert data.startswith(b"#!/usr/bin/env run-singularity\n\0")
    assert os.access(tmp_path / "x.sif", os.X_OK)
    kind = ["--datatype", "4", "--parttype", "2", "--partfs", "1", "--partarch", "2", "--groupid", "1"]
    subprocess.run([siftool, "new", tmp_path / "ref.sif"], check=True)
    subprocess.run(
        [siftool, "add", *kind, "--filename", "image", tmp_path / "ref.sif", tmp_path / "image.sqsh"], check=True
    )
    ours, theirs = bytearray(data), bytearray((tmp_path / "ref.sif").read_bytes())
    table = 4096
    own = (slice(0, 32), slice(48, 80), slice(table + 41, table + 57))  # how it starts, UUID and dates, dates
    for place in own:
        ours[place] = theirs[place] = bytes(place.stop - place.start)
    assert ours == theirs
    shown = subprocess.run([siftool, "header", tmp_path / "x.sif"], capture_output=True, text=True, check=True).stdout
    assert shown.count("2025-03-04 00:00:00 +0000 UTC") == 2
    again = export.export(image(tmp_path / "moved", LINKED), tmp_path / "again.sif", shop)
    assert again.sha256 == said.sha256


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    return apptainer.made(tmp_path_factory.mktemp("apptainer"), tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def busybox(tmp_path_factory):
    tree = debian_programs.unpacked("busybox-static", tmp_path_factory.mktemp("busybox"))
    return next(tree.rglob("bin/busybox")).read_bytes()


@pytest.mark.usefixtures("_squashfs")
@pytest.mark.parametrize("name", ["x.sif", "x.sqsh"])
def test_a_real_apptainer_starts_it(shop, tmp_path, machine, busybox, name):
    tree = {
        "bin/busybox": busybox,
        **{f"bin/{x}": "-> busybox" for x in ("sh", "env", "cat", "ls")},
        **{f"{x}/.keep": b"" for x in ("dev", "etc", "proc", "sys", "tmp", "var/tmp")},
        "opt/verl/bin/hello": b'#!/bin/sh\necho "hello $1 of $STACK"\n',
    }
    env = ["PATH=/opt/verl/bin:/bin", 'STACK={"a": "it\'s}"}', "CACHE=/tmp/c", "HOME=/image", "not.a-name=1"]
    config = {"created": "2025-03-04T00:00:00Z"}
    config["config"] = {"Env": env, "Cmd": ["hello", "Cmd"], "Labels": {"dev.verlstack.stack": "cu121"}}
    export.export(layouts.write(tmp_path / "image", tree, config=config), machine.files / name, shop)
    done = machine.run("exec", f"/mnt/{name}", "hello", "exec")
    assert done.stdout == 'hello exec of {"a": "it\'s}"}\n', done.stderr
    assert machine.run("run", f"/mnt/{name}").stdout == 'hello Cmd of {"a": "it\'s}"}\n'
    assert machine.run("run", f"/mnt/{name}", "hello", "run").stdout.startswith("hello run")
    seen = machine.run("exec", "--env", "STACK=mine", f"/mnt/{name}", "env").stdout.splitlines()
    assert "STACK=mine" in seen
    assert {"CACHE=/tmp/c", "HOME=/home/user"} <= set(seen), "the image's; but the user's own home"
    alone = machine.run("exec", "--cleanenv", "--no-home", f"/mnt/{name}", "env").stdout.splitlines()
    assert {"CACHE=/tmp/c", "HOME=/image"} <= set(alone), "no home is mounted"
    assert next(x for x in seen if x.startswith("PATH=")).startswith("PATH=/opt/verl/bin:/bin")
    if name.endswith(".sif"):
        assert "dev.verlstack.stack: cu121" in (done := machine.run("inspect", f"/mnt/{name}")).stdout, done.stderr


def test_a_damaged_layer_and_a_program_that_fails(shop, tmp_path):
    folder = image(tmp_path / "image")
    target = tmp_path / "x.sif"
    target.write_bytes(b"old")

    def failing(args, **_):
        version = args[1] == "-version"
        return shell.Result(
            args=(), returncode=0 if version else 1, stdout="mksquashfs version 0\n", stderr="disk full"
        )

    with pytest.raises(StorageError, match="disk full"):
        export.export(folder, target, shop, failing)

    def missing(args, **_):
        raise shell.ProgramMissingError("cannot run mksquashfs", where="mksquashfs")

    with pytest.raises(shell.ProgramMissingError) as caught:
        export.export(folder, target, shop, missing)
    assert "squashfs-tools" in caught.value.todo
    os.mkfifo(tmp_path / "pipe.sif")
    with pytest.raises(StorageError, match="no file that could be replaced"):
        export.export(folder, tmp_path / "pipe.sif", shop, failing)
    layer = oci.read_layout(folder)[1]["layers"][1]["digest"]
    (folder / oci.blob_path(layer)).write_bytes(b"x")
    with pytest.raises(LockError):
        export.export(folder, target, shop, failing)
    assert target.read_bytes() == b"old"
    assert list((tmp_path / "cache" / "verlstack-tmp").iterdir()) == []


@pytest.mark.parametrize("form", ["oci-archive", "docker-archive"])
def test_an_archive_of_what_was_mirrored(shop, tmp_path, form):
    """With its digest for a name, and a signature beside it."""
    folder = image(tmp_path / "image", LINKED)
    index = json.loads((folder / "index.json").read_text())
    digest = index["manifests"][0]["digest"]
    index["manifests"][0]["annotations"] = {oci.REF_NAME: digest}
    notes = {oci.REF_NAME: f"{digest.replace(':', '-')}.sig"}
    other = {"digest": f"sha256:{'1' * 64}", "mediaType": oci.MANIFEST, "size": 1, "annotations": notes}
    (folder / "index.json").write_text(json.dumps(index | {"manifests": [*index["manifests"], other]}))
    said = export.export(folder, tmp_path / "x.tar", shop, form=form)
    assert (said.image, said.program) == (digest, None)
    assert said.sha256 == hashlib.sha256((tmp_path / "x.tar").read_bytes()).hexdigest()
    skopeo = debian_programs.program("skopeo", tmp_path)
    words = [skopeo, "--insecure-policy", "copy", f"{form}:{tmp_path}/x.tar", f"oci:{tmp_path}/copy:x"]
    subprocess.run(words, check=True, capture_output=True)
    ours, theirs = (oci.read_layout(place)[2]["rootfs"] for place in (folder, tmp_path / "copy"))
    assert ours == theirs
    if form == "oci-archive":
        assert oci.read_layout(tmp_path / "copy")[0] == digest


@pytest.mark.usefixtures("_squashfs")
def test_the_command_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "constraints").mkdir()
    (tmp_path / "constraints" / "stacks.toml").write_text((CONSTRAINTS / "stacks.toml").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VERLSTACK_CACHE", str(tmp_path / "cache"))
    folder = image(tmp_path / "image")
    assert cli.main(["export", str(folder), "x.sqsh", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["sha256"] == hashlib.sha256((tmp_path / "x.sqsh").read_bytes()).hexdigest()
    assert cli.main(["export", str(folder), "x.sqsh"]) == 0
    assert said["sha256"] in capsys.readouterr().out
    assert cli.main(["export", "nothing", "x.sqsh"]) == 2
    assert cli.main(["export", str(folder), "x.tar", "--format", "sif"]) == 0
    assert (tmp_path / "x.tar").read_bytes().startswith(b"#!/usr/bin/env run-singularity")
