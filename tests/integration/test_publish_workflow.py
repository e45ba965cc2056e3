"""The scripts of the workflow publish, on the tiny stack and Debian's docker-registry with TLS and a password."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import debian_programs
from support.gitcommand import git
from support.real_registry import LOGIN, Real
from support.signatures import pair
from support.sigstore_services import IDENTITY, ISSUER, Services

GITHUB = Path(__file__).parents[2] / ".github"
SECRET = b"a long passphrase"
# Stands for .venv's: the tiny image starts no Python and holds no real tests, so these two verbs are played. SIGNERS
# and VERIFIERS name a Sigstore on loopback, for the public one is none for tests.
PROGRAM = """#!/bin/sh
case $1 in
prove) exit 0 ;;
smoke)
    digest=$(jq -r '.manifests[0].digest' dist/tiny/index.json)
    mkdir -p "$5"
    printf '{{"image": "tiny@%s", "ok": %s}}' "$digest" "${{SMOKE_OK:-true}}" >"$5/smoke.json"
    [ "${{SMOKE_OK:-true}}" = true ] ;;
build | mirror | publish) exec {words} "$@" --constraints constraints --python-tree {tree} ;;
attest) exec {words} "$@" $SIGNERS --constraints constraints --python-tree {tree} ;;
sign) exec {words} "$@" $SIGNERS ;;
verify) exec {words} "$@" $VERIFIERS ;;
*) exec {words} "$@" ;;
esac
"""
GH = """#!/bin/sh
printf '%s\\n' "$*" >>"$GH_LOG"
case "$1 $2" in
"pr list" | "issue list") cat "$GH_ANSWER" ;;
esac
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    folder = tmp_path_factory.mktemp("registry")
    with Real(debian_programs.program("docker-registry", folder), folder, secure=True) as one:
        yield one


class Checkout:
    """The tiny stack with the workflow's scripts and a `.venv` that runs the program under test."""

    def __init__(self, tiny, registry, folder):
        self.root, self.tiny, self.registry, self.keys = tiny.root, tiny, registry, folder
        (tiny.root / "docs").mkdir()
        (tiny.root / "Dockerfile").write_text("FROM scratch\n")
        shutil.copytree(GITHUB, tiny.root / ".github")
        bin_ = tiny.root / ".venv" / "bin"
        bin_.mkdir(parents=True)
        words = f"{sys.executable} -m verlstack"
        (bin_ / "verlstack").write_text(PROGRAM.format(words=words, tree=sys.base_prefix))
        (bin_ / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        for path in bin_.iterdir():
            path.chmod(0o755)
        self.private, self.public = pair(folder, "ci", password=SECRET)

    def settings(self, **changes):
        user, password = LOGIN
        known = self.tiny.environment() | {
            "REPOSITORY": f"{self.registry.host}/team/{self.keys.name}",
            "USERNAME": user,
            "PASSWORD": password,
            "GITHUB_TOKEN": "ghs-token",
            "SIGNING_KEY": self.private.read_text(),
            "SIGNING_PUBLIC_KEY": self.public.read_text(),
            "COSIGN_PASSWORD": SECRET.decode(),
            "SSL_CERT_FILE": str(self.registry.authority),
            "GITHUB_SERVER_URL": "https://github.com",
            "GITHUB_REPOSITORY": "team/verl",
            "GITHUB_WORKFLOW_REF": "team/verl/.github/workflows/publish.yml@refs/tags/v1",
            "GITHUB_RUN_ID": "7",
            "GITHUB_RUN_ATTEMPT": "1",
            "TMPDIR": str(self.keys),
        }
        return known | changes

    def run(self, script, *words, check=True, **changes):
        line = [f".github/{script}", *map(str, words)]
        done = subprocess.run(line, cwd=self.root, env=self.settings(**changes), capture_output=True, text=True)
        said = done.stdout + done.stderr
        assert not check or done.returncode == 0, said
        assert LOGIN[1] not in said
        assert SECRET.decode() not in said
        return done

    def build(self):
        self.run("candidate.sh", "tiny", self.tiny.base, "candidate")


@pytest.fixture
def checkout(tiny, registry, tmp_path):
    if not shutil.which("jq"):
        pytest.skip("no jq, which GitHub's machines have")
    (tmp_path / "keys").mkdir()
    keys = tmp_path / tmp_path.name.replace("_", "-").lower()
    keys.mkdir()
    yield Checkout(tiny, registry, keys)
    left = {path.name for path in keys.iterdir()} - {"ci.key", "ci.pub"}
    assert left == set(), "secrets or what was pulled are left behind"


def test_built_tested_published_and_verified(checkout):
    checkout.build()
    digest = checkout.tiny.digest()
    assert (checkout.root / "candidate" / "digest").read_text().strip() == digest
    checkout.run("publish.sh", "tiny", "candidate", "published.json")
    done = json.loads((checkout.root / "published.json").read_text())
    assert done["digest"] == digest
    assert done["release"]["dockerfile"] == "", "the tiny stack is composed alone"
    checkout.run("publish.sh", "tiny", "candidate", "published.json")  # a job that is run again

    shutil.rmtree(checkout.root / "dist")
    shutil.rmtree(checkout.root / "cache")
    said = checkout.run("verify.sh", "published.json", SIGNING_KEY="", COSIGN_PASSWORD="")
    last = json.loads(said.stdout.splitlines()[-1])  # of what was pulled, every blob
    assert last["digest"] == digest
    assert len(last["attested"]) == 4

    other = pair(checkout.keys.parent / "keys", "other")[1]
    refused = checkout.run("verify.sh", "published.json", check=False, SIGNING_PUBLIC_KEY=other.read_text())
    assert refused.returncode == 16, refused.stderr
    document = done | {"digest": f"sha256:{'0' * 64}"}
    (checkout.root / "moved.json").write_text(json.dumps(document))
    refused = checkout.run("verify.sh", "moved.json", check=False)
    assert refused.returncode == 1
    assert f"leads to {digest}" in refused.stderr


def test_signed_without_a_key(checkout):
    checkout.build()
    with Services() as services:
        root, config = services.write(checkout.root)
        job = {
            "GITHUB_ACTIONS": "true", "SIGNING": "keyless",
            "SIGNING_KEY": "", "COSIGN_PASSWORD": "", "SIGNING_PUBLIC_KEY": "",
            "SIGNERS": f"--trusted-root {root} --signing-config {config}", "VERIFIERS": f"--trusted-root {root}",
        }  # fmt: skip
        asks = {
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "of the job",
            "ACTIONS_ID_TOKEN_REQUEST_URL": f"{services.url}/token?x=1",
        }  # fmt: skip
        refused = checkout.run("publish.sh", "tiny", "candidate", "published.json", check=False, **job)
        assert (refused.returncode, "gives this job no token" in refused.stderr) == (5, True)
        checkout.run("publish.sh", "tiny", "candidate", "published.json", **job, **asks)
    said = checkout.run("verify.sh", "published.json", **job)
    last = json.loads(said.stdout.splitlines()[-1])
    assert len(last["attested"]) == 4
    assert list(last["signed"]) == [f"{IDENTITY} ({ISSUER})"]
    elsewhere = {"GITHUB_WORKFLOW_REF": "team/verl/.github/workflows/publish.yml@refs/heads/main"}
    refused = checkout.run("verify.sh", "published.json", check=False, **job, **elsewhere)
    assert refused.returncode == 16, refused.stderr


@pytest.mark.parametrize("script", ["publish.sh", "verify.sh"])
def test_another_way_of_signing_is_not_taken_for_a_key(checkout, script):
    done = checkout.run(script, "tiny", "candidate", "published.json", check=False, SIGNING="Keyless")
    assert (done.returncode, "SIGNING is Keyless" in done.stderr) == (2, True)


def test_a_failed_smoke_test_is_no_candidate(checkout):
    done = checkout.run("candidate.sh", "tiny", checkout.tiny.base, "candidate", check=False, SMOKE_OK="false")
    assert done.returncode == 1
    assert not (checkout.root / "candidate" / "digest").exists()


def test_another_digest_than_the_tested_one_is_not_published(checkout):
    checkout.build()
    (checkout.root / "candidate" / "digest").write_text(f"sha256:{'0' * 64}\n")
    done = checkout.run("publish.sh", "tiny", "candidate", "published.json", check=False)
    assert done.returncode == 1
    assert "the machine that tested tiny built sha256:000" in done.stderr
    assert not (checkout.root / "published.json").exists()


@pytest.mark.parametrize(
    ("script", "name"),
    [("publish.sh", "REPOSITORY"), ("publish.sh", "SIGNING_KEY"), ("verify.sh", "SIGNING_PUBLIC_KEY")],
)
def test_a_setting_that_is_missing_is_named(checkout, script, name):
    done = checkout.run(script, "tiny", "candidate", "published.json", check=False, **{name: ""})
    assert done.returncode == 2
    assert f"{name} is empty" in done.stderr


@pytest.mark.parametrize(
    ("host", "password", "sent"),
    [
        ("ghcr.io", "", "user:ghs-token"),
        ("ghcr.io", "own", "user:own"),
        ("registry.example.org:5000", "own", "user:own"),
        ("registry.example.org:5000", "", None),
        ("ghcr.io.example.org", "", None),
    ],
)
def test_the_workflows_token_goes_to_github_alone(tmp_path, host, password, sent):
    command = f'. "{GITHUB}/login.sh"; log_in "$1"; echo "$DOCKER_CONFIG ${{PASSWORD-gone}} ${{GITHUB_TOKEN-gone}}"'
    env = {"PATH": os.environ["PATH"], "REPOSITORY": f"{host}/team/verl", "USERNAME": "user", "PASSWORD": password}
    words = ["bash", "-euc", command, "bash", tmp_path]
    done = subprocess.run(words, env=env | {"GITHUB_TOKEN": "ghs-token"}, capture_output=True, text=True, check=True)
    assert done.stdout == f"{tmp_path} gone gone\n"
    if sent is None:
        assert not (tmp_path / "config.json").exists()
    else:
        (auth,) = json.loads((tmp_path / "config.json").read_text())["auths"].items()
        assert auth == (host, {"auth": base64.b64encode(sent.encode()).decode()})


# -- what becomes a pull request or an issue; `gh` is played, git is real


@pytest.fixture
def hub(tmp_path):
    """(checkout, environment) of a small repository with a bare origin, and a `gh` that writes down its words."""
    root = tmp_path / "work"
    (root / "constraints").mkdir(parents=True)
    (root / "docs").mkdir()
    (root / "constraints" / "releases.toml").write_text("# none\n")
    (root / "docs" / "images.md").write_text("none\n")
    shutil.copytree(GITHUB, root / ".github")
    (root / ".venv" / "bin").mkdir(parents=True)
    (root / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (root / ".gitignore").write_text("/.venv\n*.json\n")
    git(root, "init", "--quiet")
    git(root, "add", "-A")
    git(root, "commit", "--quiet", "-m", "tagged")
    git(tmp_path, "init", "--quiet", "--bare", "origin.git")
    git(root, "remote", "add", "origin", str(tmp_path / "origin.git"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gh").write_text(GH)
    (tmp_path / "bin" / "gh").chmod(0o755)
    env = os.environ | {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "GH_LOG": str(tmp_path / "gh.log"),
        "GH_ANSWER": str(tmp_path / "answer"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    return root, env


def published(root, stack):
    digits = str(len(stack)) * 64
    row = dict.fromkeys(("digest", "lock", "dockerfile"), f"sha256:{digits}")
    row |= {"release": f"{stack} 20250304", "reference": f"registry.example.org/verl:{stack}"}
    (root / f"{stack}.json").write_text(json.dumps({"release": row}))
    return f"{stack}.json"


def propose(hub, *files, open_ones):
    root, env = hub
    Path(env["GH_ANSWER"]).write_text(f"{open_ones}\n")
    words = [".github/propose.sh", "v1", *files]  # record.py does the writing
    done = subprocess.run(words, cwd=root, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, Path(env["GH_LOG"]).read_text() if Path(env["GH_LOG"]).exists() else ""


def test_what_was_published_is_proposed_on_a_branch_of_its_own(hub):
    root, _ = hub
    start = git(root, "rev-parse", "HEAD")
    _, asked = propose(hub, published(root, "cu121"), published(root, "cu121-vllm"), open_ones=0)
    assert "pr create --head published-v1 --title Published images of v1" in asked
    page = git(root, "show", "origin/published-v1:docs/images.md")
    assert "cu121 20250304" in page
    assert "cu121-vllm 20250304" in page
    assert git(root, "rev-parse", "origin/published-v1~1") == start

    git(root, "switch", "--quiet", "--detach", start)  # the job again, on a new machine
    git(root, "branch", "--quiet", "-D", "published-v1")
    Path(hub[1]["GH_LOG"]).unlink()
    _, asked = propose(hub, "cu121.json", open_ones=1)
    assert "pr create" not in asked, "one is open already"

    said, _ = propose(hub, "cu121.json", open_ones=1)
    assert "already" in said


@pytest.mark.parametrize(("known", "verb"), [("", "issue create --title"), ("12\n", "issue comment 12")])
def test_a_difference_becomes_one_issue(hub, known, verb):
    root, env = hub
    Path(env["GH_ANSWER"]).write_text(known)
    (root / "report.txt").write_text("x" * 60_000)
    words = [".github/difference.sh", "registry.example.org/verl@sha256:1", "cu121", "report.txt"]
    subprocess.run(words, cwd=root, env=env | {"RUN": "https://run.example.org"}, capture_output=True, check=True)
    assert verb in Path(env["GH_LOG"]).read_text()
    body = (root / "body.md").read_text()
    assert body.startswith("`registry.example.org/verl@sha256:1` was not reproduced, see https://run.example.org\n")
    assert len(body) < 65_536, "the most that an issue takes"


def test_a_proof_that_ended_before_its_report_is_told_all_the_same(hub):
    root, env = hub
    Path(env["GH_ANSWER"]).write_text("")
    words = [".github/difference.sh", "r@sha256:1", "cu121", "report.txt"]
    subprocess.run(words, cwd=root, env=env | {"RUN": "https://run.example.org"}, capture_output=True, check=True)
    assert (root / "body.md").exists()
