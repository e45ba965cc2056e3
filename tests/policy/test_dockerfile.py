"""Dockerfile and lock agree: each layer has its stage, no version stands in it, the environment is that of the pins."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from verlstack import bakefile, compose, lockfile, pins

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints"
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
# The others are composed alone: they name nothing for the Dockerfile to stand on.
STACKS = [
    name for name in pins.names(CONSTRAINTS / "stacks.toml") if pins.load(CONSTRAINTS / "stacks.toml", name).dockerfile
]
# Instructions without comments, continued lines joined.
INSTRUCTIONS = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE)).splitlines()


def lock_of(name):
    stack = pins.load(CONSTRAINTS / "stacks.toml", name)
    return stack, lockfile.load(CONSTRAINTS, stack)


def bake_of(name):
    document = json.loads(bakefile.path(CONSTRAINTS, name).read_text(encoding="utf-8"))
    return document["variable"][bakefile.VARIABLE]["default"]


def stages():
    return [match[1] for line in INSTRUCTIONS if (match := re.match(r"FROM \S+ AS (\S+)$", line))]


def test_every_stage_that_is_promised_is_there():
    promised = {"base", "tools", "toolchain", "flash-attn", "verl", "runtime", "devel"}
    assert promised <= set(stages())
    assert promised <= {word for line in DOCKERFILE.splitlines()[:25] for word in re.findall(r"[\w-]+", line)}


@pytest.mark.parametrize("name", STACKS)
def test_every_layer_of_a_lock_has_its_stage_and_is_copied(name):
    _, lock = lock_of(name)
    copied = re.findall(r"^COPY --link --from=layer-(\S+) /out/ /$", "\n".join(INSTRUCTIONS), re.MULTILINE)
    for layer in lock.layers:
        assert f"layer-{layer.name}" in stages(), f"add a stage layer-{layer.name}, like its neighbours"
        assert layer.name in copied
        if layer.packages:
            assert f"ARG {bakefile.argument(layer.name)}" in INSTRUCTIONS


def test_layers_are_copied_in_the_order_of_the_default_lock():
    _, lock = lock_of("cu121")
    copied = re.findall(r"--from=layer-(\S+) ", "\n".join(INSTRUCTIONS))
    own = [layer.name for layer in lock.layers]
    assert [name for name in copied if name in own] == own


def test_each_stage_uses_its_own_argument_alone():
    bodies = re.split(r"^FROM ", "\n".join(INSTRUCTIONS), flags=re.MULTILINE)
    layers = [body for body in bodies if body.startswith("installer AS layer-")]
    assert len(layers) > 10
    for body in layers:
        name = re.match(r"installer AS layer-(\S+)", body)[1]
        assert set(re.findall(r"\$\{(\w+)\}", body)) <= {bakefile.argument(name)}


def test_no_version_stands_in_the_dockerfile_or_the_bake_file():
    """A version in two places is a version that is wrong in one."""
    hcl = re.sub(r"//.*", "", (ROOT / "docker" / "docker-bake.hcl").read_text(encoding="utf-8"))
    text = "\n".join(INSTRUCTIONS) + hcl
    assert not re.findall(r"\d+\.\d+|sha256:|:latest|==", text)


def test_no_argument_has_a_default():
    for line in INSTRUCTIONS:
        if line.startswith("ARG "):
            assert "=" not in line, line


def test_every_argument_is_given_by_bake_or_by_the_user():
    asked = {word for line in INSTRUCTIONS if line.startswith("ARG ") for word in line.split()[1:]}
    given = {name for stack in STACKS for name in bake_of(stack)["args"]}
    by_hcl_or_user = {"OS", "PACKAGES", "MAX_JOBS", "FLASH_ATTN"}
    assert asked - given <= by_hcl_or_user
    assert given <= asked, "a layer of the lock has no stage, or an argument nobody reads"


@pytest.mark.parametrize("name", STACKS)
def test_the_environment_is_that_of_the_pins(name):
    stack, _ = lock_of(name)
    words = " ".join(line.removeprefix("ENV ") for line in stage("runtime") if line.startswith("ENV "))
    fixed = dict(re.findall(r"(\w+)=(\S+)", words)) | {"PATH": re.search(r"PATH=(\S+)", "\n".join(stage("base")))[1]}
    assert {key: value for key, value in fixed.items() if "${" not in value} == {
        key: value for key, value in stack.environment if key not in bakefile.FROM_LOCK
    }
    assert {key for key, value in fixed.items() if "${" in value} == set(bakefile.FROM_LOCK)


def stage(name):
    """Instructions of one stage."""
    start = next(n for n, line in enumerate(INSTRUCTIONS) if line.endswith(f" AS {name}"))
    rest = INSTRUCTIONS[start + 1 :]
    end = next((n for n, line in enumerate(rest) if line.startswith("FROM ")), len(rest))
    return rest[:end]


@pytest.mark.parametrize("name", STACKS)
def test_the_variables_belong_to_the_lock(name):
    stack, lock = lock_of(name)
    bake = bake_of(name)
    assert bake["lock"] == f"sha256:{lock.digest}", f"run `verlstack lock {name}`"
    uv = bakefile.uv_requirement((CONSTRAINTS / "tools.txt").read_text(encoding="utf-8"))
    torch = [line.partition("==")[0] for line in bake["args"].get("COMPILE_REQUIREMENTS", "").splitlines()]
    text = bakefile.render(stack, lock, uv=uv, torch=[t for t in torch if t in {w.project for w in lock.wheels}])
    assert json.loads(text)["variable"][bakefile.VARIABLE]["default"] == bake, f"run `verlstack lock {name}`"


def test_what_the_stages_mount_is_in_the_build_context():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    mounted = re.findall(r"type=bind,source=([^,\s]+)", "\n".join(INSTRUCTIONS))
    copied = [w for line in INSTRUCTIONS if re.match(r"COPY (?!.*--from)", line) for w in line.split()[1:-1]]
    for path in {*mounted, *(word.rstrip("/") for word in copied if not word.startswith("--"))}:
        assert (ROOT / path).exists(), path
        assert any(path == one or path.startswith(f"{one}/") for one in kept), path


def test_the_stage_of_what_looks_from_inside_copies_what_the_composer_lays_there():
    copies = [re.fullmatch(r"COPY (--chmod=0755 )?(\S+) /out/(\S+)", line) for line in stage("layer-smoke")]
    made = {}
    for executable, source, target in (match.groups() for match in copies if match):
        names = [name for name, _ in compose.sources(ROOT / source)] if source.endswith("/") else [""]
        made |= {target + name: 0o755 if executable else 0o644 for name in names}
    entries = [*compose.smoke_entries(ROOT / "smoke_tests"), *compose.doctor_entries(ROOT / "src" / "verldoctor")]
    assert made == {entry.path: entry.mode for entry in entries}
    assert len(made) > 50


def test_no_secret_is_an_argument_or_a_variable():
    names = {
        word for line in INSTRUCTIONS if line.startswith(("ARG", "ENV")) for word in re.findall(r"\b[A-Z_]+", line)
    }
    assert not {name for name in names if re.search(r"TOKEN|PASSWORD|SECRET|PROXY|CERT|INDEX", name)}


def test_hadolint_is_content():
    program = shutil.which("hadolint")
    assert program, "hadolint is pinned in tools.in"
    done = subprocess.run([program, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
