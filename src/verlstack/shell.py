"""The only module that starts other programs: one runner, so that tests can refuse or replace it."""

from __future__ import annotations

import collections
import contextlib
import os
import subprocess
import threading
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Self

from verlstack import network, told
from verlstack.errors import VerlstackError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

_UMASK = 0o022  # of every program: what they make must not depend on the user's
_KEPT_STDERR_LINES = 20  # enough to hold a Python or apt error, short enough to read
_LONGEST = 1 << 16  # characters of a line; a longer one comes in pieces
_KEPT = 1 << 22  # characters of what a followed program prints, the last ones; a build of flash-attn prints some 100 kB


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a finished program left behind: decoded output and its exit status."""

    args: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str

    @property
    def tail(self) -> str:
        """Last lines of stderr (of stdout where stderr is empty), for an error message: fit to be shown."""
        lines = told.plain(self.stderr.strip() or self.stdout.strip()).splitlines()
        return "\n".join(lines[-_KEPT_STDERR_LINES:])


class ProgramMissingError(VerlstackError):
    """The program is not installed."""

    exit_code = 13


def run(
    args: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    timeout: float | None = None,
) -> Result:
    """Run a program to its end and return its output; a non-zero exit status is the caller's to judge.

    Args:
        args: program and arguments; never a shell line.
        env: the whole environment of the program; None inherits ours.
        cwd: working directory.
        stdin: text to feed; None means no input.
        timeout: seconds after which the program is killed and status 124 returned (as coreutils' `timeout` does).

    Raises:
        ProgramMissingError: the program does not exist or may not be executed.
    """
    words = tuple(str(a) for a in args)
    try:
        done = subprocess.run(
            words,
            env=None if env is None else dict(env),
            cwd=cwd,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            umask=_UMASK,
            check=False,
        )
    except (FileNotFoundError, PermissionError) as e:
        raise ProgramMissingError(f"cannot run {words[0]}: {e.strerror}", where=words[0]) from e
    except subprocess.TimeoutExpired:
        return Result(args=words, returncode=124, stdout="", stderr=f"{words[0]}: no end after {timeout} s")
    return Result(args=words, returncode=done.returncode, stdout=done.stdout, stderr=done.stderr)


def follow(
    args: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    cwd: Path,
    each: Callable[[str], object],
    timeout: float | None = None,
) -> Result:
    """Run a long program and hand on each line it prints, on either stream, as it comes.

    Args:
        args: program and arguments; never a shell line.
        env: the whole environment of the program.
        cwd: working directory.
        each: called with every line, without its end.
        timeout: seconds after which the program is killed, and with it only what ends with it.

    Returns:
        Exit status and the last lines, as stdout; negative for the signal that killed it, SIGKILL after `timeout`.

    Raises:
        ProgramMissingError: the program does not exist or may not be executed.
    """
    words = tuple(str(a) for a in args)
    lines: collections.deque[str] = collections.deque()
    kept = 0
    try:
        process = subprocess.Popen(
            words, env=dict(env), cwd=cwd, umask=_UMASK, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except (FileNotFoundError, PermissionError) as e:
        raise ProgramMissingError(f"cannot run {words[0]}: {e.strerror}", where=words[0]) from e
    stream = process.stdout
    assert stream is not None  # noqa: S101 - PIPE was asked for
    with process, _ended_after(timeout, process):
        try:
            while line := stream.readline(_LONGEST):
                lines.append(line.rstrip("\r\n"))
                kept += len(lines[-1]) + 1
                while kept > _KEPT:
                    kept -= len(lines.popleft()) + 1
                each(lines[-1])
        except BaseException:
            process.terminate()  # a killed client cancels its build in the engine
            raise
    return Result(args=words, returncode=process.returncode, stdout="\n".join(lines), stderr="")


@contextlib.contextmanager
def _ended_after(timeout: float | None, process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill a program that takes longer."""
    if timeout is None:
        yield
        return
    timer = threading.Timer(timeout, process.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Pipe:
    """A long-lived program that is spoken to over binary stdin and stdout; use as a context manager."""

    def __init__(self, args: Sequence[str | Path], *, env: Mapping[str, str]) -> None:
        """Start the program with `env` as its whole environment.

        Raises:
            ProgramMissingError: the program does not exist or may not be executed.
        """
        words = [str(a) for a in args]
        try:
            self._process = subprocess.Popen(
                words, env=dict(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except (FileNotFoundError, PermissionError) as e:
            raise ProgramMissingError(f"cannot run {words[0]}: {e.strerror}", where=words[0]) from e

    @property
    def stdin(self) -> IO[bytes]:
        """Binary stream into the program."""
        assert self._process.stdin is not None  # noqa: S101 - PIPE was asked for
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        """Binary stream out of the program."""
        assert self._process.stdout is not None  # noqa: S101 - PIPE was asked for
        return self._process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self.stdin.close()
        self.stdout.close()


def search_path() -> str:
    """PATH of this process, for programs that get an otherwise new environment."""
    return os.environ.get("PATH", os.defpath)


def network_settings() -> dict[str, str]:
    """Proxies and certificate bundles of this process."""
    return network.settings(os.environ)
