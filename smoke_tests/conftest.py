"""Start the ranks' process group once, make a failure on one rank a failure on all, and write the report."""

import contextlib
import os
import time
from collections.abc import Callable, Generator
from dataclasses import asdict
from pathlib import Path

import pytest

from smoke import ended, report
from smoke.watch import Watch, end_with_parent
from smoke.world import NotEnoughGpusError, SilentRankError, World, join

_WORLD: list[World] = []
_WATCH: list[Watch] = []
_FOLDER: list[Path] = []  # of the report, if there is to be one
_SELECTED: list[str] = []  # what made this a run of some of the tests only: a word of the command line, or a test's id
_SAID_OK = "ok"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--report DIR` is where ranks-N.json goes, `--quick` leaves out what takes more than a few seconds."""
    parser.addoption("--report", type=Path, metavar="DIR", help="write ranks-N.json there")
    parser.addoption("--quick", action="store_true", help="leave out the slow tests")
    parser.addoption("--patience", type=float, default=300.0, metavar="SECONDS", help="a test that takes longer hangs")


def pytest_configure(config: pytest.Config) -> None:
    """Join the run before anything is collected: who we are decides what is skipped."""
    config.addinivalue_line(
        "markers", "patience(seconds): takes longer than others may, so --patience is not its limit"
    )
    patience = config.getoption("patience")
    _end_with_torchrun()
    try:
        world = join(patience)
    except NotEnoughGpusError as e:
        pytest.exit(str(e), returncode=2)
    world.start_group()
    _WORLD.append(world)
    _WATCH.append(Watch(world.rank, patience))
    if config.getoption("report"):
        _FOLDER.append(config.getoption("report"))
        _note("")
        if world.rank == 0:
            head = {"headline": report.headline(world), "device": world.device.type, "ranks": world.size}
            ended.so_far(_FOLDER[0], world.size, head)


def _end_with_torchrun() -> None:
    """Torchrun gives each rank a session of its own; without this a rank would outlive a torchrun that was killed."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_parent()


def pytest_unconfigure() -> None:
    """Leave the process group."""
    for world in _WORLD:
        world.stop_group()


def pytest_report_header() -> str:
    """Say first what this run can prove."""
    return report.headline(_WORLD[0])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this world cannot run; the same on each rank."""
    _SELECTED.extend(_narrowed(config))
    for item in items:
        if config.getoption("quick") and item.get_closest_marker("slow"):
            reason = "left out by --quick"
            _SELECTED.append(item.nodeid)
        else:
            reason = _why_not(item, _WORLD[0])
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def _why_not(item: pytest.Item, world: World) -> str:
    if item.get_closest_marker("gpu") and not world.on_gpu:
        return "not run on CPU: needs a GPU"
    needed = item.get_closest_marker("ranks")
    if needed and world.size < needed.args[0]:
        return f"needs {needed.args[0]} ranks, this run has {world.size}"
    if item.get_closest_marker("alone") and world.size > 1:
        return "starts its own ranks; run in a world of one"
    return ""


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Keep what -k and the like leave out: a report of a part must not read as one of the whole."""
    _SELECTED.extend(item.nodeid for item in items)


def _narrowed(config: pytest.Config) -> list[str]:
    """The words of the command line that keep files from being collected at all."""
    option = config.option
    ignored = [*(option.ignore or ()), *(option.ignore_glob or ())]
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        return ignored  # by pytest.ini, or where it was started
    suite = Path(__file__).parent
    return [*ignored, *(word for word in config.args if not suite.is_relative_to(Path(word).absolute()))]


def pytest_runtest_logstart(nodeid: str) -> None:
    """Leave word of the test that this rank is in now: a rank that is killed says nothing more."""
    _note(nodeid)


def _note(test: str) -> None:
    world = _WORLD[0]
    if _FOLDER:
        ended.note(_FOLDER[0] / f"ranks-{world.size}-logs", world.rank, world.local_rank, test)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """A rank whose setup ends in an error or a skip says so; it will not reach the test itself."""
    _WATCH[0].start(item.nodeid)
    try:
        return (yield)
    except BaseException as e:
        _settle(item, e)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Each rank says how the test went; one that failed fails it everywhere."""
    own = item.get_closest_marker("patience")
    _WATCH[0].start(item.nodeid, own.args[0] if own else None)
    try:
        result = yield
    except BaseException as e:
        _settle(item, e)
        raise
    _settle(item, None)
    return result


def _settle(item: pytest.Item, error: BaseException | None) -> None:
    """Compare notes, and start anew with a fresh process group where a rank failed."""
    _WATCH[0].stop()  # who waits for others does not hang
    if isinstance(error, (KeyboardInterrupt, SystemExit, pytest.exit.Exception)):
        return
    world = _WORLD[0]
    failed = error is not None and not isinstance(error, pytest.skip.Exception)
    if failed:
        world.stop_group()  # with luck the others stop waiting for us; if not, their patience ends (COLLECTIVE)
    try:
        said = world.agree(item.nodeid, f"{type(error).__name__}: {error}" if error else _SAID_OK)
    except SilentRankError as e:
        item.session.shouldfail = str(e)  # nothing more can be agreed on; what came so far is reported
        raise
    if failed or len({word == _SAID_OK for word in said}) > 1:
        world.stop_group()
        world.start_group()
    if error is None and any(word != _SAID_OK for word in said):
        lines = [f"rank {rank}: {word.splitlines()[0]}" for rank, word in enumerate(said) if word != _SAID_OK]
        pytest.fail("passed here, but not everywhere\n" + "\n".join(lines), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """What a test leaves behind may hang too."""
    _WATCH[0].start(f"the teardown of {item.nodeid}")
    try:
        return (yield)
    finally:
        _WATCH[0].stop()


@pytest.fixture(scope="session")
def world() -> World:
    """This process among the ranks."""
    return _WORLD[0]


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str, object], None]:
    """Put a measured figure into the report: `figure("total norm", 0.72)`."""

    def note(name: str, value: object) -> None:
        request.node.user_properties.append((name, value))

    return note


@pytest.fixture(autouse=True)
def _same_start() -> None:
    """Each test begins with the same random state, whatever ran before it and on each rank."""
    import random

    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  verl and transformers use the global state
    torch.manual_seed(0)


# -- report

_RESULTS: list[report.Result] = []
_STARTED = time.time()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep one result per test: that of its call, or of what prevented it."""
    _keep(report)


def _keep(said: pytest.TestReport) -> None:
    if said.when == "call" or said.outcome != "passed":
        _RESULTS.append(report.result_of(said))
        if _FOLDER and _WORLD[0].rank == 0:
            ended.so_far(_FOLDER[0], _WORLD[0].size, asdict(_RESULTS[-1]))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Rank 0 writes the report; the ranks have agreed on every outcome, so it speaks for all."""
    if not _FOLDER:
        return
    world = _WORLD[0]
    _note("")
    if world.rank == 0:
        report.write(_FOLDER[0], world, _RESULTS, seconds=time.time() - _STARTED, selected=bool(_SELECTED))
        ended.forget(_FOLDER[0], world.size)
    if not session.shouldfail:
        # torchrun ends all ranks when the first has failed: none may go before the report is written
        with contextlib.suppress(SilentRankError):
            world.agree("the report", _SAID_OK)
