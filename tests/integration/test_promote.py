"""Tags that people move, with a log of each move."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.published import CONSTRAINTS, TAG, image
from support.referred import source
from support.writable_registry import Fault
from verlstack import cli, promote, publish, upload
from verlstack.errors import FetchError, PublishError, StorageError, UsageError
from verlstack.progress import Silent


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
