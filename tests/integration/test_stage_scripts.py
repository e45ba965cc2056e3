"""The scripts of the Dockerfile's compile stages say clearly what is wrong; programs that take hours are stand-ins."""

import hashlib
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

DOCKER = Path(__file__).parents[2] / "docker"
KNOWN = "sm_50 sm_60 sm_70 sm_80 sm_90"


def program(folder, name, text):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def sdist(folder, name="demo-1.0", files=("setup.py",)):
    folder.mkdir(exist_ok=True)
    with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as archive:
        for file in files:
            info = tarfile.TarInfo(f"{name}/{file}" if "/" not in file else file)
            archive.addfile(info, io.BytesIO())


@pytest.fixture
def compile_it(tmp_path):
    """Runs flash-attn.sh where torch knows KNOWN, nvcc is 12.1, and pip does what `pip` says."""
    cuda = tmp_path / "cuda"
    program(cuda / "bin", "nvcc", 'echo "Cuda compilation tools, release 12.1, V12.1.105"')
    sdist(tmp_path / "source")

    def run(*, pip="exit 0", ninja=True, source="source", **env):
        program(tmp_path / "bin", "python", f'case $* in *torch*) echo "{KNOWN}";; *) {pip};; esac')
        program(tmp_path / "bin", "ninja", "exit 0")
        program(tmp_path / "bin", "g++", "echo 12.2.0")
        words = [DOCKER / "flash-attn.sh", tmp_path / source, tmp_path / "build", tmp_path / "out"]
        env = {"CUDA_HOME": str(cuda), "CUDA_ARCHS": "8.0 9.0"} | env
        path = f"{tmp_path / 'bin'}:/usr/bin:/bin" if ninja else str(without(tmp_path / "bin", "ninja"))
        return subprocess.run(words, env={"PATH": path} | env, capture_output=True, text=True, timeout=60)

    return run


def a_wheel(folder):
    """What a pip that did its work leaves."""
    return f'printf wheel > "{folder}/out/demo-1.0-py3-none-any.whl"'


def without(folder, *names):
    """A PATH of one folder: what is there, and the machine's programs but for these."""
    for path in Path("/usr/bin").iterdir():
        if path.name not in names and not (folder / path.name).exists():
            (folder / path.name).symlink_to(path)
    for name in names:
        (folder / name).unlink(missing_ok=True)
    return folder


def test_a_compile_hands_on_its_log(compile_it, tmp_path):
    lines = "a.cu\\t9.0 s\\t5903 MiB\\t0\\nb.cu\\t2.0 s\\t800 MiB\\t0\\n"
    done = compile_it(pip=f'echo "MAX_JOBS=$MAX_JOBS"; printf "{lines}" >> "$COMPILE_LOG"; {a_wheel(tmp_path)}')
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "compile.log").read_text().startswith("a.cu\t9.0 s\t")
    told = json.loads((tmp_path / "out" / "compile.json").read_text())
    assert told["sha256"] == hashlib.sha256(b"wheel").hexdigest()
    assert (told["peak_mib"], told["compiler"]) == (5903, "nvcc 12.1.105, g++ 12.2.0")
    assert "compiling demo-1.0 for 8.0 9.0 with nvcc 12.1" in done.stdout
    cores = len(os.sched_getaffinity(0))
    assert 1 <= int(done.stdout.partition("MAX_JOBS=")[2].split()[0]) <= cores


@pytest.mark.parametrize(
    ("settings", "says", "do"),
    [
        ({"CUDA_ARCHS": ""}, "the list of architectures is empty", "set cuda_archs"),
        ({"CUDA_ARCHS": "sm_80"}, "CUDA_ARCHS=sm_80 is no list", "correct cuda_archs"),
        ({"CUDA_ARCHS": "8.0;9.0"}, "is no list", "correct cuda_archs"),
        ({"CUDA_ARCHS": "8.0 12.0"}, "torch itself has no code for architecture 12.0; it has: sm_50", "correct"),
        ({"MAX_JOBS": "many"}, "MAX_JOBS=many is no number of jobs", "give 1 or more"),
        ({"MAX_JOBS": "0"}, "MAX_JOBS=0 is no number of jobs", "give 1 or more"),
        ({"MAX_JOBS": "9999"}, r"MAX_JOBS=9999 needs 59994000 MiB of memory", "give fewer"),
        ({"ninja": False}, "ninja is missing", "flash_attn.build_tools"),
        ({"pip": "echo 'nvcc error: cicc died due to signal 9'; exit 1"}, "killed for lack of memory", "MAX_JOBS=1"),
        ({"pip": "echo 'error: identifier is undefined'; exit 3"}, "failed with exit status 3", "compiler's words"),
        ({"pip": 'echo "x\t1.0 s\t1 MiB\t0" >> "$COMPILE_LOG"'}, "gave no single wheel", "lines of pip"),
        ({"source": "two"}, "there are 2 source archives instead of one", "the one that the lock names"),
        ({"EXTENSION": "demo==1.0 --hash=sha256:" + "0" * 64}, "is not the one whose hash the lock names", "fetch"),
        ({"source": "damaged"}, "the source archive is damaged", "fetch it again"),
        ({"source": "flat"}, "has no single folder with a setup.py", "is it an sdist"),
    ],
)
def test_what_is_wrong_is_said(compile_it, tmp_path, settings, says, do):
    for name in ("demo-1.0", "demo-2.0"):
        sdist(tmp_path / "two", name)
    sdist(tmp_path / "flat", files=("a/x", "b/y"))
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "demo-1.0.tar.gz").write_bytes(b"no gzip")
    done = compile_it(**settings)
    assert done.returncode == 1
    assert says in done.stderr, done.stderr
    assert do in done.stderr.partition("  do:    ")[2]
    assert not list((tmp_path / "out").glob("*.whl"))


def test_what_was_compiled_is_kept(compile_it, tmp_path):
    """A compile that was killed goes on: the second unpacking leaves objects and times alone."""
    assert compile_it(pip="mkdir -p build; echo object > build/x.o; echo Killed; exit 137").returncode == 1
    kept = tmp_path / "build" / "demo-1.0" / "build" / "x.o"
    before = kept.stat().st_mtime_ns, (kept.parents[1] / "setup.py").stat().st_mtime_ns
    assert compile_it(pip=f'echo again >> "$COMPILE_LOG"; {a_wheel(tmp_path)}').returncode == 0
    assert (kept.stat().st_mtime_ns, (kept.parents[1] / "setup.py").stat().st_mtime_ns) == before


def test_objects_of_another_compiler_are_not_taken(compile_it, tmp_path):
    """The path of nvcc is the same, so ninja would see no change."""
    assert compile_it(pip="mkdir -p build; echo object > build/x.o; exit 1").returncode == 1
    program(tmp_path / "cuda" / "bin", "nvcc", 'echo "Cuda compilation tools, release 12.4, V12.4.131"')
    assert compile_it(pip=f'ls build 2>&1; echo again >> "$COMPILE_LOG"; {a_wheel(tmp_path)}').returncode == 0
    assert not (tmp_path / "build" / "demo-1.0" / "build").exists()


@pytest.fixture
def toolchain(tmp_path):
    """Runs toolchain.sh in a root of its own: only what it writes to /usr/local is redirected."""

    def run(releases, *, cuda="12.1", gpp=True):
        kits = tmp_path / "local"
        kits.mkdir()
        for release in releases:
            text = f'echo "Cuda compilation tools, release {release}, V{release}.1"'
            program(kits / f"cuda-{release}" / "bin", "nvcc", text)
        for name in ("cp", "ln", "dpkg", "apt-get"):
            program(tmp_path / "bin", name, f'echo "{name} $*"')
        if gpp:
            program(tmp_path / "bin", "g++", "echo g++ 12")
        env = {
            "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin" if gpp else str(without(tmp_path / "bin", "g++")),
            "CUDA": cuda,
        }
        words = ["/bin/bash", DOCKER / "toolchain.sh", kits, tmp_path / "debs"]
        return subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)

    return run


def test_the_stacks_own_cuda_is_taken_without_a_word(toolchain):
    done = toolchain(["12.1"])
    assert (done.returncode, done.stderr) == (0, "")
    assert "cp -a" in done.stdout


def test_another_minor_release_is_a_warning(toolchain):
    done = toolchain(["12.4"])
    assert done.returncode == 0
    assert done.stderr == (
        "toolchain: warning: nvcc is of CUDA 12.4, the stack of CUDA 12.1; same major, so its code loads\n"
    )


@pytest.mark.parametrize(
    ("releases", "says"),
    [
        (["13.0"], "nvcc is of CUDA 13.0, the stack of CUDA 12.1: another major version"),
        (["11.8"], "another major version"),
        ([], "has 0 folders /usr/local/cuda-X.Y instead of one"),
        (["12.1", "12.4"], "has 2 folders"),
    ],
)
def test_a_toolkit_that_does_not_fit(toolchain, releases, says):
    done = toolchain(releases)
    assert done.returncode == 1
    assert says in done.stderr
    assert "  do:    give" in done.stderr
    assert "cp -a" not in done.stdout


def test_gpp_comes_from_given_packages_or_from_the_bases_archive(toolchain, tmp_path):
    (tmp_path / "debs").mkdir()
    (tmp_path / "debs" / "g++.deb").touch()
    done = toolchain(["12.1"], gpp=False)
    assert "apt-get" not in done.stdout
    assert "cp -a" in done.stdout


def test_verls_wheel_must_be_the_locks(tmp_path):
    """A moved tag, or a changed source, does not get into the image."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "setup.py").touch()
    done = subprocess.run([DOCKER / "sources.sh", tmp_path / "nothing", "0" * 64], capture_output=True, text=True)
    assert done.returncode == 1
    assert "holds no Python project" in done.stderr
