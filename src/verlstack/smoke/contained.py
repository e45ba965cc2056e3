"""The smoke tests in containers of an engine: one, or several on a network of their own as if they were machines."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from verlstack import told
from verlstack.errors import EngineError
from verlstack.order import Order
from verlstack.smoke import collect, owner
from verlstack.smoke.request import PATIENCE, REPORT
from verlstack.unpacked import STRANGER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from verlstack.engine import Container, Engine
    from verlstack.smoke.request import Request

_GRACE = 30.0  # seconds that another node has to end after node 0
_LONGEST = 1 << 16  # bytes of a line
_MOST_HEARD = 1 << 24  # bytes that are kept of what another node says


def run(engine: Engine, image: str, name: str, request: Request, folder: Path, say: Callable[[str], object]) -> int:
    """Start the image once for each node, hand on what node 0 says, and bring its report into `folder`.

    Args:
        engine: where.
        image: digest of the image in the engine.
        name: what the report calls the image.
        request: the run.
        folder: for the report; nodes besides the first leave their output there, `node-1.log` and so on.
        say: called with each line.

    Returns:
        Exit status of node 0: 0 passed, 1 failed, 2 could not be run.

    Raises:
        EngineError: a container cannot be started, or the engine went away.
        ProofError: the report cannot be read.
        StorageError: the disk is full or refuses us.
    """
    sweep(engine)
    label = {owner.LABEL: owner.me()}
    with contextlib.ExitStack() as stack:
        own, network = owner.name(), None
        if request.nodes > 1:
            network = stack.enter_context(engine.network(own, label))
        nodes = [
            stack.enter_context(engine.started(_order(image, name, request, node, own, network, label)))
            for node in range(request.nodes)
        ]
        end = threading.Timer(PATIENCE, nodes[0].kill)
        end.daemon = True
        end.start()
        stack.callback(end.cancel)
        others = [_Listener(node) for node in nodes[1:]]
        for line in _lines(nodes[0].output()):
            say(told.plain(line))
        status = nodes[0].exit_status()
        if status is None:
            raise EngineError("the container's output has ended, and the container not", todo="see the engine's log")
        with collect.arriving(folder) as fresh:
            for number, listener in enumerate(others, start=1):
                collect.keep(fresh / f"node-{number}.log", listener.heard())
            if stream := nodes[0].archive(REPORT):
                collect.from_tar(stream, fresh)
        return status


def sweep(engine: Engine) -> None:
    """Remove what a killed process of this machine left in the engine.

    Raises:
        EngineError: the engine does not answer.
    """
    left = [one for one, label in engine.labelled(owner.LABEL, owner.PREFIX).items() if owner.is_left_over(label)]
    engine.discard(left)


def _order(
    image: str, name: str, request: Request, node: int, own: str, network: str | None, label: dict[str, str]
) -> Order:
    return Order(
        image=image,
        name=f"{own}-{node}",
        command=request.command(node, host=_host(0)),
        user=STRANGER,
        environment=request.environment(name),
        shm_bytes=request.shm_bytes,
        gpus=request.gpus_of(node),
        network=network,
        alias=_host(node) if network else None,
        init=True,
        labels=label,
    )


def _lines(pieces: Iterator[bytes]) -> Iterator[str]:
    """Whole lines; a line that never ends is cut, so that it does not fill the memory."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
        if len(rest) > _LONGEST:
            yield rest.decode(errors="replace")
            rest = b""
    if rest:
        yield rest.decode(errors="replace")


def _host(node: int) -> str:
    return f"node-{node}"


class _Listener:
    """Listens to a node in a thread, so that its output is there when node 0 has ended."""

    def __init__(self, node: Container) -> None:
        self._pieces: list[bytes] = []
        self._left = _MOST_HEARD
        self._thread = threading.Thread(target=self._listen, args=(node,), daemon=True)
        self._thread.start()

    def _listen(self, node: Container) -> None:
        with contextlib.suppress(EngineError):  # the container was removed, or the engine went away: node 0 tells
            for piece in node.output():
                self._pieces.append(piece[: self._left])
                self._left -= len(self._pieces[-1])

    def heard(self) -> bytes:
        """All of it, once the node ends; what there is, where it does not end soon after node 0."""
        self._thread.join(_GRACE)
        return b"".join(self._pieces)
