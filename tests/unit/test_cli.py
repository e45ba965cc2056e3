"""The command line: one line for a user's mistake, an exit code for programs, a traceback only when asked for."""

import dataclasses
import hashlib
import io
import json
import types
from pathlib import Path

import pytest

import verlstack
from support import stacks
from verlstack import cli, lockfile, pins
from verlstack.build import Report, Row
from verlstack.download import Artifact
from verlstack.errors import FetchError, UsageError, WheelError
from verlstack.lockfile import Layer, Lock


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VERLSTACK_CACHE", str(tmp_path / "cache"))


def verb(monkeypatch, name, run):
    monkeypatch.setattr(cli, f"_{name}", run)


def failing(error):
    def run(_):
        raise error

    return run


def test_an_error_is_printed_without_traceback(monkeypatch, capsys):
    verb(monkeypatch, "fetch", failing(FetchError("no index", where="here", todo="wait")))
    assert cli.main(["fetch"]) == FetchError.exit_code
    out, err = capsys.readouterr()
    assert (out, err) == ("", "verlstack: error: no index\n  where: here\n  do:    wait\n")


def test_an_error_that_quotes_somebody_speaks_to_no_terminal(monkeypatch, capsys):
    verb(monkeypatch, "fetch", failing(FetchError("of the stack \x1b[31mred", where="//user:secret@host/\x9b2J")))
    cli.main(["fetch"])
    assert capsys.readouterr().err == "verlstack: error: of the stack red\n  where: //host/\n"


def test_debug_shows_the_traceback(monkeypatch, capsys):
    verb(monkeypatch, "build", failing(WheelError("bad wheel")))
    assert cli.main(["build", "--debug"]) == WheelError.exit_code
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("verlstack: error: bad wheel\n")


def test_ctrl_c(monkeypatch, capsys):
    verb(monkeypatch, "build", failing(KeyboardInterrupt()))
    assert cli.main(["build"]) == 130
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert "run the same command again" in err


def test_a_reader_that_went_away(monkeypatch, tmp_path):
    verb(monkeypatch, "fetch", failing(BrokenPipeError()))
    with (tmp_path / "stdout").open("w") as out:
        monkeypatch.setattr("sys.stdout", out)
        assert cli.main(["fetch"]) == 1


@pytest.mark.parametrize("words", [["check", "\udcff.in", "--json"], ["pin", "cu121", "six==1", "--why", "caf\udce9"]])
def test_an_argument_that_is_no_text(words, capsys):
    assert cli.main(words) == UsageError.exit_code
    assert "an argument is no text: " in capsys.readouterr().err


def test_our_own_mistakes_keep_their_traceback(monkeypatch):
    verb(monkeypatch, "fetch", failing(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["fetch"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "    publish   an image into a registry"),  # every verb, with what it does
        ([], "verlstack: error: VERB is missing; `verlstack VERB --help` tells of one\n"),
        (["base"], "`verlstack base VERB --help`"),
        (["flash-attn"], "`verlstack flash-attn ACTION --help`"),
        (["buidl"], "did you mean 'build'?"),
        (["base", "shwo", "x"], "did you mean 'show'?"),
        (["flash-attn", "compil"], "did you mean 'compile'?"),
        (["build", "--output", "docker"], "did you mean 'docker-archive'?"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["fetch", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["fetch", "one", "two"], "unrecognized arguments: two"),
        (["build", "--jobs", "0"], "argument --jobs: "),
        (["build", "--jobs", "-3"], "argument --jobs: "),
        (["build", "--jobs", "many"], "many"),
        (["build", "--output", "zip"], "invalid choice: 'zip'"),
    ],
)
def test_usage(words, says, capsys):
    with pytest.raises(SystemExit) as e:
        cli.main(words)
    assert e.value.code == UsageError.exit_code
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--help"], ["build", "--help"]])
def test_help(words, capsys):
    with pytest.raises(SystemExit) as e:
        cli.main(words)
    assert e.value.code == 0
    assert "verlstack" in capsys.readouterr().out


def test_defaults_and_options(monkeypatch):
    seen = []
    verb(monkeypatch, "build", lambda arguments: seen.append(arguments) or 0)
    assert cli.main(["build"]) == 0
    assert cli.main(["build", "x", "--jobs", "3", "--offline", "--fast", "--output", "oci-archive", "--dist", "d"]) == 0
    assert (seen[0].stack, seen[0].jobs, seen[0].offline, seen[0].base, seen[0].fast) == (
        "cu121",
        None,
        False,
        "auto",
        False,
    )
    assert (seen[1].stack, seen[1].jobs, seen[1].offline, seen[1].fast) == ("x", 3, True, True)
    assert (seen[1].output, seen[1].dist) == ("oci-archive", Path("d"))


def test_outside_a_checkout(tmp_path, capsys):
    assert cli.main(["fetch"]) == UsageError.exit_code
    err = capsys.readouterr().err
    assert "no constraints/stacks.toml here or above" in err
    assert str(tmp_path) in err


@pytest.mark.parametrize("launcher", ["engine", "slurm"])
def test_outside_a_checkout_a_stack_cannot_be_smoked(tmp_path, capsys, monkeypatch, launcher):
    monkeypatch.setattr("verlstack.engine.Engine.connect", lambda env: None)
    assert cli.main(["smoke", "cu121", "--launcher", launcher]) == UsageError.exit_code
    err = capsys.readouterr().err
    assert "'cu121' is no stack that was built" in err
    assert "no constraints/stacks.toml here or above" in err
    assert "run in a checkout, or pass --constraints; or see `verlstack build`" in err
    (tmp_path / "constraints").mkdir()
    stacks.write(tmp_path / "constraints")
    assert cli.main(["smoke", "demo", "--launcher", launcher]) == UsageError.exit_code
    assert "here or above" not in capsys.readouterr().err


def test_an_unknown_stack(tmp_path, capsys):
    stacks.write(tmp_path)
    assert cli.main(["fetch", "dmeo", "--constraints", "."]) == UsageError.exit_code
    assert "did you mean 'demo'?" in capsys.readouterr().err


def test_a_missing_lock_says_how_to_make_it(tmp_path, capsys):
    (tmp_path / "constraints").mkdir()
    stacks.write(tmp_path / "constraints")
    assert cli.main(["fetch", "demo", "--offline"]) == 4
    assert "run `verlstack lock demo`" in capsys.readouterr().err


# -- the verbs, with what is below them replaced


@pytest.fixture
def checkout(tmp_path):
    """Pins and a lock of one wheel that is in the cache."""
    folder = tmp_path / "constraints"
    folder.mkdir()
    stack = pins.load(stacks.write(folder), "demo")
    data = b"a wheel"
    sha256 = hashlib.sha256(data).hexdigest()
    wheel = Artifact(project="six", version="1", filename="six-1-py3-none-any.whl", sha256=sha256, size=len(data))
    built = lockfile.Built(source=wheel_like("verl", wheel), wheel="verl-1-py3-none-any.whl", wheel_sha256=sha256)
    lock = Lock(
        stack="demo",
        digest="",
        python="3.10",
        recorded_with="3.10.13",
        epoch=5,
        compression=stack.compression,
        registry_base=None,
        wheels=(wheel,),
        built=(built,),
        build_tools=(wheel_like("pip", wheel),),
        compiled=None,
        layers=(Layer(name="six", packages=("six",), diff_id="sha256:0"),),
    )
    text = lockfile.render_requirements(lock.wheels, (built.source,), "demo")
    for path, content in zip(
        lockfile.paths(folder, "demo"), (text, lockfile.render(lock, stack.checksum, text)), strict=True
    ):
        path.write_text(content)
    for artifact in (wheel, built.source, lock.build_tools[0]):
        path = tmp_path / "cache/files" / artifact.sha256 / artifact.filename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def wheel_like(project, artifact):
    return Artifact(**{n: getattr(artifact, n) for n in ("version", "filename", "sha256", "size")}, project=project)


def test_fetch(checkout, capsys, monkeypatch, tmp_path):
    below = tmp_path / "constraints" / "deep" / "er"
    below.mkdir(parents=True)
    monkeypatch.setattr("verlstack.build.base_of", lambda *_: None)
    monkeypatch.setattr("verlstack.workshop.Workshop.find_interpreter", lambda *_: None)
    monkeypatch.chdir(below)  # pins are found from any folder below
    assert cli.main(["fetch", "demo", "--offline", "--json"]) == 0
    out, err = capsys.readouterr()
    assert list(json.loads(out).values()) == ["six-1-py3-none-any.whl"]
    assert "cache" in err
    assert cli.main(["fetch", "demo", "--offline", "--constraints", str(checkout)]) == 0
    assert capsys.readouterr().out == ""


def module(monkeypatch, name, **functions):
    made = types.SimpleNamespace(**functions)
    monkeypatch.setattr(verlstack, name, made, raising=False)
    monkeypatch.setitem(__import__("sys").modules, f"verlstack.{name}", made)


def test_lock(checkout, capsys, monkeypatch):
    made = types.SimpleNamespace(stack="demo", digest="ab", wheels=[1, 2], built=[1], layers=[1, 2, 3])
    seen = []
    module(monkeypatch, "lock", lock=lambda stack, shop: seen.append((stack.name, shop.workers, shop.offline)) or made)
    assert cli.main(["lock", "demo", "--jobs", "3"]) == 0
    assert capsys.readouterr().out == "demo: 2 wheels, 1 built from source, 3 layers\nlock sha256:ab\n"
    assert cli.main(["lock", "demo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"stack": "demo", "lock": "sha256:ab"}
    assert seen[0] == ("demo", 3, False)
    assert 1 <= seen[1][1] <= 8


def test_progress_goes_to_stderr_so_that_stdout_is_for_programs(checkout, capsys, monkeypatch):
    def lock(stack, shop):
        shop.progress.say("resolved")
        return types.SimpleNamespace(stack="demo", digest="ab", wheels=[], built=[], layers=[])

    module(monkeypatch, "lock", lock=lock)
    cli.main(["lock", "demo", "--json"])
    out, err = capsys.readouterr()
    assert json.loads(out)
    assert err == "resolved\n"


def test_bars_on_a_terminal(checkout, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen, kinds = Terminal(), []
    monkeypatch.setattr("sys.stderr", screen)
    module(
        monkeypatch,
        "lock",
        lock=lambda _, shop: kinds.append(type(shop.progress).__name__) or failing(FetchError("x"))(0),
    )
    assert cli.main(["lock", "demo"]) == FetchError.exit_code
    assert kinds == ["Bars"]
    assert "verlstack: error: x" in screen.getvalue()


REPORT = Report(
    stack="demo",
    tag="demo-sdpa",
    digest="sha256:" + "d" * 64,
    lock="sha256:" + "e" * 64,
    base="debian",
    layout=Path("dist/demo"),
    archive=Path("dist/demo.tar"),
    size=2_000_000,
    wheel_bytes=3_000_000,
    seconds=1.25,
    rows=(
        Row(
            layer="torch",
            pins="torch 2.3.1",
            diff_id="sha256:" + "ab" * 32,
            raw_bytes=5_000_000,
            compressed_bytes=2_000_000,
            cached=True,
        ),
        Row(
            layer="libs",
            pins="12 packages",
            diff_id="sha256:" + "cd" * 32,
            raw_bytes=100_000,
            compressed_bytes=60_000,
            cached=False,
        ),
    ),
)


def test_build(checkout, capsys, monkeypatch):
    seen = []
    module(
        monkeypatch,
        "build",
        build=lambda stack, lock, shop, **options: seen.append((stack.name, lock.stack, options)) or REPORT,
    )
    assert cli.main(["build", "demo", "--base", "debian", "--fast"]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    assert rows[1] == ["torch", "torch", "2.3.1", "abababababab", "5.0", "2.0", "cached"]
    assert rows[2] == ["libs", "12", "packages", "cdcdcdcdcdcd", "0.1", "0.1", "built"]
    assert f"demo-sdpa  {REPORT.digest}" in out
    assert "2 MB in 2 layers, 1.2 s, on debian" in out
    assert "archive:    dist/demo.tar" in out
    dist = checkout.parent / "dist"
    assert seen == [("demo", "demo", {"base": "debian", "fast": True, "dist": dist, "output": None})]


def test_a_base_with_a_long_name_leaves_the_sizes_readable(checkout, capsys, monkeypatch):
    name = f"registry.example.org:5000/team/verl/base:cu121@sha256:{'1' * 64}"
    base = dataclasses.replace(REPORT.rows[0], layer="base 1/2", pins=name)
    large = dataclasses.replace(REPORT.rows[0], layer="nvidia-nvjitlink-cu12", raw_bytes=1_624_000_000)
    report = dataclasses.replace(REPORT, base=name, rows=(base, large))
    module(monkeypatch, "build", build=lambda *_, **__: report)
    assert cli.main(["build", "demo"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[2].split()[-4:] == ["abababababab", "1624.0", "2.0", "cached"]
    assert out.count(name) == 1, "in full below the table"


def test_build_for_programs(checkout, capsys, monkeypatch, tmp_path):
    seen = []
    module(monkeypatch, "build", build=lambda *_, dist, **__: seen.append(dist) or REPORT)
    assert cli.main(["build", "demo", "--json", "--dist", "there"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["digest"], found["layout"], len(found["rows"])) == (REPORT.digest, "dist/demo", 2)
    assert seen == [tmp_path / "there"]


def test_prove(checkout, capsys, monkeypatch):
    seen, lines = [], ["uid 0: 2.3.1", "uid 54321: 2.3.1"]
    module(monkeypatch, "prove", prove=lambda layout, *_: seen.append(layout) or lines, check_lock=lambda *_: None)
    monkeypatch.setattr("verlstack.oci.read_layout", lambda layout: ("sha256:ab", {}, {}))
    monkeypatch.setattr("verlstack.oci.tag_of", lambda layout: "demo-sdpa")
    assert cli.main(["prove", "demo"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("demo-sdpa  sha256:ab  starts")
    assert rest == lines
    assert cli.main(["prove", "demo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"digest": "sha256:ab", "tag": "demo-sdpa", "printed": lines}
    assert seen[0] == checkout.parent / "dist" / "demo"


def test_jobs_message(capsys):
    with pytest.raises(SystemExit):
        cli.main(["build", "--jobs", "many"])
    assert "_positive" not in capsys.readouterr().err
