"""The words for Slurm, and the job files in docs/jobs, which are made of the same words."""

import re
from pathlib import Path

import pytest
import yaml

import support.smoke_report  # noqa: F401  puts the smoke tests on the path
from verlstack import shell
from verlstack.cache import Cache
from verlstack.errors import EngineError, UsageError
from verlstack.progress import Silent
from verlstack.smoke import run as smoke_run
from verlstack.smoke import slurm
from verlstack.smoke.request import Request

# isort: split
import launch
import run

JOBS = Path(__file__).parents[2] / "docs" / "jobs"
REPORT = Path("/shared/smoke-report")
IMAGES = {
    "unpacked": "/shared/verl-cu121",
    "apptainer": "/shared/verl-cu121.sif",
    "pyxis": "registry.example.org#verl:cu121",
}


def words(name, **options):
    return slurm.command(IMAGES[name], 2, None, REPORT, **options)


@pytest.mark.parametrize("name", IMAGES)
def test_a_job_file_is_what_the_command_makes(name):
    assert (JOBS / f"{name}.sbatch").read_text() == slurm.script(words(name), 2, REPORT, gpus=8, minutes=30)


@pytest.mark.parametrize("name", IMAGES)
def test_every_way_runs_the_same_program_once_a_node(name):
    found = slurm.command(IMAGES[name], 3, [3, 6], REPORT, ["--quick", "-k", "a b"], gpus=2, environment={"A": "1 2"})
    assert found[:4] == ("srun", "--nodes=3", "--ntasks=3", "--ntasks-per-node=1")
    assert "--gpus-per-node=2" in found
    program = ("/opt/verl/bin/python", "/opt/verlstack/smoke_tests/run.py", "--report", "/mnt", "--ranks", "3,6")
    assert found[-10:] == ("A=1 2", *program, "--quick", "-k", "a b")


def test_how_each_way_enters_the_image():
    assert "unshare --mount" in words("unpacked")[words("unpacked").index("sh") + 2]
    assert "/shared/verl-cu121" in words("unpacked")
    assert {"apptainer", "--cleanenv", "/shared/smoke-report:/mnt"} <= set(words("apptainer"))
    assert "--container-image=registry.example.org#verl:cu121" in words("pyxis")
    assert "--container-mounts=/shared/smoke-report:/mnt" in words("pyxis")
    squashed = slurm.command("/shared/verl.sqsh", 2, None, REPORT)
    assert "--container-image=/shared/verl.sqsh" in squashed


@pytest.mark.parametrize("name", ["apptainer", "pyxis"])
@pytest.mark.parametrize("report", ["/shared/a,/etc:/etc", "/shared/a:b"])
def test_a_report_that_would_be_read_as_more_mounts_is_refused(name, report):
    with pytest.raises(UsageError, match="comma or colon"):
        slurm.command(IMAGES[name], 2, None, Path(report))
    slurm.command(IMAGES["unpacked"], 2, None, Path(report))


def test_a_step_of_a_larger_job_meets_at_its_own_first_node():
    script = words("pyxis")[words("pyxis").index("-c") + 1]
    assert "list=${SLURM_STEP_NODELIST:-$SLURM_JOB_NODELIST}" in script
    assert '--nodes "$nodes"' in script


def test_a_relative_report_is_refused():
    with pytest.raises(UsageError, match="absolute"):
        slurm.command("/image", 2, None, Path("report"))


@pytest.mark.parametrize(
    ("listed", "first"),
    [("n1", "n1"), ("n[1-2]", "n1"), ("n[01-04,07],m", "n01"), ("a,b", "a"), ("a-1,b", "a-1"), ("r[3]-x,b", "r3-x")],
)
def test_the_first_name_is_read_off_a_list_without_scontrol(listed, first):
    # the same expression as in the script, in Python's words; the script itself runs in tests/integration
    (expression,) = re.findall(r"sed -E 's/(.*)/\\1\\3\\4/'", slurm._MEET)
    found = re.sub(expression, lambda m: "".join(m[n] or "" for n in (1, 3, 4)), listed)
    assert found == first


# -- whether there is a Slurm


def answer(status, stderr=""):
    return lambda words, **_: shell.Result(args=words, returncode=status, stdout="", stderr=stderr)


def test_a_slurm_that_answers():
    slurm.check_reach({}, answer(0))


def test_a_slurm_out_of_reach_says_what_sinfo_says():
    with pytest.raises(EngineError, match="no Slurm answers here:\nsinfo: fatal: no source") as e:
        slurm.check_reach({}, answer(1, "sinfo: fatal: no source\n"))
    assert "login node" in e.value.todo


def test_no_programs_of_slurm():
    def missing(words, **_):
        raise shell.ProgramMissingError("cannot run sinfo", where="sinfo")

    with pytest.raises(EngineError, match="sinfo and srun are not installed"):
        slurm.check_reach({}, missing)


def test_without_a_slurm_nothing_is_unpacked(tmp_path, monkeypatch):
    def refuse(env):
        raise EngineError("no Slurm answers here")

    monkeypatch.setattr(slurm, "check_reach", refuse)
    monkeypatch.setattr(smoke_run, "unpacked", lambda *_: pytest.fail("it was unpacked"))
    monkeypatch.setattr(smoke_run, "_known", lambda *_: "x")
    with Cache(tmp_path / "cache").use() as cache, pytest.raises(EngineError, match="no Slurm"):
        smoke_run.scheduled(
            "x", tmp_path, Request(), tmp_path / "report", cache=cache, progress=Silent(), say=print, tell=print
        )
    assert not (tmp_path / "report").exists()


# -- Kubernetes


@pytest.fixture
def documents():
    return {one["kind"]: one for one in yaml.safe_load_all((JOBS / "kubernetes.yaml").read_text())}


def test_the_job_and_its_service_fit_together(documents):
    service, job = documents["Service"], documents["Job"]
    pod = job["spec"]["template"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["subdomain"] == service["metadata"]["name"]
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
    (volume,) = pod["spec"]["volumes"]
    assert volume["emptyDir"]["medium"] == "Memory"
    assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/dev/shm"}]


def test_the_pods_run_the_program_as_it_is(documents):
    job = documents["Job"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    line = container["command"][2].replace('"$JOB_COMPLETION_INDEX"', "1").split()
    options, more = run._parser().parse_known_args(line[line.index("--report") :])
    assert (options.nodes, options.node, more) == (job["spec"]["completions"], 1, [])
    assert options.rendezvous == launch.endpoint(f"{job['metadata']['name']}-0.verl-smoke:29400")
