"""What a container shall be, and what an engine says of an image; how it is done knows `engine` alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
        image: digest of the image in the engine: a name may come to mean another one meanwhile.
        name: of the container.
        command: what runs in it.
        user: uid and gid.
        environment: besides the image's own.
        shm_bytes: size of /dev/shm; an engine's own 64 MB stop NCCL.
        gpus: none (0), so many, all of them (-1), or those of these indices.
        network: name of an internal network, or none at all.
        alias: host name on that network.
        init: whether a small PID 1 reaps what Ray leaves, and passes signals on; Podman wants a program for it.
        labels: by which `sweep` finds what a killed process left.
    """

    image: str
    name: str
    command: Sequence[str]
    user: int
    environment: Mapping[str, str] = field(default_factory=dict)
    shm_bytes: int = 1 << 30
    gpus: int | tuple[int, ...] = 0
    network: str | None = None
    alias: str | None = None
    init: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
