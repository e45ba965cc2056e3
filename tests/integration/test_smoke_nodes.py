"""The smoke tests on several nodes: they meet over real sockets, in real containers, under a real Slurm."""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
from pathlib import Path

import docker
import docker.errors
import pytest

import support.smoke_report  # noqa: F401  puts the smoke tests on the path
from support import engines
from support import slurm as slurm_here
from verlstack import unpacked
from verlstack.cache import Cache
from verlstack.compose import SMOKE_ROOT
from verlstack.progress import Silent
from verlstack.smoke import slurm

# isort: split
import launch
from smoke import nodes

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "smoke_tests"
IMAGE = "verlstack:cu121-sdpa"
RUN = ["/opt/verl/bin/python", "/opt/smoke_tests/run.py"]  # not where the image has its own, with bytecode of its own
PATIENCE = 300  # seconds for one call; each takes less than a minute on two quiet cores
# The last rank of a world does what no rank should; the others wait for it.
ENDS = """
import os, signal

def test_before(world):
    pass

def test_killed(world):
    if world.rank == world.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)

def test_left(world):
    if world.rank == world.size - 1:
        os._exit(3)

def test_hangs(world):
    while world.rank == world.size - 1:
        pass

def test_both_hang():
    while True:
        pass
"""


# -- meeting, in this process


def member(node):
    return launch.Member(node=node, host=f"h{node}", gpus=0)


def in_thread(call):
    """Start a call in a thread; the list gets its result."""
    found = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    return thread, found


def close(*lines):
    for line in lines:
        line.close()


def test_nodes_meet_in_any_order_and_know_their_addresses():
    port = nodes.free_port()
    said = []
    # node 2 is there long before node 0 listens; it says so once and goes on trying
    first, of_two = in_thread(lambda: nodes.join("127.0.0.1", port, 3, member(2), patience=30, note=said.append))
    while not said:
        first.join(0.01)
    second, of_one = in_thread(lambda: nodes.join("127.0.0.1", port, 3, member(1), patience=30, note=said.append))
    came = nodes.gather(port, 3, member(0), patience=30)
    first.join(10)
    second.join(10)
    assert list(came) == [member(1), member(2)]
    assert [line.address for line in (*came.values(), of_one[0], of_two[0])] == ["127.0.0.1"] * 4
    assert nodes.interface_of("127.0.0.1") == "lo"
    assert nodes.interface_of("192.0.2.1") is None
    came[member(2)].say(go=1)
    assert of_two[0].hear(10) == {"go": 1}
    close(*came.values(), *of_one, *of_two)
    assert said[0].startswith(f"node 2 (h2) does not reach node 0 at 127.0.0.1:{port} yet: nobody listens there")


def test_a_node_that_never_comes_is_named_and_the_others_are_told():
    port = nodes.free_port()
    other, line = in_thread(lambda: nodes.join("127.0.0.1", port, 4, member(2), patience=30, note=lambda _: None))
    with pytest.raises(nodes.MeetingError) as caught:
        nodes.gather(port, 4, member(0), patience=2)
    assert str(caught.value) == "nodes 1, 3 of 4 did not come within 2 s; there: node 0 (h0), node 2 (h2)"
    other.join(10)
    assert line[0].hear(10) == {"refused": str(caught.value)}
    close(*line)


def test_a_port_in_use_is_one_clear_line():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(nodes.MeetingError, match=rf"^port {port} is in use on node 0 \(h0\): name another"):
            nodes.gather(port, 2, member(0), patience=5)


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("127.0.0.1", r"nobody listens there \(is node 0 started\?\)"),
        ("nowhere.invalid", "the name nowhere.invalid cannot be resolved"),
    ],
)
def test_a_node_0_that_is_not_there_is_one_clear_line(host, why):
    with pytest.raises(nodes.MeetingError, match=rf"^node 1 \(h1\) does not reach node 0 at .* within 1 s: {why}$"):
        nodes.join(host, nodes.free_port(), 2, member(1), patience=1, note=lambda _: None)


def test_an_environment_without_torch_is_one_clear_line():
    # -S: this Python sees the standard library alone
    done = subprocess.run([sys.executable, "-S", SUITE / "run.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("this environment has no torch: ")
    assert done.stderr.count("\n") == 1


# -- in containers that have nothing in common but a network


@pytest.fixture(scope="module")
def client():
    """The engine, with the composed default stack in it."""
    env = engines.docker(start=True)
    with contextlib.closing(docker.DockerClient.from_env(environment=env, timeout=PATIENCE)) as client:
        try:
            client.images.get(IMAGE)
        except docker.errors.ImageNotFound:
            for words in (["build", "cu121", "--base", "debian"], ["prove", "cu121"]):
                subprocess.run([sys.executable, "-m", "verlstack", *words], cwd=ROOT, check=True)
        yield client


@pytest.fixture(scope="module")
def network(client):
    made = client.networks.create(f"nodes-{secrets.token_hex(4)}", internal=True)
    yield made.name
    made.remove()


def suite():
    """A tar of the smoke tests as they are in this checkout, and of the tests that end badly."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.add(SUITE, "smoke_tests", filter=lambda one: None if "__pycache__" in one.name else one)
        ends = tarfile.TarInfo("smoke_tests/ends/test_ends.py")
        ends.size = len(ENDS)
        archive.addfile(ends, io.BytesIO(ENDS.encode()))
    return data.getvalue()


class Node:
    """A container that runs one node's part."""

    def __init__(self, client, network, number, count, words):
        self.name = f"node{number}-{secrets.token_hex(4)}" if number else f"{network}-0"
        several = ["--nodes", str(count), "--node", str(number), "--rendezvous", f"{network}-0:29400"]
        self.container = client.containers.create(
            IMAGE,
            [*RUN, "--report", "/tmp/report", *(several if count > 1 else []), *words],
            name=self.name,
            hostname=self.name,
            network=network,
            user="54321:54321",
            environment={"SMOKE_DEVICE": "cpu"},
            shm_size="1g",
        )
        self.container.put_archive("/opt", suite())
        self.container.start()

    def ended(self):
        """Exit status, stdout, stderr."""
        status = self.container.wait(timeout=PATIENCE)["StatusCode"]
        out, err = (self.container.logs(stdout=o, stderr=not o).decode(errors="replace") for o in (True, False))
        return status, out, err

    def report(self):
        pieces, _ = self.container.get_archive("/tmp/report/smoke.json")
        with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
            return json.load(archive.extractfile("smoke.json"))


@pytest.fixture
def start(client, network):
    """A function that starts so many nodes with the same words."""
    started = []

    def start(count, *words):
        started[:] = [Node(client, network, number, count, words) for number in range(count)]
        return started

    yield start
    for node in started:
        with contextlib.suppress(docker.errors.NotFound):
            node.container.remove(force=True)


@pytest.mark.full
@pytest.mark.engine
def test_two_containers_are_two_nodes_of_one_world(start):
    both = start(2, "--ranks", "1,2,4", "--quick", "-k", "padding or names or checkpoint")
    (status, out, err), (other_status, other_out, _) = (node.ended() for node in both)
    assert (status, other_status) == (0, 0), out + err
    assert "left out: 1 ranks, not a multiple of the 2 nodes" in err
    report = both[0].report()
    assert [run["ranks"] for run in report["runs"]] == [2, 4]
    for run in report["runs"]:
        assert [node["host"] for node in run["nodes"]] == [node.name for node in both]
        held = [rank for node in run["nodes"] for rank in node["ranks"]]
        assert sorted(held) == list(range(run["ranks"]))
        assert {len(node["ranks"]) for node in run["nodes"]} == {run["ranks"] // 2}
        assert run["counts"]["passed"] > 5
    verdict = next(line for line in out.splitlines() if line.startswith("CPU, ranks 2, 4: passed"))
    assert verdict in other_out


@pytest.mark.full
@pytest.mark.engine
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("test_killed", "killed by SIGKILL"),
        ("test_left", "ended with exit status 3"),
        ("test_hangs", "hung: no end of a test after 10 s"),
    ],
)
def test_a_rank_that_dies_or_hangs_is_named_with_its_node(start, count, test, reason):
    there = start(count, "--ranks", "2", "--patience", "10", "ends/test_ends.py", "-k", f"before or {test}")
    ended = [node.ended() for node in there]
    assert [status for status, _, _ in ended] == [1] * count
    (run,) = there[0].report()["runs"]
    assert run["counts"] == {"passed": 1, "failed": 0, "not run": 0}
    (holder,) = (node for node in run["nodes"] if 1 in node["ranks"])
    says = f"rank 1 on node {holder['node']} ({holder['host']}) {reason} in ends/test_ends.py::{test}"
    assert says in run["headline"]
    assert all(says in out for _, out, _ in ended)
    if test == "test_hangs":
        assert run["last_lines"]["rank 1, stderr"][-1].strip() == "while world.rank == world.size - 1:"


@pytest.mark.full
@pytest.mark.engine
@pytest.mark.parametrize("victim", [0, 1])
def test_a_node_that_is_switched_off_ends_the_run_on_the_other(start, victim):
    both = start(2, "--ranks", "2", "ends/test_ends.py", "-k", "both_hang")
    for piece in both[victim].container.logs(stream=True, follow=True):
        if b"collected" in piece:  # then its tests run
            both[victim].container.kill()
    status, out, err = both[1 - victim].ended()
    assert status == 1
    if victim == 1:
        (run,) = both[0].report()["runs"]
        assert f"node 1 ({both[1].name}) is gone" in run["headline"]
    else:
        assert "node 0 has ended: " in err, out


# -- under Slurm, on two nodes that are this machine


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """The default stack's image, unpacked, with the smoke tests of this checkout in it."""
    if not (ROOT / "dist" / "cu121" / "oci-layout").is_file():
        words = ["build", "cu121", "--base", "debian"]
        subprocess.run([sys.executable, "-m", "verlstack", *words], cwd=ROOT, check=True)
    with (
        Cache.from_environment(os.environ).use() as cache,
        unpacked.unpacked(ROOT / "dist" / "cu121", cache, Silent()) as root,
    ):
        inside = root.folder / SMOKE_ROOT
        shutil.rmtree(inside)
        shutil.copytree(SUITE, inside, ignore=shutil.ignore_patterns("__pycache__"))
        (inside / "ends").mkdir()
        (inside / "ends" / "test_ends.py").write_text(ENDS)
        yield root.folder


@pytest.fixture(scope="module")
def cluster():
    # not tmp_path: a socket's path has at most 107 bytes
    with tempfile.TemporaryDirectory(prefix="slurm-") as name, slurm_here.cluster(Path(name)) as env:
        yield env


@pytest.mark.full
def test_the_job_file_runs_the_tests_on_two_nodes_of_a_slurm(cluster, image, tmp_path):
    text = (ROOT / "docs" / "jobs" / "unpacked.sbatch").read_text()
    report = tmp_path / "report"
    # what one would change in it: the places, no GPUs, and here fewer tests
    for old, new in (
        ("/shared/smoke-report", str(report)),
        ("/shared/verl-cu121", str(image)),
        ("#SBATCH --gpus-per-node=8\n", ""),
        ("USER=verl", "USER=verl SMOKE_DEVICE=cpu"),
        ("--report /mnt\n", "--report /mnt --quick -k 'padding or names'\n"),
    ):
        assert old in text
        text = text.replace(old, new)
    job = tmp_path / "unpacked.sbatch"
    job.write_text(text)
    words = ["sbatch", "--wait", f"--output={tmp_path}/log", job]
    done = subprocess.run(words, env=cluster, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, (tmp_path / "log").read_text()
    runs = json.loads((report / "smoke.json").read_text())["runs"]
    assert [run["ranks"] for run in runs] == [2, 4]
    assert all(sorted(r for node in run["nodes"] for r in node["ranks"]) == list(range(run["ranks"])) for run in runs)


@pytest.mark.full
def test_srun_hands_on_that_a_rank_was_killed(cluster, image, tmp_path):
    said = []
    more = ["ends/test_ends.py", "-k", "killed"]
    words = slurm.command(image, 2, [2], tmp_path, more, environment={"SMOKE_DEVICE": "cpu"})
    assert slurm.run(words, tmp_path, cluster, said.append) == 1
    assert any(
        "rank 1 on node" in line and "killed by SIGKILL in ends/test_ends.py::test_killed" in line for line in said
    )


@pytest.mark.full
def test_the_verb_starts_them_under_slurm_and_keeps_the_report(cluster, image, tmp_path):
    words = ["smoke", "cu121", "--launcher", "slurm", "--nodes", "2", "--ranks", "2,4", "--quick", "-k", "padding"]
    words = [sys.executable, "-m", "verlstack", *words, "--report", str(tmp_path / "report")]
    done = subprocess.run(words, env=cluster, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-5000:]
    assert "CPU, ranks 2, 4: passed, a selection of the tests" in done.stdout
    said = json.loads((tmp_path / "report" / "smoke.json").read_text())
    assert said["image"].startswith("cu121-sdpa@sha256:")
    # which node has which ranks, torchrun decides by process ids where both nodes are one machine
    ranks = [sorted(node["ranks"] for node in run["nodes"]) for run in said["runs"]]
    assert ranks == [[[0], [1]], [[0, 1], [2, 3]]]
    assert [node["node"] for node in said["doctor"]] == [0, 1]
    for node in said["doctor"]:
        codes = [finding["code"] for finding in node["findings"] if not finding["code"].startswith("HOST-")]
        assert codes == ["ENV-FLASH-LEFT-OUT"]  # verldoctor was asked there, and knows the image


def test_without_slurm_the_verb_says_so(tmp_path):
    nowhere = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    words = [sys.executable, "-m", "verlstack", "smoke", "/image", "--launcher", "slurm", "--nodes", "2"]
    done = subprocess.run(
        [*words, "--report", str(tmp_path / "report")], env=nowhere, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode not in {0, 1}
    assert "srun" in done.stderr
    assert "Traceback" not in done.stderr
