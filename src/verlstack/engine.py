"""The only module that speaks to a container engine, through the Docker SDK (Docker, or Podman's compatible socket)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import docker
import docker.errors
import requests
import urllib3
from docker.types import DeviceRequest, Ulimit

from verlstack import told
from verlstack.errors import EngineError, ProofError, UsageError
from verlstack.order import ImageFacts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from verlstack.order import Order

_TAIL = 1000  # lines of a short command that are kept
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
    ("container-init binary", "install catatonit, which Podman uses as PID 1"),
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

    def exit_status(self, patience: float = _PATIENCE) -> int | None:
        """Wait until it ends; None where it has not after `patience` seconds.

        Raises:
            EngineError: the engine went away.
        """
        with _explained("the engine does not say how the container ended"):
            try:
                return int(self._container.wait(timeout=patience)["StatusCode"])
            except requests.RequestException as e:
                if isinstance(e, requests.Timeout) or "timed out" in str(e).lower():
                    return None
                raise

    def said(self, *, stderr: bool) -> str:
        """The last of what it wrote on one of its streams, fit to be shown.

        Raises:
            EngineError: the engine went away.
        """
        with _explained("the engine does not hand on the container's output"):
            raw: bytes = self._container.logs(stdout=not stderr, stderr=stderr, tail=_TAIL)
        return told.plain(raw.decode(errors="replace")).strip()

    def kill(self) -> None:
        """End it; what has ended is no error."""
        with contextlib.suppress(docker.errors.APIError, requests.RequestException):
            self._container.kill()

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
        return _explained_each(f"the engine does not hand out {path}", stream)


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
        """Name and version, for people.

        Raises:
            EngineError: the engine does not answer.
        """
        version = self._version()
        parts = version.get("Components") or [{"Name": "engine", "Version": version.get("Version", "")}]
        return f"{parts[0]['Name']} {parts[0]['Version']}"

    def load(self, archive: Iterator[bytes], name: str, ids: Sequence[str]) -> str:
        """Load an image from a docker-archive stream, see that it is the one we sent, and return its digest there.

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
            have = str(self._client.images.get(name).id)
        except (docker.errors.DockerException, requests.RequestException, OSError) as e:
            raise EngineError(
                f"the engine does not load the image: {e}", todo=_advice(e, "see its log; often its disk is full")
            ) from e
        if have not in ids:
            raise EngineError(f"the engine has {have} under {name}, not {ids[0]}", todo=f"remove {name} and try again")
        return have

    def ask(self, order: Order, patience: float) -> str:
        """Run a command in a new container, remove the container, and return what it printed.

        Args:
            order: the container.
            patience: seconds until the command must have ended.

        Raises:
            ProofError: the command failed or takes longer; its last lines are passed on.
            EngineError: the container could not be started.
        """
        with self.started(order) as container:
            status = container.exit_status(patience)
            if status == 0:
                return container.said(stderr=False)
            how = f"exit status {status}" if status is not None else f"no end after {patience:g} s"
            raise ProofError(
                f"`{' '.join(order.command)}` fails in {order.image} as uid {order.user} ({how}):\n"
                f"{container.said(stderr=True)[-3000:]}",
                todo="an import error names the pin to change",
            )

    def held(self, name: str, ids: Sequence[str]) -> str | None:
        """The digest of the image of that name, if it is one of these; a name may move, a digest does not.

        Raises:
            EngineError: the engine does not answer.
        """
        try:
            have = self.image(name).id
        except UsageError:
            return None
        return have if have in ids else None

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
        """Of the machine that it runs containers on, as Go calls it.

        Raises:
            EngineError: the engine does not answer.
        """
        return str(self._version().get("Arch", ""))

    def _version(self) -> dict[str, Any]:
        with _explained("the engine does not say what it is"):
            version: dict[str, Any] = self._client.version()
            return version

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
                name=order.name,
                user=f"{order.user}:{order.user}",
                environment=dict(order.environment),
                shm_size=order.shm_bytes,
                device_requests=_devices(order.gpus),
                ulimits=_LIMITS if order.gpus else [],
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
                init=order.init,
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
        """A network between containers that leads nowhere else, under Docker not even to this machine; then removed.

        Raises:
            EngineError: the engine refuses.
        """
        # Without an address of the bridge the machine's own services cannot be reached; Podman knows no such option.
        options = {} if self.name.startswith("Podman") else {"com.docker.network.bridge.inhibit_ipv4": "true"}
        with _explained(f"the engine does not make the network {name}"):
            network = self._client.networks.create(
                name, driver="bridge", internal=True, labels=dict(labels), options=options
            )
        try:
            yield name
        finally:
            with contextlib.suppress(docker.errors.APIError, requests.RequestException):
                network.remove()

    def labelled(self, label: str, prefix: str) -> dict[str, str]:
        """Containers and networks that bear a label and a name that begins so: id → the label's value.

        The name, because a container inherits the labels of its image.

        Raises:
            EngineError: the engine does not answer.
        """
        with _explained("the engine does not list containers"):
            wanted: dict[str, str | list[str] | bool] = {"label": label}
            containers = self._client.containers.list(all=True, filters=wanted, ignore_removed=True)
            networks = self._client.networks.list(filters=wanted)
        rows = [(c.name, c.id, c.labels) for c in containers]
        rows += [(n.name, n.id, n.attrs.get("Labels") or {}) for n in networks]
        return {str(one): str(labels.get(label, "")) for name, one, labels in rows if str(name).startswith(prefix)}

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
    except (docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError) as e:
        raise EngineError(f"{what}: {e}", todo=_advice(e, "see its log")) from e


def _explained_each(what: str, stream: Iterator[bytes]) -> Iterator[bytes]:
    """A stream from the engine, whose end before its time is an error of ours."""
    with _explained(what):
        yield from stream


def _devices(gpus: int | tuple[int, ...]) -> list[DeviceRequest]:
    """`docker run --gpus`: a count (-1 is all), or single ones by index."""
    if isinstance(gpus, tuple):
        return [DeviceRequest(device_ids=[str(i) for i in gpus], capabilities=[["gpu"]])]
    return [DeviceRequest(count=gpus, capabilities=[["gpu"]])] if gpus else []


def _place(order: Order) -> dict[str, Any]:
    """The network as the SDK wants it."""
    if order.network is None:
        return {"network_mode": "none"}
    return {"network": order.network, "hostname": order.alias}


def _advice(error: Exception, otherwise: str) -> str:
    """What to do about an engine's answer."""
    text = str(error).lower()
    return next((todo for part, todo in _ADVICE if part in text), otherwise)
