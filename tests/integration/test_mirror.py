"""Images with all that refers to them from registry to registry and over an air gap, and tags that people move."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support import debian_programs
from support.fake_registry import OCI_MANIFEST, sha
from support.published import CONSTRAINTS, LAYERS, TAG, image
from support.real_registry import Real
from support.writable_registry import Fault, Writable
from verlstack import cli, images, mirror, oci, promote, publish, upload
from verlstack.base import reference
from verlstack.cache import Cache
from verlstack.errors import FetchError, HashMismatchError, PublishError, StorageError, UsageError
from verlstack.progress import Silent
from verlstack.workshop import Workshop


@pytest.fixture
def fakes():
    made = [Writable(), Writable()]
    yield made
    for one in made:
        one.close()


@pytest.fixture
def real(tmp_path):
    program = debian_programs.program("docker-registry", tmp_path)
    (tmp_path / "real").mkdir()
    with Real(program, tmp_path / "real") as one:
        yield one


@pytest.fixture
def shop(tmp_path, monkeypatch):
    means = upload.means
    monkeypatch.setattr(upload, "means", lambda *a: {**means(*a), "sleep": lambda _: None})
    with Cache(tmp_path / "cache").use() as cache:
        env = {"HOME": str(tmp_path)}
        yield Workshop(
            constraints=tmp_path, smoke_tests=tmp_path, cache=cache, env=env, progress=Silent(), workers=1
        )  # fmt: skip


def writer(place):
    return upload.Writer(reference.place(place, insecure=True))


def statement(subject, number, kind="application/vnd.test"):
    """A manifest that refers to a digest, and its one blob."""
    blob = f"statement {number}".encode()
    layers = [{"digest": sha(blob), "mediaType": "text/plain", "size": len(blob)}]
    document = {
        "schemaVersion": 2, "mediaType": OCI_MANIFEST, "artifactType": kind, "layers": layers,
        "config": {"digest": sha(b"{}"), "mediaType": "application/vnd.oci.empty.v1+json", "size": 2},
        "subject": {"digest": subject, "mediaType": OCI_MANIFEST, "size": 1},
    }  # fmt: skip
    return json.dumps(document).encode(), blob


def refer(place, subject, numbers, folder):
    """Attach statements to a subject; their digests."""
    made = []
    with writer(place) as client:
        client.push_bytes(b"{}", folder)
        for number in numbers:
            manifest, blob = statement(subject, number)
            client.push_bytes(blob, folder)
            made.append(client.attach(manifest))
    return made


def source(place, tmp_path, shop):
    """An image with a signature in cosign's way, two statements, and one that refers to a statement; its digest."""
    folder = image(tmp_path / "image")
    digest = publish.publish(folder, place, shop, insecure=True, record=False).digest
    (tmp_path / "blobs").mkdir()
    first, _ = refer(place, digest, (1, 2), tmp_path / "blobs")
    refer(place, first, (3,), tmp_path / "blobs")
    manifest, blob = statement(digest, 4)
    document = json.loads(manifest)
    del document["subject"]
    with writer(place) as client:
        client.push_bytes(blob, tmp_path / "blobs")
        client.push_manifest(json.dumps(document).encode(), OCI_MANIFEST, f"{digest.replace(':', '-')}.sig")
    return digest


def check(place, digest, tag):
    """Everything is there, and every blob of it right."""
    with writer(place) as client:
        assert client.resolve(tag) == digest
        assert client.resolve(f"{digest.replace(':', '-')}.sig")
        rows = client.referrers(digest)
        assert len(rows) == 2
        inner = [x for row in rows for x in client.referrers(row["digest"])]
        assert len(inner) == 1
        for row in (*rows, *inner, {"digest": digest}):
            manifest = client.manifest(row["digest"])
            for part in (manifest["config"], *manifest["layers"]):
                client.raw("blobs", part["digest"])


@pytest.mark.parametrize("api", [True, False])
def test_from_registry_to_registry(fakes, shop, tmp_path, api):
    """With the referrers API on one side alone, too."""
    one, other = fakes
    one.has_referrers, other.has_referrers = api, not api
    digest = source(f"{one.host}/team/base", tmp_path, shop)
    target = f"{other.host}/team/base:here"
    done = mirror.mirror(
        f"{one.host}/team/base:{TAG}", target, shop, dist=tmp_path, insecure=True
    )  # fmt: skip
    assert (done.digest, done.referrers) == (digest, 3)
    check(f"{other.host}/team/base", digest, "here")
    assert other.order[-1] == "here", "the name comes last"
    again = mirror.mirror(f"{one.host}/team/base@{digest}", target, shop, dist=tmp_path, insecure=True)
    assert (again.blobs.pushed, again.blobs.sent) == (0, 0)
    assert list((tmp_path / "cache" / "parts").iterdir()) == []


def test_over_an_air_gap_and_back(fakes, real, shop, tmp_path):
    """Debian's registry has no referrers API; the folder is read by skopeo, too."""
    digest = source(f"{real.host}/team/verl", tmp_path, shop)
    folder = tmp_path / "carried"
    words = {"dist": tmp_path, "insecure": True}
    done = mirror.mirror(f"{real.host}/team/verl:{TAG}", str(folder), shop, **words)
    assert done.referrers == 3
    assert (oci.read_layout(folder)[0], oci.tag_of(folder)) == (digest, TAG)
    images.check_blobs(folder, 1)
    before = sorted((path, path.read_bytes()) for path in folder.rglob("*") if path.is_file())
    mirror.mirror(f"{real.host}/team/verl:{TAG}", str(folder), shop, **words)
    assert sorted((path, path.read_bytes()) for path in folder.rglob("*") if path.is_file()) == before
    mirror.mirror(str(folder), f"{fakes[0].host}/team/base:{TAG}", shop, **words)
    check(f"{fakes[0].host}/team/base", digest, TAG)


def test_within_one_registry_nothing_is_sent(real, shop, tmp_path):
    digest = source(f"{real.host}/team/verl", tmp_path, shop)
    target = f"{real.host}/mirror/verl:{TAG}"
    done = mirror.mirror(f"{real.host}/team/verl@{digest}", target, shop, dist=tmp_path, insecure=True)
    assert (done.blobs.pushed, done.blobs.sent) == (0, 0)
    assert done.blobs.mounted > 6
    check(f"{real.host}/mirror/verl", digest, TAG)


def test_an_index_comes_whole(fakes, shop, tmp_path):
    one, other = fakes
    members = []
    for number in range(2):
        folder = image(tmp_path / str(number), LAYERS | {"smoke": {"a": str(number).encode()}})
        for path in (folder / "blobs/sha256").iterdir():
            one.put(path.read_bytes())
        digest = oci.read_layout(folder)[0]
        members.append({"digest": digest, "mediaType": OCI_MANIFEST, "size": len(one.blobs[digest])})
    index = one.put({"schemaVersion": 2, "mediaType": oci.INDEX, "manifests": members})
    mirror.mirror(f"{one.host}/team/base@{index}", f"{other.host}/team/base", shop, dist=tmp_path, insecure=True)
    assert set(one.blobs) == set(other.blobs)
    assert other.tags == {}


def test_a_base_may_go_where_an_image_on_a_local_one_may_not(fakes, shop, tmp_path):
    local = {"dev.verlstack.base.scope": "local"}
    base = image(tmp_path / "base", labels=local | {"dev.verlstack.stack": None, "dev.verlstack.lock": None})
    place = f"{fakes[0].host}/team/base:base"
    (base / "index.json").write_text(named(base, "base-cu121"))
    mirror.mirror(str(base), place, shop, dist=tmp_path, insecure=True)
    folder = image(tmp_path / "image", labels=local)
    with pytest.raises(PublishError, match="local"):
        mirror.mirror(str(folder), place, shop, dist=tmp_path, insecure=True)


def named(folder, name):
    index = json.loads((folder / "index.json").read_text())
    index["manifests"][0]["annotations"] = {oci.REF_NAME: name}
    return json.dumps(index)


def test_an_immutable_tag_does_not_move(fakes, shop, tmp_path):
    one, other = fakes
    digest = source(f"{one.host}/team/base", tmp_path, shop)
    theirs = other.put({"schemaVersion": 2, "layers": []})
    other.tags = {TAG: theirs, "stable": theirs}
    origin = f"{one.host}/team/base:{TAG}"
    with pytest.raises(PublishError, match="never moves"):
        mirror.mirror(origin, f"{other.host}/team/base:{TAG}", shop, dist=tmp_path, insecure=True)
    mirror.mirror(origin, f"{other.host}/team/base:stable", shop, dist=tmp_path, insecure=True)
    assert other.tags["stable"] == digest
    assert other.tags[TAG] == theirs


def test_what_lies_is_not_mirrored(fakes, shop, tmp_path):
    one, other = fakes
    digest = source(f"{one.host}/team/base", tmp_path, shop)
    words = (f"{one.host}/team/base:{TAG}", f"{other.host}/team/base:here", shop)
    layer = json.loads(one.blobs[digest])["layers"][0]["digest"]
    sound = one.blobs[layer]
    one.blobs[layer] = bytes(len(sound))
    with pytest.raises(HashMismatchError):
        mirror.mirror(*words, dist=tmp_path, insecure=True)
    one.blobs[layer] = sound
    stranger, _ = statement(f"sha256:{'0' * 64}", 9)
    row = {"digest": one.put(stranger), "mediaType": OCI_MANIFEST, "size": len(stranger)}
    one.referring[digest].append(row)
    with pytest.raises(FetchError, match="does not"):
        mirror.mirror(*words, dist=tmp_path, insecure=True)
    one.referring[digest].pop()
    one.planted.append(Fault(method="GET", path=f"/manifests/{digest}", status=200, body=b'{"config": 1}'))
    with pytest.raises(HashMismatchError):
        mirror.mirror(f"{one.host}/team/base@{digest}", words[1], shop, dist=tmp_path, insecure=True)
    assert other.tags == {}
    mirror.mirror(*words, dist=tmp_path, insecure=True)
    check(f"{other.host}/team/base", digest, "here")


@pytest.mark.parametrize("document", [{"config": 1}, {"layers": [1]}, {"layers": 1}, {"manifests": [{}]}, None])
def test_a_manifest_that_describes_nothing(fakes, shop, tmp_path, document):
    one, other = fakes
    digest = one.put(document or b"[]")
    with pytest.raises(FetchError):
        mirror.mirror(f"{one.host}/team/base@{digest}", f"{other.host}/team/base", shop, dist=tmp_path, insecure=True)


@pytest.mark.parametrize("target", ["reg.io/x@sha256:" + "1" * 64, "nowhere"])
def test_targets_that_are_none(fakes, shop, tmp_path, target):
    source(f"{fakes[0].host}/team/base", tmp_path, shop)
    with pytest.raises(UsageError):
        mirror.mirror(f"{fakes[0].host}/team/base:{TAG}", target, shop, dist=tmp_path, insecure=True)


def test_a_folder_holds_one_image(fakes, shop, tmp_path):
    source(f"{fakes[0].host}/team/base", tmp_path, shop)
    folder = tmp_path / "carried"
    mirror.mirror(f"{fakes[0].host}/team/base:{TAG}", str(folder), shop, dist=tmp_path, insecure=True)
    fakes[0].tags["other"] = fakes[0].tags[TAG]
    with pytest.raises(UsageError, match="another image"):
        mirror.mirror(f"{fakes[0].host}/team/base:other", str(folder), shop, dist=tmp_path, insecure=True)
    with pytest.raises(UsageError, match="names no image"):
        mirror.mirror(f"{fakes[0].host}/team/base", str(folder), shop, dist=tmp_path, insecure=True)


def test_a_layout_with_a_pipe_for_a_layer_is_not_waited_for(fakes, shop, tmp_path):
    folder = image(tmp_path / "image")
    (folder / "index.json").write_text(named(folder, "x"))
    path = folder / oci.blob_path(oci.read_layout(folder)[1]["layers"][0]["digest"])
    path.unlink()
    os.mkfifo(path)
    for target in (f"{fakes[0].host}/team/base", str(tmp_path / "other")):
        with pytest.raises(OSError, match="no regular file"):
            mirror.mirror(str(folder), target, shop, dist=tmp_path, insecure=True)


def test_a_folder_that_is_full_is_named_and_not_the_cache(fakes, shop, tmp_path, monkeypatch):
    source(f"{fakes[0].host}/team/base", tmp_path, shop)

    def full(handle):
        raise OSError(errno.ENOSPC, "as fsync says it")

    monkeypatch.setattr("verlstack.cache.os.fsync", full)
    folder = tmp_path / "carried"
    with pytest.raises(StorageError, match="no space left") as e:
        mirror.mirror(f"{fakes[0].host}/team/base:{TAG}", str(folder), shop, dist=tmp_path, insecure=True)
    assert e.value.where.startswith(f"{folder}/")
    assert e.value.todo == "see that this folder can be written and has space, or name another"


def test_a_folder_whose_index_could_not_be_written_again(fakes, shop, tmp_path):
    digest = source(f"{fakes[0].host}/team/base", tmp_path, shop)
    (tmp_path / "carried").mkdir()
    row = {"digest": digest, "mediaType": OCI_MANIFEST, "size": 1, "annotations": {"a": "\ud800"}}
    (tmp_path / "carried" / "index.json").write_text(json.dumps({"manifests": [row]}))
    with pytest.raises(UsageError, match="not an OCI layout"):
        mirror.mirror(f"{fakes[0].host}/team/base:{TAG}", str(tmp_path / "carried"), shop, dist=tmp_path, insecure=True)


def test_a_tag_is_moved_and_moved_back_with_a_log(fakes, shop, tmp_path):
    fake, log = fakes[0], tmp_path / "log"
    place = f"{fake.host}/team/base"
    one, two = (fake.put({"schemaVersion": 2, "layers": [], "number": number}) for number in (1, 2))
    promote.promote(f"{place}@{one}", "stable", shop, insecure=True, log=log)
    done = promote.promote(f"{place}@{two}", "stable", shop, insecure=True, log=log)
    assert (done.before, done.after, fake.tags["stable"]) == (one, two, two)
    promote.promote(f"{place}@{done.before}", "stable", shop, insecure=True, log=log)
    assert fake.tags["stable"] == one
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(x["before"], x["after"]) for x in rows] == [(None, one), (one, two), (two, one)]
    assert {x["place"] for x in rows} == {place}
    assert all(x["by"] and x["at"].endswith("Z") for x in rows)


def test_what_cannot_be_promoted(fakes, shop, tmp_path, monkeypatch):
    fake, log = fakes[0], tmp_path / "log"
    place = f"{fake.host}/team/base"
    one, two = (fake.put({"schemaVersion": 2, "layers": [], "number": number}) for number in (1, 2))
    fake.tags[TAG] = one
    with pytest.raises(PublishError, match="never moves"):
        promote.promote(f"{place}@{two}", TAG, shop, insecure=True, log=log)
    for ref, tag, error in (
        (place, "stable", UsageError),
        (f"{place}:{TAG}", "no tag", UsageError),
        (f"{place}:{TAG}", "a/b", UsageError),
        (f"{place}:missing", "stable", FetchError),
        (f"{place}@sha256:{'1' * 64}", "stable", FetchError),
    ):
        with pytest.raises(error):
            promote.promote(ref, tag, shop, insecure=True, log=log)
    os.mkfifo(tmp_path / "pipe")
    for where in (tmp_path / "nowhere" / "log", Path("/dev/full"), tmp_path / "pipe", tmp_path, tmp_path / ("n" * 300)):
        with pytest.raises(StorageError, match=r"cannot write") as e:
            promote.promote(f"{place}@{two}", "stable", shop, insecure=True, log=where)
        assert (e.value.where, e.value.todo) == (str(where), "name a file that can be written, with `--log FILE`")
    assert fake.tags == {TAG: one}
    monkeypatch.setattr(upload.Writer, "push_manifest", refuses)
    for before in (None, "", "a line\n"):
        if before is not None:
            log.write_text(before)
        with pytest.raises(FetchError, match="refused"):
            promote.promote(f"{place}@{two}", "stable", shop, insecure=True, log=log)
        assert (log.read_text() if log.exists() else None) == before


def refuses(*_):
    raise FetchError("refused")


@pytest.mark.parametrize("told", [True, False])
def test_a_move_whose_answer_is_lost_stays_in_the_log(fakes, shop, tmp_path, monkeypatch, told):
    fake, log = fakes[0], tmp_path / "log"
    one = fake.put({"schemaVersion": 2, "layers": []})

    def loses(*words):
        if told:
            fake.tags["stable"] = one
        else:
            monkeypatch.setattr(upload.Writer, "resolve", refuses)
        refuses(*words)

    monkeypatch.setattr(upload.Writer, "push_manifest", loses)
    with pytest.raises(FetchError, match="refused"):
        promote.promote(f"{fake.host}/team/base@{one}", "stable", shop, insecure=True, log=log)
    (line,) = log.read_text().splitlines()
    assert json.loads(line)["after"] == one


def test_a_line_that_another_run_writes_into_a_new_log_is_not_taken_back(fakes, shop, tmp_path, monkeypatch):
    log, real = tmp_path / "log", fcntl.flock
    one = fakes[0].put({"schemaVersion": 2, "layers": []})

    def flock(handle, how):
        real(handle, how)
        log.write_text("theirs\n")

    monkeypatch.setattr("verlstack.promote.fcntl.flock", flock)
    monkeypatch.setattr(upload.Writer, "push_manifest", refuses)
    with pytest.raises(FetchError, match="refused"):
        promote.promote(f"{fakes[0].host}/team/base@{one}", "stable", shop, insecure=True, log=log)
    assert log.read_text() == "theirs\n"


class Halves(io.FileIO):
    """A file on a disk that takes a few bytes at a time."""

    def write(self, data):
        return super().write(data[:7])


def test_the_line_is_whole_and_on_the_disk_before_the_tag_moves(fakes, shop, tmp_path, monkeypatch):
    log, real, seen = tmp_path / "log", promote._alone, []
    one = fakes[0].put({"schemaVersion": 2, "layers": []})

    @contextlib.contextmanager
    def alone(*words):
        with real(*words) as out:
            assert os.get_blocking(out.fileno()), "a pipe that is full is waited for"
            yield Halves(out.fileno(), "ab", closefd=False)

    monkeypatch.setattr(promote, "_alone", alone)
    monkeypatch.setattr("verlstack.promote.os.fsync", lambda handle: seen.append(os.fstat(handle).st_ino))
    monkeypatch.setattr(upload.Writer, "push_manifest", lambda *_: seen.append(json.loads(log.read_text())["after"]))
    promote.promote(f"{fakes[0].host}/team/base@{one}", "stable", shop, insecure=True, log=log)
    assert seen == [log.stat().st_ino, one]


def test_a_line_begins_where_the_last_one_has_no_end(fakes, shop, tmp_path, monkeypatch):
    log = tmp_path / "log"
    one = fakes[0].put({"schemaVersion": 2, "layers": []})
    log.write_text("theirs")
    monkeypatch.setitem(shop.env, "LOGNAME", "x\udcff\n")
    for _ in range(2):
        promote.promote(f"{fakes[0].host}/team/base@{one}", "stable", shop, insecure=True, log=log)
    theirs, *ours = log.read_text().splitlines()
    assert (theirs, [json.loads(x)["by"] for x in ours]) == ("theirs", [r"x\udcff\n"] * 2)
    monkeypatch.setattr(upload.Writer, "push_manifest", refuses)
    log.write_text("theirs")
    with pytest.raises(FetchError, match="refused"):
        promote.promote(f"{fakes[0].host}/team/base@{one}", "stable", shop, insecure=True, log=log)
    assert log.read_text() == "theirs"


def test_a_log_that_is_locked_is_waited_for_aloud(fakes, shop, tmp_path):
    log = tmp_path / "log"
    one = fakes[0].put({"schemaVersion": 2, "layers": []})
    with log.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        class Told(Silent):
            def say(self, text):
                assert text == f"note: waiting for another run, which has {log} locked"
                fcntl.flock(other, fcntl.LOCK_UN)

        shop = dataclasses.replace(shop, progress=Told())
        promote.promote(f"{fakes[0].host}/team/base@{one}", "stable", shop, insecure=True, log=log)
    assert json.loads(log.read_text())["after"] == one


def test_the_log_may_be_a_pipe_that_is_read(fakes, shop):
    one = fakes[0].put({"schemaVersion": 2, "layers": []})
    ours, theirs = os.pipe()
    promote.promote(
        f"{fakes[0].host}/team/base@{one}", "stable", shop, insecure=True, log=Path(f"/dev/fd/{theirs}")
    )  # fmt: skip
    os.close(theirs)
    with os.fdopen(ours) as reader:
        assert json.loads(reader.read())["after"] == one


def test_a_log_that_another_run_removes_is_opened_anew(fakes, shop, tmp_path, monkeypatch):
    fake, log, real, seen = fakes[0], tmp_path / "log", fcntl.flock, []
    one = fake.put({"schemaVersion": 2, "layers": []})

    def flock(handle, how):
        real(handle, how)
        if log.exists() and not seen:
            seen.append(log.unlink())

    monkeypatch.setattr("verlstack.promote.fcntl.flock", flock)
    promote.promote(f"{fake.host}/team/base@{one}", "stable", shop, insecure=True, log=log)
    assert len(log.read_text().splitlines()) == len(seen) == 1


def test_the_command_line(fakes, shop, tmp_path, monkeypatch, capsys):
    (tmp_path / "constraints").mkdir()
    (tmp_path / "constraints" / "stacks.toml").write_text((CONSTRAINTS / "stacks.toml").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VERLSTACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_CONFIG", os.devnull)
    one, other = (fake.host for fake in fakes)
    digest = source(f"{one}/team/base", tmp_path, shop)
    assert cli.main(["mirror", f"{one}/team/base:{TAG}", f"{other}/team/base:{TAG}", "--insecure"]) == 0
    assert digest in capsys.readouterr().out
    assert cli.main(["promote", f"{other}/team/base:{TAG}", "stable", "--insecure"]) == 0
    second = fakes[1].put({"schemaVersion": 2, "layers": []})
    capsys.readouterr()
    assert cli.main(["promote", f"{other}/team/base@{second}", "stable", "--insecure"]) == 0
    assert len((tmp_path / "promotions.jsonl").read_text().splitlines()) == 2
    log = str(tmp_path / "a log")
    assert cli.main(["promote", f"{other}/team/base:{TAG}", "stable", "--insecure", "--log", log]) == 0
    assert cli.main(["promote", f"{other}/team/base@{second}", "stable", "--insecure", "--log", log]) == 0
    back = shlex.split(capsys.readouterr().out.splitlines()[-1].removeprefix("back: verlstack "))
    assert cli.main([*back, "--json"]) == 0, "as it was printed"
    assert json.loads(capsys.readouterr().out)["after"] == digest
    assert len(Path(log).read_text().splitlines()) == 3


def test_standard_output_as_the_log_keeps_the_line(fakes, shop, tmp_path):
    """As in `promote … --log /dev/stdout > moves`: what is printed goes behind it."""
    one = fakes[0].host
    source(f"{one}/team/base", tmp_path, shop)
    words = [sys.executable, "-m", "verlstack", "promote", f"{one}/team/base:{TAG}", "stable", "--insecure"]
    env = os.environ | {"VERLSTACK_CACHE": str(tmp_path / "cache"), "DOCKER_CONFIG": os.devnull}
    with (tmp_path / "moves").open("wb") as out:
        subprocess.run([*words, "--log", "/dev/stdout"], stdout=out, env=env, cwd=tmp_path, check=True)
    first, *rest = (tmp_path / "moves").read_text().splitlines()
    assert json.loads(first)["tag"] == "stable"
    assert rest[0].endswith("/team/base:stable")


def test_a_log_that_is_a_link_stays_one(fakes, shop, tmp_path, monkeypatch):
    one = fakes[0].host
    source(f"{one}/team/base", tmp_path, shop)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VERLSTACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_CONFIG", os.devnull)
    (tmp_path / "link").symlink_to("moves")
    words = ["promote", f"{one}/team/base:{TAG}", "stable", "--insecure", "--log", "link"]
    fakes[0].planted.append(Fault(method="PUT", path="/manifests/stable", status=403))
    assert cli.main(words) != 0
    assert ((tmp_path / "link").is_symlink(), (tmp_path / "moves").exists()) == (True, False)
    assert cli.main(words) == 0
    assert len((tmp_path / "moves").read_text().splitlines()) == 1


def test_a_digest_that_the_registry_does_not_have_is_called_that(real, tmp_path, shop):
    """Real ones say which of repository and manifest they lack."""
    publish.publish(image(tmp_path / "image"), f"{real.host}/team/verl", shop, insecure=True, record=False)
    absent = f"{real.host}/team/verl@sha256:{'1' * 64}"
    with pytest.raises(FetchError, match="has no such image"):
        promote.promote(absent, "stable", shop, insecure=True, log=tmp_path / "log")
