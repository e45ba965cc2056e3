"""The only module that speaks to a container engine, through the Docker SDK (Docker, or Podman's compatible socket)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import docker
import docker.errors
import requests
from docker.types import DeviceRequest, Ulimit

from verlstack import told
from verlstack.errors import EngineError, ProofError, UsageError

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
    (
        "could not select device driver",
        "install NVIDIA's container toolkit on the engine's machine, or leave --gpus out to run on the CPU",
    ),
    ("nvidia-container-cli", "see that `nvidia-smi` works on the engine's machine, or leave --gpus out"),
    ("setrlimit", "the engine may not raise its limits here: set `default_ulimits` in containers.conf"),
    (
        "setting rlimit",
        "the engine's machine forbids unlimited locked memory, which NCCL needs: give its daemon that right",
    ),
)
# What NVIDIA's own notes on its PyTorch images ask for: NCCL registers memory with network cards. A machine may forbid
# raising limits (containers in containers), so a run on the CPU does without.
_LIMITS = [Ulimit(name="memlock", soft=-1, hard=-1), Ulimit(name="stack", soft=1 << 26, hard=1 << 26)]


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """What an engine says of an image it holds.

    Attributes:
        id: digest that this engine knows it by: of the manifest or of the config.
        architecture: as Go calls it, `amd64`.
        labels: of its config.
    """

    id: str
    architecture: str
    labels: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Order:
    """A container to be: least privilege, and no network but the one named.

    Attributes:
        image: name or id of the image.
        command: what runs in it.
        user: uid and gid.
        environment: besides the image's own.
        shm_bytes: size of /dev/shm; an engine's own 64 MB stop NCCL.
        gpus: none (0), so many, all of them (-1), or those of these indices.
        network: name of an internal network, or none at all.
        alias: host name on that network.
        labels: by which `sweep` finds what a killed process left.
    """

    image: str
    command: Sequence[str]
    user: int
    environment: Mapping[str, str] = field(default_factory=dict)
    shm_bytes: int = 1 << 30
    gpus: int | tuple[int, ...] = 0
    network: str | None = None
    alias: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


class Container:
    """A container that was started; `Engine.started` removes it."""

    def __init__(self, container: Any) -> None:
        """Wrap the SDK's object."""
        self._container = container

    def output(self) -> Iterator[bytes]:
        """What it writes, stdout and stderr as they come, until it ends.

        Raises:
            EngineError: the engine went away.
        """
        with _explained("the engine does not hand on the container's output"):
            yield from self._container.logs(stream=True, follow=True)

    def exit_status(self) -> int:
        """Wait until it ends.

        Raises:
            EngineError: the engine went away.
        """
        with _explained("the engine does not say how the container ended"):
            return int(self._container.wait()["StatusCode"])

    def archive(self, path: str) -> Iterator[bytes] | None:
        """A folder of it as a tar stream, whether it still runs or not; None where there is no such folder.

        Raises:
            EngineError: the engine refuses.
        """
        with _explained(f"the engine does not hand out {path}"):
            try:
                stream: Iterator[bytes] = self._container.get_archive(path)[0]
            except docker.errors.NotFound:
                return None
            return stream


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
            text = told.plain(raw.decode(errors="replace")).strip()
            raise ProofError(
                f"`{' '.join(command)}` fails in {image} as uid {user} (exit status {e.exit_status}):\n{text[-3000:]}",
                todo="an import error names the pin to change",
            ) from e
        except (docker.errors.DockerException, requests.RequestException, OSError) as e:
            raise EngineError(f"the engine does not start {image}: {e}", todo=_advice(e, "see its log")) from e
        return told.plain(bytes(out).decode(errors="replace")).strip()

    def holds(self, name: str, ids: Sequence[str]) -> bool:
        """Whether an image of that name is there, and is the one that one of these digests names.

        Raises:
            EngineError: the engine does not answer.
        """
        try:
            return self.image(name).id in ids
        except UsageError:
            return False

    def image(self, name: str) -> ImageFacts:
        """What the engine knows of an image.

        Raises:
            UsageError: it has none of that name.
            EngineError: it does not answer.
        """
        with _explained(f"the engine does not look for {name}"):
            try:
                attrs: dict[str, Any] = self._client.images.get(name).attrs
            except docker.errors.DockerException as e:
                missing = isinstance(e, (docker.errors.ImageNotFound, docker.errors.NullResource))
                if not missing and "invalid reference format" not in str(e):
                    raise
                raise UsageError(
                    f"{self.name} has no image {name!r}",
                    todo=f"`docker pull {name}`, or name a stack that was built, or the folder of a layout",
                ) from e
        labels = (attrs.get("Config") or {}).get("Labels") or {}
        return ImageFacts(id=attrs["Id"], architecture=attrs.get("Architecture", ""), labels=labels)

    @property
    def architecture(self) -> str:
        """Of the machine that it runs containers on, as Go calls it."""
        return str(self._client.version().get("Arch", ""))

    @contextlib.contextmanager
    def started(self, order: Order) -> Iterator[Container]:
        """Start a container, and remove it whatever happens.

        Raises:
            EngineError: it cannot be started; the advice knows the usual reasons.
        """
        with _explained(f"the engine does not make a container of {order.image}"):
            container = self._client.containers.create(
                order.image,
                list(order.command),
                user=f"{order.user}:{order.user}",
                environment=dict(order.environment),
                shm_size=order.shm_bytes,
                device_requests=_devices(order.gpus),
                ulimits=_LIMITS if order.gpus else [],
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
                init=True,  # reaps what Ray leaves, and passes signals on
                labels=dict(order.labels),
                **_place(order),
            )
        try:
            with _explained(f"the engine does not start {order.image}"):
                container.start()
            yield Container(container)
        finally:
            with contextlib.suppress(docker.errors.APIError, requests.RequestException):
                container.remove(force=True, v=True)

    @contextlib.contextmanager
    def network(self, name: str, labels: Mapping[str, str]) -> Iterator[str]:
        """A network between containers that leads nowhere else; removed whatever happens.

        Raises:
            EngineError: the engine refuses.
        """
        with _explained(f"the engine does not make the network {name}"):
            network = self._client.networks.create(name, driver="bridge", internal=True, labels=dict(labels))
        try:
            yield name
        finally:
            with contextlib.suppress(docker.errors.APIError, requests.RequestException):
                network.remove()

    def labelled(self, label: str) -> dict[str, str]:
        """Containers and networks that bear a label: id → the label's value.

        Raises:
            EngineError: the engine does not answer.
        """
        with _explained("the engine does not list containers"):
            wanted: dict[str, str | list[str] | bool] = {"label": label}
            containers = self._client.containers.list(all=True, filters=wanted, ignore_removed=True)
            networks = self._client.networks.list(filters=wanted)
        found = {str(c.id): str(c.labels.get(label, "")) for c in containers}
        return found | {str(n.id): str((n.attrs.get("Labels") or {}).get(label, "")) for n in networks}

    def discard(self, ids: Sequence[str]) -> None:
        """Remove containers, then networks; what is gone already is no error."""
        for remove in (self._remove_container, self._remove_network):
            for one in ids:
                with contextlib.suppress(docker.errors.APIError, requests.RequestException):
                    remove(one)

    def _remove_container(self, one: str) -> None:
        self._client.containers.get(one).remove(force=True, v=True)

    def _remove_network(self, one: str) -> None:
        self._client.networks.get(one).remove()


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """What the SDK raises as an error of ours, with advice."""
    try:
        yield
    except (docker.errors.DockerException, requests.RequestException, OSError) as e:
        raise EngineError(f"{what}: {e}", todo=_advice(e, "see its log")) from e


def _devices(gpus: int | tuple[int, ...]) -> list[DeviceRequest]:
    """`docker run --gpus`: a count (-1 is all), or single ones by index."""
    if isinstance(gpus, tuple):
        return [DeviceRequest(device_ids=[str(i) for i in gpus], capabilities=[["gpu"]])]
    return [DeviceRequest(count=gpus, capabilities=[["gpu"]])] if gpus else []


def _place(order: Order) -> dict[str, Any]:
    """The network as the SDK wants it."""
    if order.network is None:
        return {"network_mode": "none"}
    return {"network": order.network, "hostname": order.alias, "name": f"{order.network}-{order.alias}"}


def _advice(error: Exception, otherwise: str) -> str:
    """What to do about an engine's answer."""
    text = str(error).lower()
    return next((todo for part, todo in _ADVICE if part in text), otherwise)
