"""Start the ranks' process group once, make a failure on one rank a failure on all, and write the report."""

import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from smoke import report
from smoke.world import NotEnoughGpusError, World, join

_WORLD: list[World] = []
_SAID_OK = "ok"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--report DIR` is where ranks-N.json goes, `--quick` leaves out what takes more than a few seconds."""
    parser.addoption("--report", type=Path, metavar="DIR", help="write ranks-N.json there")
    parser.addoption("--quick", action="store_true", help="leave out the slow tests")


def pytest_configure() -> None:
    """Join the run before anything is collected: who we are decides what is skipped."""
    try:
        world = join()
    except NotEnoughGpusError as e:
        pytest.exit(str(e), returncode=2)
    world.start_group()
    _WORLD.append(world)


def pytest_unconfigure() -> None:
    """Leave the process group."""
    for world in _WORLD:
        world.stop_group()


def pytest_report_header() -> str:
    """Say first what this run can prove."""
    return report.headline(_WORLD[0])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this world cannot run; the same on each rank."""
    for item in items:
        reason = _why_not(item, _WORLD[0], quick=config.getoption("quick"))
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def _why_not(item: pytest.Item, world: World, *, quick: bool) -> str:
    needed = item.get_closest_marker("ranks")
    if needed and world.size < needed.args[0]:
        return f"needs {needed.args[0]} ranks, this run has {world.size}"
    if item.get_closest_marker("gpu") and not world.on_gpu:
        return "not run on CPU: needs a GPU"
    if item.get_closest_marker("alone") and world.size > 1:
        return "starts its own ranks; run in a world of one"
    if item.get_closest_marker("slow") and quick:
        return "left out by --quick"
    return ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """A rank whose setup ends in an error or a skip says so; it will not reach the test itself."""
    try:
        return (yield)
    except BaseException as e:
        _settle(item, e)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Each rank says how the test went; one that failed fails it everywhere."""
    try:
        result = yield
    except BaseException as e:
        _settle(item, e)
        raise
    _settle(item, None)
    return result


def _settle(item: pytest.Item, error: BaseException | None) -> None:
    """Compare notes, and start anew with a fresh process group where a rank failed."""
    if isinstance(error, (KeyboardInterrupt, SystemExit, pytest.exit.Exception)):
        return
    world = _WORLD[0]
    failed = error is not None and not isinstance(error, pytest.skip.Exception)
    if failed:
        world.stop_group()  # with luck the others stop waiting for us; if not, their patience ends (COLLECTIVE)
    said = world.agree(item.nodeid, f"{type(error).__name__}: {error}" if error else _SAID_OK)
    if failed or len({word == _SAID_OK for word in said}) > 1:
        world.stop_group()
        world.start_group()
    if error is None and any(word != _SAID_OK for word in said):
        lines = [f"rank {rank}: {word.splitlines()[0]}" for rank, word in enumerate(said) if word != _SAID_OK]
        pytest.fail("passed here, but not everywhere\n" + "\n".join(lines), pytrace=False)


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


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Rank 0 writes the report; the ranks have agreed on every outcome, so it speaks for all."""
    folder = session.config.getoption("report")
    if folder and _WORLD and _WORLD[0].rank == 0:
        report.write(folder, _WORLD[0], _RESULTS, seconds=time.time() - _STARTED)
