"""Container engines for tests: the Docker that runs here, and a Podman of one's own behind its Docker socket."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docker" / "engine.sh"

# Fewer open files than Podman's default, which a container without CAP_SYS_RESOURCE may not ask for; runc where it is,
# because crun refuses machines whose cgroups are half of version 1.
CONTAINERS = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
{runtime}
"""

HAND_OVER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)  # the first descriptor of sd_listen_fds(3)
os.execvpe(sys.argv[2], sys.argv[2:], os.environ | {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())})
"""


def docker(*, start: bool = False) -> dict[str, str]:
    """Environment of the engine that the user names, or that docker/engine.sh has started; skips without one.

    Args:
        start: as root, start one where none runs.
    """
    if "DOCKER_HOST" in os.environ:
        return {k: v for k, v in os.environ.items() if k.startswith("DOCKER_")}
    if start and os.geteuid() == 0:
        subprocess.run([SCRIPT, "start"], check=True)
    lines = subprocess.run([SCRIPT, "env"], capture_output=True, text=True, check=False)
    if lines.returncode:
        pytest.skip("no container engine runs here: docker/engine.sh start")
    names = ("DOCKER_HOST", "DOCKER_CONFIG", "PATH")
    script = f'{lines.stdout}\nprintf "%s\\n" ' + " ".join(f'"${name}"' for name in names)
    values = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()
    return dict(zip(names, values, strict=True))


def forget(env: dict[str, str]) -> None:
    """Empty BuildKit's cache where the engine is the tests' own: CI's disk does not hold several builds of a stack."""
    if "DOCKER_HOST" not in os.environ:
        words = ["docker", "buildx", "prune", "--all", "--force"]
        subprocess.run(words, env=os.environ | env, stdout=subprocess.DEVNULL, check=False)


@contextlib.contextmanager
def podman() -> Iterator[dict[str, str]]:
    """Environment of a Podman service with data of its own, gone afterwards; skips without Podman or root."""
    if not shutil.which("podman"):
        pytest.skip("podman is not installed: apt-get install podman")
    if os.geteuid() != 0:
        pytest.skip("podman is tested as root")
    # not tmp_path: a socket's path has at most 107 bytes
    with tempfile.TemporaryDirectory(prefix="podman-", ignore_cleanup_errors=True) as name, _service(Path(name)) as env:
        yield env


@contextlib.contextmanager
def _service(folder: Path) -> Iterator[dict[str, str]]:
    runtime = 'runtime = "runc"' if shutil.which("runc") else ""
    (folder / "containers.conf").write_text(CONTAINERS.format(runtime=runtime))
    log = (folder / "log").open("w")
    # We make the socket and hand it over (sd_listen_fds(3)), so nobody need wait until the service listens.
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "sock"))
        listener.listen()
        podman = ["podman", f"--root={folder}/root", f"--runroot={folder}/run", "--storage-driver=vfs"]
        service = subprocess.Popen(
            [sys.executable, "-c", HAND_OVER, str(listener.fileno()), *podman, "system", "service", "--time=0"],
            pass_fds=[listener.fileno()],
            env=os.environ | {"CONTAINERS_CONF": str(folder / "containers.conf")},
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    try:
        yield {"DOCKER_HOST": f"unix://{folder}/sock"}
    finally:
        service.terminate()
        service.wait()
        sys.stderr.write((folder / "log").read_text())  # shown where a test fails
        log.close()
