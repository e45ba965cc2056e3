"""What the host believes of a report that an image left, and how the folder of reports is kept."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path

import pytest

from support import layouts
from verlstack import cli, engine, shell, unpacked
from verlstack.cache import Cache
from verlstack.errors import EngineError, ProofError, StorageError, UsageError
from verlstack.progress import Silent
from verlstack.smoke import collect, rooted, run, slurm
from verlstack.smoke.request import ALL_GPUS, Request

CPU = {
    "headline": "CPU, ranks 1: passed; this says nothing about GPUs",
    "ok": True, "gpu_pass": False, "runs": [{"device": "cpu"}],
}  # fmt: skip
GPU = {"headline": "GPU, ranks 1: passed", "ok": True, "gpu_pass": True, "runs": [{"device": "cuda"}]}


def verdict(folder, said, *, status=0, gpus=0):
    text = said if isinstance(said, str) else json.dumps(said)
    (folder / run.SUMMARY).write_text(text)
    return run._verdict("image@sha256:1", Request(gpus=gpus), folder, status)


def test_a_report_is_believed(tmp_path):
    found = verdict(tmp_path, CPU)
    assert (found.headline, found.passed, found.on_gpu) == (CPU["headline"], True, False)
    found = verdict(tmp_path, GPU, gpus=1)
    assert (found.headline, found.passed, found.on_gpu) == (GPU["headline"], True, True)


def test_the_exit_status_has_the_last_word(tmp_path):
    found = verdict(tmp_path, GPU, gpus=ALL_GPUS, status=1)
    assert (found.passed, found.on_gpu) == (False, False)


@pytest.mark.parametrize(
    "said",
    [
        GPU,
        CPU | {"gpu_pass": True},
        CPU | {"headline": "GPU, ranks 1: passed"},
        CPU | {"headline": "\x1b[1mGPU, ranks 1: passed"},
        CPU | {"runs": [{"device": "cpu"}, {"device": "cuda"}]},
    ],
)
def test_without_gpus_nothing_is_a_pass_for_gpus(tmp_path, said):
    with pytest.raises(ProofError, match="was given none"):
        verdict(tmp_path, said)


def test_a_run_that_should_have_had_gpus_and_saw_none_is_no_pass(tmp_path):
    found = verdict(tmp_path, CPU, gpus=ALL_GPUS)
    assert not found.passed
    assert found.headline.endswith("GPUs were asked for, and the tests saw none")


def test_a_headline_says_nothing_to_a_terminal(tmp_path):
    said = CPU | {"headline": "CPU\x1b[2J\x1b]0;title\x07,\nranks\u202e 1" + "x" * 10_000}
    found = verdict(tmp_path, said)
    assert found.headline.startswith("CPU, ranks 1x")
    assert len(found.headline) == run._LONGEST


def test_what_a_program_said_may_be_no_unicode(tmp_path):
    """A path of a finding, the last lines of a rank: the report quotes them."""
    found = verdict(tmp_path, CPU | {"doctor": [{"message": "/data/\udcff"}], "headline": "CPU\ud800, ranks 1: passed"})
    assert (found.headline, found.passed) == ("CPU?, ranks 1: passed", True)


@pytest.mark.parametrize(
    "said",
    ["", "{", "[" * 200_000, "[]", "{}", "null", '{"headline": 1}', "\x00"]
    + [json.dumps(CPU | {"runs": runs}) for runs in (None, 1, [1], [None], [{"device": []}], [{}])],
    ids=lambda text: text[:20],
)
def test_no_report_is_an_error_that_says_so(tmp_path, said):
    with pytest.raises(ProofError, match="left no report"):
        verdict(tmp_path, said)


def test_a_pipe_for_a_report_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "smoke.json")
    with pytest.raises(ProofError, match="left no report"):
        run._verdict("image@sha256:1", Request(), tmp_path, 0)


# -- the folder

REPORT = {
    *("smoke.html", "smoke.json", "smoke.txt", "smoke-junit.xml", "ranks-1.json", "ranks-16.txt", "node-1.log"),
    *("ranks-2-so-far.jsonl", "ranks-2-logs/x_y/attempt_0/0/stdout.log", "node-0/ranks-2-logs/rank-0.json"),
}
NOT_OURS = {
    *(
        "smoke.py",
        "smoke-detector.py",
        "ranks-of-nobility.md",
        "node-api/index.js",
        "smoke-report/a.txt",
        "smoke.json5",
    ),
    *("ranks-1.json.bak", "node-x/a", "smoke/a", "ranks-1/a", "node-1.logs/a", "node-7/index.js"),
}


def fill(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def test_of_a_folder_only_a_report_is_cleared(tmp_path):
    fill(tmp_path, REPORT | NOT_OURS)
    collect.clear(tmp_path)
    assert files(tmp_path) == NOT_OURS
    assert not (tmp_path / "node-0").exists()


def test_a_link_goes_and_what_it_leads_to_stays(tmp_path):
    fill(tmp_path, {"mine/data.json", "mine/deep/x"})
    report = tmp_path / "report"
    report.mkdir()
    (report / "smoke.json").symlink_to(tmp_path / "mine" / "data.json")
    (report / "ranks-1-logs").symlink_to(tmp_path / "mine" / "deep")
    collect.clear(report)
    assert files(tmp_path / "mine") == {"data.json", "deep/x"}
    assert not (report / "smoke.json").is_symlink()


def test_what_a_killed_run_was_bringing_goes_too(tmp_path):
    with collect.arriving(tmp_path) as fresh:
        fill(fresh.with_name(fresh.name + "x"), {"smoke.json"})
    assert not fresh.exists()
    assert len(list(tmp_path.iterdir())) == 1
    collect.clear(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_report_arrives_over_nothing_but_a_report(tmp_path):
    report = tmp_path / "report"
    fill(tmp_path, {"elsewhere.json"})
    fill(report, {"smoke.json", "ranks-1-logs/old.log", "mine.json"})
    (report / "ranks-1.json").symlink_to(tmp_path / "elsewhere.json")
    with collect.arriving(report) as fresh:
        fill(fresh, {"smoke.json", "ranks-1-logs/new.log", "ranks-1.json"})
        (fresh / "smoke.json").write_text("new")
    assert files(report) == {"smoke.json", "ranks-1-logs/new.log", "ranks-1.json", "mine.json"}
    assert (report / "smoke.json").read_text() == "new"
    assert (tmp_path / "elsewhere.json").read_text() == "elsewhere.json"


def test_a_users_folder_in_the_way_stays(tmp_path):
    fill(tmp_path, {"smoke.json/mine"})
    with pytest.raises(OSError), collect.arriving(tmp_path) as fresh:
        fill(fresh, {"smoke.json"})
    assert files(tmp_path) == {"smoke.json/mine"}


def test_two_runs_do_not_share_a_folder(tmp_path):
    report = tmp_path / "report"
    with collect.own(report):
        fill(report, {"smoke.json"})
        with pytest.raises(UsageError, match="another run"), collect.own(report):
            pass
        assert files(report) == {"smoke.json"}
    with collect.own(report):
        assert files(report) == set()


@pytest.mark.parametrize("request_", [Request(gpus=1), Request(nodes=2)])
def test_an_earlier_report_stays_where_nothing_starts(tmp_path, request_):
    image = layouts.write(tmp_path / "image", {}, labels={run._LOCK_LABEL: "x"})
    index = json.loads((image / "index.json").read_text())
    index["manifests"][0]["annotations"] = {"org.opencontainers.image.ref.name": "x"}
    (image / "index.json").write_text(json.dumps(index))
    fill(tmp_path / "report", {"smoke.json"})
    with pytest.raises(EngineError, match="need one"):
        run.layout(
            image,
            request_,
            tmp_path / "report",
            engine=None,
            cache=Cache(tmp_path),
            progress=Silent(),
            say=print,
            tell=print,
        )
    assert files(tmp_path / "report") == {"smoke.json"}


def entered(report):
    with collect.own(report):
        pass


@pytest.mark.parametrize("write", [entered, lambda folder: collect.keep(folder / "smoke.json", b"")])
def test_a_report_that_cannot_be_written_is_not_the_caches_fault(tmp_path, monkeypatch, write):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(StorageError) as caught:
        write(tmp_path / "report")
    assert caught.value.todo == "give --report another folder"


def test_a_file_is_no_folder(tmp_path):
    fill(tmp_path, {"x"})
    with pytest.raises(UsageError, match="into a folder"):
        entered(tmp_path / "x")


# -- out of an unpacked image


def test_a_report_is_looked_for_in_the_image_alone(tmp_path, monkeypatch):
    """Its /tmp leads out of it, to what looks like a report."""
    fill(tmp_path / "outside", {"smoke-report/smoke.json"})
    image = layouts.write(tmp_path / "image", {"tmp": "-> ../../../outside"})
    ended = shell.Result(args=(), returncode=0, stdout="", stderr="")
    monkeypatch.setattr(shell, "follow", lambda *_, **__: ended)
    (tmp_path / "report").mkdir()
    with Cache(tmp_path / "cache").use() as cache, unpacked.unpacked(image, cache, Silent()) as root:
        status = rooted.run(root, "x", Request(), tmp_path / "report", print)
    assert status == 0
    assert files(tmp_path / "report") == set()


class Heard(Silent):
    def __init__(self, folder):
        self.folder, self.said = folder, []

    def say(self, line):
        self.said.append((line, any(self.folder.iterdir())))


@pytest.mark.parametrize("during", ["the run", "the unpacking"])
def test_an_interrupt_is_told_before_the_image_is_removed(tmp_path, monkeypatch, during):
    def stop(*_):
        raise KeyboardInterrupt

    image = layouts.write(tmp_path / "image", {"a": b""})
    if during == "the unpacking":
        monkeypatch.setattr("verlstack.unpack.lay", stop)
    with Cache(tmp_path / "cache").use() as cache:
        heard = Heard(cache.tmp)
        with pytest.raises(KeyboardInterrupt), unpacked.unpacked(image, cache, heard):
            stop()
        assert heard.said == [("stopping; removing the unpacked image", True)]
        assert list(cache.tmp.iterdir()) == []


def smoked(tmp_path, monkeypatch, name):
    """A layout whose tests pass at once; the cache's folder of unpacked images; the words for the command."""
    image = layouts.write(tmp_path / "image", {"a": b""}, labels={run._LOCK_LABEL: "x"})
    index = json.loads((image / "index.json").read_text())
    digest = index["manifests"][0]["digest"]
    index["manifests"][0]["annotations"] = {"org.opencontainers.image.ref.name": name or digest}
    (image / "index.json").write_text(json.dumps(index))

    def passes(words, *, cwd, **_):
        fill(cwd, {"smoke.json"})
        (cwd / "smoke.json").write_text(json.dumps(CPU))
        return shell.Result(args=(), returncode=0, stdout="", stderr="")

    monkeypatch.setattr(shell, "follow", passes)
    monkeypatch.setattr(run.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(engine.Engine, "connect", lambda _: None)
    monkeypatch.setenv("VERLSTACK_CACHE", str(tmp_path / "cache"))
    return digest, ["smoke", str(image), "--report", str(tmp_path / "report")]


@pytest.mark.parametrize("name", ["cu121", ""])
def test_the_verdict_comes_before_the_image_is_removed(tmp_path, monkeypatch, capsys, name):
    digest, words = smoked(tmp_path, monkeypatch, name)
    before = []
    monkeypatch.setattr(unpacked, "_make_removable", lambda root: before.append((root.exists(), *capsys.readouterr())))
    assert cli.main(words) == 0
    ((there, out, err),) = before
    called = f"cu121@{digest}" if name else digest
    assert there
    assert out.splitlines() == [called, CPU["headline"], f"report: {tmp_path}/report/smoke.html"]
    assert err.splitlines()[-1] == "removing the unpacked image"
    assert capsys.readouterr() == ("", "")


def test_who_stops_the_removal_is_told_that_the_verdict_stands(tmp_path, monkeypatch, capsys):
    def stop(_):
        raise KeyboardInterrupt

    _, words = smoked(tmp_path, monkeypatch, "cu121")
    monkeypatch.setattr(unpacked, "_make_removable", stop)
    assert cli.main(words) == 130
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].startswith("report: ")
    assert "the verdict stands" in err
    assert "run the same command again" not in err


def test_an_image_that_sets_nothing_and_has_links_where_others_have_folders(tmp_path):
    (tmp_path / "outside").mkdir()
    links = dict.fromkeys(("dev", "proc"), f"-> {tmp_path}/outside")
    image = layouts.write(tmp_path / "image", links, config={"config": {"Env": None}})
    with Cache(tmp_path / "cache").use() as cache, unpacked.unpacked(image, cache, Silent()) as root:
        assert root.environment == {}
        assert [path.name for path in sorted(root.folder.iterdir()) if not path.is_symlink()] == ["dev", "etc", "proc"]
    assert list((tmp_path / "outside").iterdir()) == []


def test_folders_are_made_removable_before_they_are_looked_into(tmp_path):
    """As an ordinary user, for root may look into all; a child process becomes one."""
    hidden = tmp_path / "a" / "b"
    hidden.mkdir(parents=True)
    (hidden / "link").symlink_to(tmp_path / "mine")
    (tmp_path / "mine").write_text("")
    (tmp_path / "mine").chmod(0o600)
    for path, mode in ((hidden, 0o500), (hidden.parent, 0o000)):
        path.chmod(mode)
    if os.geteuid() == 0:
        for path in (tmp_path, tmp_path / "mine", hidden.parent, hidden):
            os.chown(path, 12345, 12345)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.chdir(tmp_path)  # above it are folders of the user who runs the tests
            if os.geteuid() == 0:
                os.setresuid(12345, 12345, 12345)
            unpacked._make_removable(Path("a"))
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert [path.stat().st_mode & 0o777 for path in (hidden.parent, hidden, tmp_path / "mine")] == [0o755, 0o755, 0o600]


# -- under Slurm


def test_a_path_here_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill(tmp_path, {"unp/etc/hosts", "my.sif", "a#b.sqsh"})
    assert [slurm.found(name) for name in ("unp", "./unp", "my.sif", "a#b.sqsh")] == [
        str(tmp_path / name) for name in ("unp", "unp", "my.sif", "a#b.sqsh")
    ]


@pytest.mark.parametrize("image", ["/on/the/nodes", "registry.example.org#verl:cu121", "verl:cu121", "user/verl"])
def test_what_is_not_here_may_be_there(image):
    assert slurm.found(image) == image


@pytest.mark.parametrize("image", ["cu999", "./cu121", "../x.sif", "my.sif", ""])
def test_a_bare_word_is_not_looked_for_at_a_registry(image, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "..")
    with pytest.raises(UsageError, match="no folder or file here"):
        slurm.found(image)
