"""`verlstack smoke` with the real image: it passes, every breakage is noticed, and nothing is left behind."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import docker
import pytest

from support import engines, smoke_mutations
from verlstack.smoke import owner

pytestmark = [pytest.mark.full, pytest.mark.engine]

ROOT = Path(__file__).parents[2]
STACK = "cu121"
SITE = "/opt/verl/lib/python3.10/site-packages"
WORDS = [sys.executable, "-m", "verlstack", "smoke"]


@pytest.fixture(scope="module")
def env():
    """Variables of an engine, with the image built and loaded."""
    found = os.environ | engines.docker(start=True)
    for words in (["build", STACK, "--base", "debian"], ["prove", STACK]):
        subprocess.run([sys.executable, "-m", "verlstack", *words], env=found, cwd=ROOT, check=True)
    return found


@pytest.fixture(scope="module")
def client(env):
    return docker.DockerClient.from_env(environment=env)


def smoke(*words, env):
    return subprocess.run([*WORDS, *words], env=env, cwd=ROOT, text=True, capture_output=True, check=False)


def ours(client):
    wanted = {"label": owner.LABEL}
    return client.containers.list(all=True, filters=wanted) + client.networks.list(filters=wanted)


def outcomes(report, ranks):
    document = json.loads((report / f"ranks-{ranks}.json").read_text())
    return {result["name"]: result["outcome"] for result in document["results"]}


def test_the_whole_suite_passes_in_containers(env, client, tmp_path):
    """One, two and four ranks, and verl's own trainer end to end."""
    done = smoke(STACK, "--report", str(tmp_path), "--json", env=env)
    assert done.returncode == 0, done.stderr[-5000:]
    verdict = json.loads(done.stdout)
    assert verdict["headline"] == "CPU, ranks 1, 2, 4: passed; this says nothing about GPUs"
    assert verdict["on_gpu"] is False
    digest = json.loads((ROOT / "dist" / STACK / "index.json").read_text())["manifests"][0]["digest"]
    assert verdict["image"].endswith(f"@{digest}")
    assert digest in (tmp_path / "smoke.html").read_text()
    trainer = "training/test_main_ppo.py::test_killed_and_resumed_training_ends_with_the_same_weights"
    assert outcomes(tmp_path, 1)[trainer] == "passed"
    names = {"smoke.html", "smoke.json", "smoke.txt", "smoke-junit.xml", "ranks-1.json", "ranks-2.json", "ranks-4.json"}
    assert names <= {path.name for path in tmp_path.iterdir()}
    (node,) = json.loads((tmp_path / "smoke.json").read_text())["doctor"]
    codes = [finding["code"] for finding in node["findings"] if not finding["code"].startswith("HOST-")]
    assert codes == ["ENV-FLASH-LEFT-OUT"]  # it was asked, and knows the image
    for ranks, least in ((1, 60), (2, 65), (4, 69)):
        assert list(outcomes(tmp_path, ranks).values()).count("passed") >= least
    assert ours(client) == []


def test_every_breakage_is_noticed(env, client):
    """tests/support/smoke_mutations.py breaks one thing at a time; the test named there must fail of it."""
    mounts = {str(ROOT / "tests" / "support"): {"bind": "/mutations", "mode": "ro"}}
    words = ["/opt/verl/bin/python", "/opt/verlstack/smoke_tests/run.py", "--ranks", "1,2,4", "-p", "smoke_mutations"]
    container = client.containers.run(
        f"verlstack:{STACK}-sdpa",
        [*words, "--report", "/tmp/report"],
        user="54321:54321",
        network_mode="none",
        volumes=mounts,
        environment={"PYTHONPATH": "/mutations", "SMOKE_DEVICE": "cpu"},
        shm_size=1 << 30,
        detach=True,
    )
    try:
        status = container.wait()["StatusCode"]
        said = container.logs().decode(errors="replace")
        sent = io.BytesIO(b"".join(container.get_archive("/tmp/report/smoke.json")[0]))
    finally:
        container.remove(force=True)
    assert status == 0, said[-5000:]
    with tarfile.open(fileobj=sent) as archive:
        runs = json.load(archive.extractfile("smoke.json"))["runs"]
    results = [result for run in runs for result in run["results"]]
    assert len({result["name"] for result in results}) == len(results)
    assert len(results) == sum(map(len, smoke_mutations.MUTATIONS.values()))
    assert {result["outcome"] for result in results} == {"passed"}
    assert all(result["figures"]["failed with"] for result in results)


def test_without_an_engine_the_image_is_unpacked_and_passes(env, tmp_path):
    without = {name: value for name, value in env.items() if not name.startswith("DOCKER_")}
    done = smoke(STACK, "--ranks", "1,2", "--quick", "--report", str(tmp_path), "-k", "sharding or actor", env=without)
    assert done.returncode == 0, done.stderr[-5000:]
    headline = "CPU, ranks 1, 2: passed, a selection of the tests; this says nothing about GPUs"
    assert done.stdout.splitlines()[1] == headline
    assert "unpack: " in done.stderr
    assert (tmp_path / "smoke.html").is_file()


def test_several_nodes_are_containers_on_a_network_that_goes_away(env, client, tmp_path):
    words = ["--nodes", "2", "--ranks", "2,4", "--quick", "-k", "gradients", "--report", str(tmp_path)]
    done = smoke(STACK, *words, env=env)
    assert done.returncode == 0, done.stderr[-5000:]
    said = json.loads((tmp_path / "smoke.json").read_text())
    assert [run["ranks"] for run in said["runs"]] == [2, 4]
    assert (tmp_path / "node-1.log").read_bytes()
    assert ours(client) == []


def test_a_failure_inside_is_a_failure_outside(env, tmp_path):
    done = smoke(STACK, "--ranks", "1", "-k", "no_such_test", "--report", str(tmp_path), env=env)
    assert done.returncode == 1
    assert "FAILED" in done.stdout


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU here")
def test_gpus_where_there_are_none(env, client, tmp_path):
    done = smoke(STACK, "--gpus", "1", "--ranks", "1", "--report", str(tmp_path), env=env)
    assert done.returncode == 11
    assert "NVIDIA's container toolkit" in done.stderr
    assert "Traceback" not in done.stderr
    assert ours(client) == []


def test_an_image_of_somebody_else(env, client, tmp_path):
    client.api.import_image_from_data(empty_tar(), repository="verlstack-test-foreign", tag="1")
    try:
        done = smoke("verlstack-test-foreign:1", "--report", str(tmp_path), env=env)
    finally:
        client.images.remove("verlstack-test-foreign:1")
    assert done.returncode == 2
    assert "was not made by verlstack" in done.stderr


def empty_tar():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("empty"))
    return out.getvalue()


@pytest.mark.parametrize("name", ["no-such-image:1", "Not A Reference", "-x"])
def test_no_such_image(env, tmp_path, name):
    done = smoke("--report", str(tmp_path), "--", name, env=env)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@contextlib.contextmanager
def changed(client, words):
    """The name of an image in which root has run a command; the label says that it is ours."""
    container = client.containers.create(f"verlstack:{STACK}-sdpa", words, user="0")
    try:
        container.start()
        assert container.wait()["StatusCode"] == 0
        container.commit(repository="verlstack-test-changed", tag="1")
    finally:
        container.remove(force=True)
    try:
        yield "verlstack-test-changed:1"
    finally:
        client.images.remove("verlstack-test-changed:1", force=True)


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_an_environment_that_is_no_longer_the_images_ends_the_run_before_any_test(env, client, tmp_path, nodes):
    with changed(client, ["mv", f"{SITE}/einops-0.8.1.dist-info", f"{SITE}/einops-0.8.2.dist-info"]) as image:
        done = smoke(image, "--nodes", nodes, "--ranks", "2", "--quick", "--report", str(tmp_path), env=env)
    assert done.returncode == 1
    assert "einops is 0.8.2; the stack is proved with 0.8.1" in done.stdout
    assert "fix: pip install --no-deps 'einops==0.8.1'" in done.stderr
    assert "test session starts" not in done.stderr
    said = json.loads((tmp_path / "smoke.json").read_text())
    assert said["runs"] == []
    stops = [f["code"] for node in said["doctor"] for f in node["findings"] if f["stops"]]
    assert stops == ["ENV-PIN"] * int(nodes)
    assert "einops is 0.8.2" in (tmp_path / "smoke.html").read_text()


@pytest.mark.parametrize("package", ["torch", "verl"])
def test_an_image_that_is_broken_leaves_a_clear_word(env, client, tmp_path, package):
    """The package is gone from it; the label says that it is ours."""
    with changed(client, ["rm", "-rf", f"{SITE}/{package}"]) as image:
        done = smoke(image, "--ranks", "1", "-k", "wrap or policy", "--report", str(tmp_path), env=env)
    assert done.returncode != 0
    assert f"this environment has no {package}" in done.stderr or f"this image has no {package}" in done.stderr
    if package == "torch":
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda s: s.name)
def test_nothing_is_left_of_a_run_that_is_stopped(env, client, tmp_path, how):
    """After SIGKILL the next run sweeps."""
    words = [*WORDS, STACK, "--ranks", "1", "--report", str(tmp_path)]
    running = subprocess.Popen(words, env=env, cwd=ROOT, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    with running:
        next(line for line in running.stderr if "test session starts" in line)
        running.send_signal(how)
        said = running.stderr.read()
    if how == signal.SIGKILL:
        assert len(ours(client)) == 1
        smoke(STACK, "--ranks", "1", "-k", "no_such_test", "--report", str(tmp_path), env=env)
    else:
        assert running.returncode == 130
        assert "Traceback" not in said
    assert ours(client) == []
