"""The only module that speaks to a container engine, through the Docker SDK (Docker, or Podman's compatible socket)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import docker
import docker.errors
import requests

from verlstack.errors import EngineError, ProofError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_PATIENCE = 600  # seconds for one call; loading 2 GB takes about one minute on a slow disk
# What an engine's answer contains, and what helps then; the first that is found counts.
_ADVICE = (
    (
        "permission denied",
        "run as a user whom the engine lets in (root, or a member of its group), or use your own engine",
    ),
    ("no space left", "free space on the engine's disk (`docker system df` shows what fills it), then run again"),
    ("is too old", "install Docker Engine 26 or later, or Podman 4 or later"),
    ("minimum supported api version", "install a docker client library of the engine's own release"),
    ("setrlimit", "the engine may not raise its limits here: set `default_ulimits` in containers.conf"),
)


class Engine:
    """A running engine."""

    def __init__(self, client: docker.DockerClient) -> None:
        """Wrap a connected client."""
        self._client = client

    @classmethod
    def connect(cls, env: Mapping[str, str]) -> Engine | None:
        """The engine that DOCKER_HOST names, else the one on the default socket, else None.

        Raises:
            EngineError: DOCKER_HOST is set, but nobody answers there or we may not speak to it.
        """
        try:
            client = docker.DockerClient.from_env(environment=dict(env), timeout=_PATIENCE)
            client.ping()
        except (docker.errors.DockerException, requests.RequestException, OSError) as e:
            if "DOCKER_HOST" not in env:
                return None
            raise EngineError(
                f"the container engine does not answer: {e}",
                where=env["DOCKER_HOST"],
                todo=_advice(e, "start it, or unset DOCKER_HOST to go on without one"),
            ) from e
        return cls(client)

    @property
    def name(self) -> str:
        """Name and version, for people."""
        version: dict[str, Any] = self._client.version()
        parts = version.get("Components") or [{"Name": "engine", "Version": version.get("Version", "")}]
        return f"{parts[0]['Name']} {parts[0]['Version']}"

    def load(self, archive: Iterator[bytes], name: str, ids: Sequence[str]) -> None:
        """Load an image from a docker-archive stream, and see that it is the one we sent.

        Args:
            archive: the archive's bytes.
            name: the name it carries, `verlstack:TAG`.
            ids: digests the engine may know it by: of the manifest (containerd store) or of the config (classic store).

        Raises:
            EngineError: the engine refuses it, is out of disk, or holds another image under that name afterwards.
        """
        try:
            data: Any = archive  # the SDK hands it to requests, which sends an iterator in chunks
            self._client.images.load(data)
            have = self._client.images.get(name).id
        except (docker.errors.DockerException, requests.RequestException, OSError) as e:
            raise EngineError(
                f"the engine does not load the image: {e}", todo=_advice(e, "see its log; often its disk is full")
            ) from e
        if have not in ids:
            raise EngineError(f"the engine has {have} under {name}, not {ids[0]}", todo=f"remove {name} and try again")

    def run(self, image: str, command: Sequence[str], *, user: int) -> str:
        """Run a command in a new container without network, remove the container, and return what it printed.

        Raises:
            ProofError: the command failed; its last lines are passed on.
            EngineError: the container could not be started.
        """
        try:
            out = self._client.containers.run(
                image, list(command), user=f"{user}:{user}", network_mode="none", remove=True, stderr=False
            )
        except docker.errors.ContainerError as e:
            raw: Any = e.stderr or b""  # bytes, whatever the stubs say
            text = raw.decode(errors="replace").strip()
            raise ProofError(
                f"`{' '.join(command)}` fails in {image} as uid {user} (exit status {e.exit_status}):\n{text[-3000:]}",
                todo="an import error names the pin to change",
            ) from e
        except (docker.errors.DockerException, requests.RequestException, OSError) as e:
            raise EngineError(f"the engine does not start {image}: {e}", todo=_advice(e, "see its log")) from e
        return bytes(out).decode(errors="replace").strip()


def _advice(error: Exception, otherwise: str) -> str:
    """What to do about an engine's answer."""
    text = str(error).lower()
    return next((todo for part, todo in _ADVICE if part in text), otherwise)
