"""The smoke tests under Slurm: the words that start the same run.py once on each node of a job."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from verlstack import shell, told
from verlstack.compose import SMOKE_ROOT
from verlstack.errors import EngineError, UsageError
from verlstack.smoke.request import PYTHON

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_ANSWER = 60.0  # seconds; a busy controller takes some, and Slurm's programs themselves give up before
_REPORT = "/mnt"  # where the report's folder is seen inside: a folder that every base has
# What an unpacked image needs of its environment; engines take it from the image's config, which a folder has not.
ENVIRONMENT = {
    "HOME": "/tmp",  # noqa: S108 - the node's own /tmp, as in a container
    "LANG": "C.UTF-8",
    "PATH": "/opt/verl/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONNOUSERSITE": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "USER": "verl",
}
# Runs once on each node and adds to "$@" where the nodes meet. Inside a container there is no scontrol: the first name
# is then read off the list, `n[01-04,7]` or `a,b`. The port comes from the numbers of job and step, so that two on
# one node do not meet, and lies below 32768, from where on Linux gives ports away itself.
_MEET = """\
set -eu
list=${SLURM_STEP_NODELIST:-$SLURM_JOB_NODELIST} nodes=${SLURM_STEP_NUM_NODES:-$SLURM_NNODES}
host=$(scontrol show hostnames "$list" 2>/dev/null | head -n 1)
[ -n "$host" ] || host=$(printf '%s\\n' "$list" | sed -E 's/^([^[,]*)(\\[([^],-]*)[^]]*\\])?([^,[]*).*/\\1\\3\\4/')
port=$((20000 + (SLURM_JOB_ID + ${SLURM_STEP_ID:-0}) % 10000))
[ "$nodes" = 1 ] || set -- "$@" --nodes "$nodes" --node "$SLURM_NODEID" --rendezvous "$host:$port"
"""
# $1 is the report's folder, on a file system of the node or of all of them.
_DIRECTLY = 'mkdir -p "$1"\nshift\nexec "$@"\n'
# An unpacked image, $2: /proc, /sys, devices, /tmp and names are the node's. Who is not root is root inside only, with
# no more rights than before. No PID namespace: two nodes on one machine would take each other for the same.
_UNPACKED = f"""\
mkdir -p "$1"
[ "$(id -u)" = 0 ] && own= || own=--map-root-user
exec unshare --mount $own sh -c '
set -eu
report=$1 root=$2
shift 2
for name in proc sys dev; do mount --rbind "/$name" "$root/$name"; done
for name in hosts resolv.conf; do
    [ ! -L "$root/etc/$name" ] || continue
    [ -e "$root/etc/$name" ] || touch "$root/etc/$name" || continue
    [ ! -e "/etc/$name" ] || mount --bind "/etc/$name" "$root/etc/$name"
done
mount --bind "$report" "$root{_REPORT}"
mount --bind /tmp "$root/tmp"
exec chroot "$root" "$@"' sh "$@"
"""


def found(image: str) -> str:
    """What `command` takes of what a user calls an image: a path here becomes absolute, for srun starts elsewhere.

    Raises:
        UsageError: it is no path here, and no registry's image either; a bare word would be looked for at Docker Hub.
    """
    if image and Path(image).exists():
        return str(Path(image).absolute())
    if image.startswith("/") or (not image.startswith(".") and set(image) & set("#/:")):
        return image  # there on the nodes, or for pyxis
    raise UsageError(
        f"{image!r} is no stack that was built, and no folder or file here",
        todo="see `verlstack build`; an image of a registry is HOST#NAME:TAG for pyxis",
    )


def command(
    image: str | Path,
    nodes: int,
    ranks: Sequence[int] | None,
    report: Path,
    more: Sequence[str] = (),
    *,
    gpus: int = 0,
    environment: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """The words that run the smoke tests on the nodes of a job, or of a job of their own.

    Args:
        image: an absolute folder of an unpacked image, there on each node; `….sif` for Apptainer; anything else
            (`….sqsh`, `HOST#NAME:TAG`) for the plugin pyxis.
        nodes: how many.
        ranks: on all nodes together; None: what fits, as run.py finds.
        report: absolute folder for the report; node 0 writes it.
        more: further words for run.py.
        gpus: of each node; 0 leaves it to the job.
        environment: for the tests, besides the image's own; for an unpacked image what its config says, too, where that
            is more than ENVIRONMENT.

    Raises:
        UsageError: the report's path is relative, which means something else on each node, or holds a sign that pyxis
            and Apptainer read in their own way.
    """
    if not report.is_absolute():
        raise UsageError("under Slurm the report's folder must be an absolute path", where=str(report))
    where = str(image)
    folder = where.startswith("/") and not where.endswith((".sif", ".sqsh"))
    if not folder and set(str(report)) & set(",:"):
        raise UsageError("a comma or colon in the report's path would mount something else", where=str(report))
    srun = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    # one node that fails must not take the others' report with it; a task must not be bound to one core
    srun += ["--kill-on-bad-exit=0", "--cpu-bind=none", *([f"--gpus-per-node={gpus}"] if gpus else [])]
    sets = [f"{name}={value}" for name, value in (environment or {}).items()]
    test = [PYTHON, f"/{SMOKE_ROOT}/run.py", "--report", _REPORT]
    test += ["--ranks", ",".join(map(str, ranks))] if ranks else []
    test += more
    if where.endswith(".sif"):
        apptainer = ["apptainer", "exec", "--nv", "--cleanenv", "--no-home", "--bind", f"{report}:{_REPORT}"]
        return _words(srun, _DIRECTLY, [str(report), *apptainer, where, "env", *sets, *test])
    if folder:
        first = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
        return _words(srun, _UNPACKED, [str(report), where, "env", "-i", *first, *sets, *test])
    srun += [f"--container-image={where}", f"--container-mounts={report}:{_REPORT}", "--no-container-mount-home"]
    return _words(srun, _DIRECTLY, [_REPORT, "env", *sets, *test])


def _words(srun: Sequence[str], script: str, arguments: Sequence[str]) -> tuple[str, ...]:
    return (*srun, "sh", "-c", _MEET + script, "sh", *arguments)


def script(words: Sequence[str], nodes: int, report: Path, *, gpus: int, minutes: int) -> str:
    """A job file for sbatch that runs the words of `command`.

    Args:
        words: what `command` returned.
        nodes: how many.
        report: the folder that `command` was given.
        gpus: of each node; 0 for a run on the CPU.
        minutes: after which Slurm ends the job.
    """
    wanted = [f"--nodes={nodes}", "--ntasks-per-node=1", "--exclusive", f"--time={minutes}"]
    wanted += [f"--gpus-per-node={gpus}"] if gpus else []
    note = "# shellcheck disable=SC2016  # what stands in single quotes is for the nodes' own shells"
    # pyxis mounts what is there already
    lines = ["#!/bin/sh", *(f"#SBATCH {option}" for option in ("--job-name=verl-smoke", *wanted)), note]
    lines += ["set -eu", f"mkdir -p {shlex.quote(str(report))}", f"exec {shlex.join(words)}"]
    return "\n".join(lines) + "\n"


def check_reach(env: Mapping[str, str], start: Callable[..., shell.Result] = shell.run) -> None:
    """See that a Slurm answers, before minutes go into an image that it would run.

    Args:
        env: as for srun.
        start: starts a program.

    Raises:
        EngineError: none does, or srun is not installed here.
    """
    todo = "run on a login node of the cluster, or within a job; SLURM_CONF names a configuration elsewhere"
    try:
        done = start(("sinfo", "--noheader"), env=env, timeout=_ANSWER)
    except shell.ProgramMissingError as e:
        raise EngineError("Slurm's programs sinfo and srun are not installed here", where=e.where, todo=todo) from e
    if done.returncode:
        raise EngineError(f"no Slurm answers here:\n{done.tail}", where="sinfo", todo=todo)


def run(words: Sequence[str], folder: Path, env: Mapping[str, str], say: Callable[[str], object]) -> int:
    """Start the words of `command`, hand on what is said, and return the exit status.

    Args:
        words: what `command` returned.
        folder: where to start it; the report's.
        env: for srun.
        say: called with each line.

    Raises:
        ProgramMissingError: there is no srun here.
    """
    return shell.follow(words, env=env, cwd=folder, each=lambda line: say(told.plain(line))).returncode
