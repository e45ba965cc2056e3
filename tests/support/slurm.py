"""A real Slurm of two nodes on this machine, from Debian's packages, with everything of it in one folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client"}
NODES = ("n1", "n2")
PATIENCE = 120  # seconds until the first job has run; a few are usual
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
KillWait=5
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Environment of srun and sbatch for this Slurm, which ends with the block; skips where it cannot be.

    Args:
        folder: short, for a socket's path has at most 107 bytes.
    """
    missing = [package for program, package in PACKAGES.items() if not shutil.which(program)]
    if missing:
        pytest.skip(f"no Slurm here: apt-get install --no-install-recommends {' '.join(missing)}")
    if os.geteuid() != 0:
        pytest.skip("Slurm's daemons are tested as root")
    with contextlib.ExitStack() as stack:
        for words in _daemons(folder):
            stack.enter_context(_running(words, folder))
        env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        done = subprocess.run(["srun", "-N2", "-n2", "true"], env=env, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            logs = "\n".join(f"== {path.name}\n{path.read_text()[-2000:]}" for path in folder.glob("*.log"))
            sys.stderr.write(logs)
        assert done.returncode == 0, done.stderr
        yield env


def _daemons(folder: Path) -> Iterator[list[str]]:
    """The words of each daemon; files are written before the daemon that reads them starts."""
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    files = {"socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log", "seed-file": "munge.seed"}
    options = [f"--{option}={folder / name}" for option, name in files.items()]
    yield ["munged", "--foreground", "--force", f"--key-file={key}", *options]
    host = socket.gethostname().partition(".")[0]
    ports = _free_ports(1 + len(NODES))
    nodes = [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN"
        for name, port in zip(NODES, ports[1:], strict=True)
    ]
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=host, folder=folder, control=ports[0], nodes="\n".join(nodes)))
    (folder / "state").mkdir()
    yield ["slurmctld", "-D", "-f", str(conf)]
    # jobs find the nodes by name, as on a cluster, but this machine's own /etc/hosts stays as it is
    hosts = folder / "hosts"
    hosts.write_text(Path("/etc/hosts").read_text() + "".join(f"127.0.0.1 {name}\n" for name in NODES))
    own = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts)]
    for name in NODES:
        (folder / f"spool-{name}").mkdir()
        yield [*own, "slurmd", "-D", "-N", name, "-f", str(conf)]


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]


@contextlib.contextmanager
def _running(words: list[str], folder: Path) -> Iterator[None]:
    with (folder / f"{words[-1 if words[0] == 'munged' else 0].rpartition('/')[2]}.out").open("w") as out:
        process = subprocess.Popen(words, stdout=out, stderr=out)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
