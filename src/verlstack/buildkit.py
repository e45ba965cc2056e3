"""The second builder: checks that an engine can build, and drives `docker buildx bake`, leaving no secret behind."""

from __future__ import annotations

import collections
import json
import re
import tomllib
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Literal

from verlstack import network, shell, told
from verlstack.errors import BaseImageError, BuildError, EngineError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from verlstack.errors import VerlstackError
    from verlstack.progress import Progress

_BUILDKIT = (0, 13)  # the first with rewrite-timestamp, and what the Dockerfile is written for
_ENGINE = (
    26,
    0,
)  # the first Docker Engine with that BuildKit in it, where its build does not tell (Debian's says 0.0.0)
_PATIENCE = 60.0  # seconds; --bootstrap may start a container
_TAIL = 30  # lines of a failed build that are shown
_SHOWN = 100  # characters of a progress line
# What the docker command needs of the user's environment. Nothing else: bake takes variables of its files from there.
_FOR_DOCKER = {
    *("PATH", "HOME", "XDG_RUNTIME_DIR", "SSH_AUTH_SOCK", "TMPDIR"),
    *("DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "DOCKER_CERT_PATH", "DOCKER_TLS", "DOCKER_TLS_VERIFY"),
    *("BUILDX_BUILDER", "BUILDX_CONFIG"),
}
_KINDS: dict[str, type[VerlstackError]] = {
    "engine": EngineError,
    "disk": StorageError,
    "build": BuildError,
    "base": BaseImageError,
}
Network = Literal["default", "host"]
Form = Literal["oci", "local"]
_FORMS: dict[Form, str] = {
    "oci": "type=oci,tar=false,compression=uncompressed,force-compression=true",
    "local": "type=local",
}
BAKE = "docker/docker-bake.hcl"  # in a checkout


@dataclass(frozen=True, kw_only=True)
class Builder:
    """An engine that can build.

    Attributes:
        engine: its version.
        buildkit: BuildKit's version; None where the engine does not tell.
        driver: buildx's name for how BuildKit runs: `docker`, `docker-container`, ….
        network: what build steps must be given to reach an index: `host` where the engine has no bridge.
    """

    engine: str
    buildkit: str | None
    driver: str
    network: Network


@dataclass(frozen=True, kw_only=True)
class Request:
    """One build.

    Attributes:
        folder: the checkout; relative paths of the bake files start here.
        files: bake files, later ones over earlier ones.
        target: what to build.
        contexts: named contexts of every target: folders, `oci-layout://…`, `docker-image://…`.
        secrets: id → file, for every target; the build's cache and the image never hold them.
        output: folder for the result.
        form: `oci`: an OCI layout with uncompressed layers; `local`: the target's files.
        arguments: of the target, over those of the bake files.
        cached: reuse what BuildKit has.
        network: of the build steps.
    """

    folder: Path
    files: tuple[Path, ...]
    target: str
    output: Path
    form: Form = "oci"
    arguments: Mapping[str, str] = field(default_factory=dict)
    contexts: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)
    cached: bool = False
    network: Network = "default"


def check(env: Mapping[str, str], run: Callable[..., shell.Result] = shell.run) -> Builder:
    """The engine that the environment names, if it can build what the Dockerfile asks.

    Raises:
        EngineError: no docker command, no buildx, no engine, no permission, or BuildKit before 0.13.
    """
    own = environment(env)
    where = env.get("DOCKER_HOST") or "the default socket"

    def ask(*words: str) -> shell.Result:
        try:
            return run(["docker", *words], env=own, timeout=_PATIENCE)
        except shell.ProgramMissingError as e:
            todo = (
                "install the docker command with buildx, version 26 or later (`docker/engine.sh` brings it on Debian)"
            )
            raise EngineError("there is no docker command", where="PATH", todo=todo) from e

    version = ask("version", "--format", "{{json .Server}}")
    server = _object(version.stdout)
    if version.returncode or not server:
        raise trouble(version.stderr, where, "the container engine does not answer")
    buildx = ask("buildx", "version")
    if buildx.returncode:
        raise trouble(buildx.stderr, "docker buildx version", "the docker command has no buildx")
    inspected = ask("buildx", "inspect", "--bootstrap")
    facts = dict(re.findall(r"^(\w[\w ]*?):[ \t]+(\S.*?)\s*$", inspected.stdout, re.MULTILINE))
    if inspected.returncode or "Error" in facts:
        raise trouble(facts.get("Error", "") + inspected.stderr, where, "buildx finds no builder")
    driver, engine = facts.get("Driver", "docker"), told.escaped(str(server.get("Version", "")))
    buildkit = facts.get("BuildKit version") or facts.get("Buildkit")
    if not _numbers(buildkit) or _numbers(buildkit) == (0, 0):
        buildkit = None
    _check_age(engine, buildkit, driver, where)
    bare = driver == "docker" and ask("network", "inspect", "bridge").returncode != 0
    return Builder(engine=engine, buildkit=buildkit, driver=driver, network="host" if bare else "default")


def _object(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _numbers(version: str | None) -> tuple[int, ...]:
    """The first two numbers of a version; empty where there are none."""
    match = re.match(r"v?(\d+)\.(\d+)", version or "")
    return tuple(map(int, match.groups())) if match else ()


def _check_age(engine: str, buildkit: str | None, driver: str, where: str) -> None:
    if buildkit is not None:
        name, have, wanted = "BuildKit", buildkit, _BUILDKIT
    elif driver == "docker":
        name, have, wanted = "Docker Engine", engine, _ENGINE
    else:
        return  # its own image, whose build does not tell; what it cannot do it will say
    if _numbers(have) < wanted:
        least = ".".join(map(str, wanted))
        raise EngineError(
            f"{name} {have} is too old: the Dockerfile needs {least} or later",
            where=where,
            todo="install Docker Engine 26 or later (`docker/engine.sh start` brings one up on Debian 12 and 13)",
        )


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """What of the user's environment the docker command gets, and no attestations, which would change the output."""
    kept = {name: value for name, value in env.items() if name in _FOR_DOCKER}
    # From buildx 0.19 on, bake asks on a terminal before it reads or writes outside its folder.
    fixed = {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1", "BUILDX_BAKE_ENTITLEMENTS_FS": "0", "LC_ALL": "C.UTF-8"}
    return kept | network.settings(env) | fixed


def command(request: Request, extra: Sequence[Path] = ()) -> list[str]:
    """The command line of a build; secrets stand in it as paths alone.

    Args:
        request: what to build.
        extra: bake files below all others.
    """
    output = f"{_FORMS[request.form]},{_field('dest', request.output)}"
    sets = [f"*.contexts.{name}={value}" for name, value in sorted(request.contexts.items())]
    sets += [f"*.secrets=id={name},{_field('src', path)}" for name, path in sorted(request.secrets.items())]
    sets += [f"{request.target}.args.{name}={value}" for name, value in sorted(request.arguments.items())]
    sets.append(f"{request.target}.output={output}")
    words = ["docker", "buildx", "bake", "--progress=plain", *([] if request.cached else ["--no-cache"])]
    words += [word for path in (*extra, *request.files) for word in ("--file", str(path))]
    return [*words, *(word for one in sets for word in ("--set", one)), request.target]


def _field(name: str, path: Path) -> str:
    """One field of a comma-separated line, quoted as CSV where it must be."""
    text = f"{name}={path}"
    return '"{}"'.format(text.replace('"', '""')) if set(',"') & set(text) else text


def bake(
    request: Request,
    *,
    env: Mapping[str, str],
    scratch: Path,
    progress: Progress,
    run: Callable[..., shell.Result] = shell.run,
    follow: Callable[..., shell.Result] = shell.follow,
) -> None:
    """Build, and have the image as an OCI layout in `request.output`.

    Args:
        request: what to build.
        env: the user's environment; only what docker needs of it is handed on.
        scratch: an empty folder for a file beside the bake files.
        progress: gets one short line for each step.
        run: starts programs.
        follow: starts programs and hands on their lines.

    Raises:
        BuildError: a step fails; its stage and the last 30 lines are shown.
        EngineError, StorageError, BaseImageError: the engine, a disk or a registry fails.
    """
    own = environment(env)
    extra = [*_proxies(request, env, scratch)]
    if request.network == "host":
        extra += _on_host_network(request, own, scratch, run)
    seen: set[str] = set()
    tail: collections.deque[str] = collections.deque(maxlen=_TAIL)

    def each(raw: str) -> None:
        line = told.plain(raw)
        if line.strip():
            tail.append(line)
        if (step := _step(line)) and step not in seen:
            seen.add(step)
            progress.say(step[:_SHOWN])

    done = follow(command(request, extra), env=own, cwd=request.folder, each=each)
    if done.returncode:
        raise failure(told.plain(done.stdout), tail, request.target)


def _proxies(request: Request, env: Mapping[str, str], scratch: Path) -> Iterator[Path]:
    """A bake file with BuildKit's own arguments for proxies, which reach every step but neither image nor cache key.

    A file of ours alone, because a password must not stand in a command line.
    """
    if found := network.proxies(env):
        path = scratch / "proxies.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps({"target": {request.target: {"args": _literal(found)}}}), encoding="utf-8")
        yield path


def _literal(values: Mapping[str, str]) -> dict[str, str]:
    """Values that bake takes as they are: `${` and `%{` begin its templates."""
    return {name: value.replace("${", "$${").replace("%{", "%%{") for name, value in values.items()}


def _on_host_network(
    request: Request, env: Mapping[str, str], scratch: Path, run: Callable[..., shell.Result]
) -> list[Path]:
    """A compose file that gives every target the host's network: buildx before 0.14 takes it from no bake file."""
    words = [word for word in command(request) if word != "--progress=plain"]
    done = run([*words, "--print"], env=env, cwd=request.folder, timeout=_PATIENCE)
    targets = _object(done.stdout).get("target")
    if done.returncode or not isinstance(targets, dict):
        raise trouble(done.stderr, str(request.files[0]), "bake does not understand its files")
    path = scratch / "network.yaml"  # JSON is YAML; bake takes the name as the sign of a compose file
    services = {name: {"build": {"context": ".", "network": "host"}} for name in targets}
    path.write_text(json.dumps({"services": services}), encoding="utf-8")
    return [path]


def _step(line: str) -> str | None:
    """`[stage 1/2] RUN …` of a line that starts a step of the Dockerfile, or `[3/49] …` of one that ninja prints."""
    match = re.match(r"#\d+ (?:\d+\.\d+ +(?=\[\d+/\d+\]))?(\[(?!internal\]|auth\]|context )[^\]]+\] .+)", line)
    return match[1] if match else None


def failure(output: str, tail: Sequence[str], target: str) -> VerlstackError:
    """What a failed build means, with the stage that failed and its last lines."""
    step = re.search(r"^ > \[([^\]]+)\]", output, re.MULTILINE)
    where = f"target {target}"
    if step:  # a Dockerfile of one stage has steps without its name
        where = f"stage {step[1]}" if " " in step[1] else f"{where}, step {step[1]}"
    return trouble("\n".join(tail), where, "the build fails", kind="build")


def trouble(text: str, where: str, otherwise: str, kind: str = "engine") -> VerlstackError:
    """The error for what an engine or its client said.

    Args:
        text: its output, or the end of it; shown without control characters and credentials.
        where: the engine's address, or the stage.
        otherwise: what to say where nobody has seen this text before.
        kind: the kind of error then.
    """
    text = told.plain(text)
    for row in _troubles():
        if re.search(row["pattern"], text):
            return _KINDS[row["kind"]](f"{row['what']}:\n{text.strip()}", where=where, todo=row["todo"])
    todo = "see what it says above"
    return _KINDS[kind](f"{otherwise}:\n{text.strip()}", where=where, todo=todo)


def _troubles() -> list[dict[str, str]]:
    text = resources.files("verlstack").joinpath("data/engine_trouble.toml").read_text(encoding="utf-8")
    rows: list[dict[str, str]] = tomllib.loads(text)["trouble"]
    return rows
