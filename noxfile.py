"""Sessions that `make test` and CI run; they use the tools of .venv, which constraints/tools.txt pins."""

from __future__ import annotations

import sys

import nox

PYTHON = sys.executable  # .venv's own, whatever PATH says
COVERED = (PYTHON, "-m", "coverage", "run", "-m", "pytest", "-n", "auto")

nox.options.sessions = ["lint", "types", "unit", "integration"]
nox.options.default_venv_backend = "none"  # the tools are already installed, exact and hash-checked


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff, for code and format."""
    session.run(PYTHON, "-m", "ruff", "check", ".")
    session.run(PYTHON, "-m", "ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Mypy, strict."""
    session.run(PYTHON, "-m", "mypy")


@nox.session
def unit(session: nox.Session) -> None:
    """No network, no engine, no other program; about a minute."""
    session.run(PYTHON, "-m", "coverage", "erase")
    folders = ["tests/unit", "tests/policy", "tests/doctor"]
    session.run(*COVERED, "--dist", "worksteal", *folders, *session.posargs)


@nox.session
def integration(session: nox.Session) -> None:
    """Real programs and local misbehaving servers, on a small synthetic stack; then the coverage of unit and this."""
    # loadfile: what a module has started (a registry, Podman) serves all of its tests.
    session.run(*COVERED, "--dist", "loadfile", "tests/integration", "-m", "not full", *session.posargs)
    session.run(PYTHON, "-m", "coverage", "combine", "--quiet")
    session.run(PYTHON, "-m", "coverage", "report", "--fail-under=90")


@nox.session
def smoke(session: nox.Session) -> None:
    """The smoke tests inside an image; `nox -s smoke -- cu121 --gpus all` and whatever `verlstack smoke` knows."""
    session.run(PYTHON, "-m", "verlstack", "smoke", *session.posargs)


@nox.session
def full(session: nox.Session) -> None:
    """The real default stack, twice under different conditions, and in a real engine; minutes, gigabytes, root."""
    session.run(PYTHON, "-m", "pytest", "tests/integration", "-m", "full", *session.posargs)


@nox.session
def stacks(session: nox.Session) -> None:
    """A stack for real: composed, started, and smoke-tested without the slow tests; `nox -s stacks -- cu130`."""
    for name in session.posargs:
        for words in (("build", name, "--base", "debian"), ("prove", name), ("smoke", name, "--quick")):
            session.run(PYTHON, "-m", "verlstack", *words)
