"""The nodes of a run find each other and keep in step: node 0 listens, the others connect; a line is a JSON object."""

import contextlib
import errno
import fcntl
import json
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from launch import Member
from smoke import doctor

_HELLO = "verlstack smoke tests"
_MOST = 1 << 26  # bytes of one message; a node's report has some hundred kB
_PAUSE = 0.5  # seconds between two attempts to connect
_MANNERS = 5.0  # seconds within which whoever connects says who it is
_SIOCGIFADDR = 0x8915  # netdevice(7)


class MeetingError(RuntimeError):
    """The nodes do not come together; one line that says which one and why."""


class GoneError(ConnectionError):
    """The other side has ended."""


class Line:
    """One connection between two nodes."""

    def __init__(self, connection: socket.socket) -> None:
        """Take a connected socket over."""
        self._socket = connection
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # a node that loses its power says nothing: after 60 s without an answer it is gone
        for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
            with contextlib.suppress(OSError):  # not a TCP socket
                self._socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self._heard = b""

    def say(self, **message: Any) -> None:
        """Send one message.

        Raises:
            GoneError: the other side has ended.
        """
        try:
            self._socket.settimeout(60)
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as e:
            raise GoneError(str(e)) from e

    def hear(self, patience: float) -> dict[str, Any] | None:
        """The next message, or None when there is none within so many seconds.

        Raises:
            GoneError: the other side has ended, or speaks something else.
        """
        until = time.monotonic() + patience
        while b"\n" not in self._heard:
            left = max(0.0, until - time.monotonic())
            if not select.select([self._socket], [], [], left)[0]:
                return None
            try:
                part = self._socket.recv(1 << 16)
            except OSError as e:
                raise GoneError(str(e)) from e
            if not part or len(self._heard) > _MOST:
                raise GoneError("the connection was closed")
            self._heard += part
        line, _, self._heard = self._heard.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError as e:
            raise GoneError("not one of ours") from e
        if not isinstance(message, dict):
            raise GoneError("not one of ours")
        return message

    @property
    def address(self) -> str:
        """The address by which the other side reaches this one."""
        return plain(self._socket.getsockname()[0])

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def plain(address: str) -> str:
    """An IPv4 address that came over an IPv6 socket, as it is usually written."""
    return address.removeprefix("::ffff:") if "." in address else address


def gather(port: int, nodes: int, me: Member, *, patience: float) -> dict[Member, Line]:
    """Wait, as node 0, until every other node has come.

    Raises:
        MeetingError: the port is taken, or a node does not come in time.
    """
    came: dict[Member, Line] = {}
    until = time.monotonic() + patience
    with _listen(port, me) as server:
        while len(came) < nodes - 1:
            server.settimeout(max(0.001, until - time.monotonic()))
            try:
                connection, _ = server.accept()
            except TimeoutError:
                _give_up(came, nodes, me, patience)
            _admit(Line(connection), came, nodes, me)
    return dict(sorted(came.items(), key=lambda one: one[0].node))


def _listen(port: int, me: Member) -> socket.socket:
    """Listen on all addresses: the own name often stands for 127.0.1.1, where nobody else comes."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except OSError as e:
        why = "is in use" if e.errno == errno.EADDRINUSE else f"cannot be had ({e.strerror})"
        raise MeetingError(f"port {port} {why} on {me}: name another with --rendezvous on all nodes") from e


def _admit(line: Line, came: dict[Member, Line], nodes: int, me: Member) -> None:
    """Let a node in, or tell it why not; whoever is not of this run is not heard."""
    try:
        said = line.hear(_MANNERS)
        if said is None or said.get("hello") != _HELLO:
            line.close()
            return
        findings = doctor.read(said["findings"])
        who = Member(node=int(said["node"]), host=str(said["host"]), gpus=int(said["gpus"]), findings=findings)
        there = next((one for one in (me, *came) if one.node == who.node), None)
        if said["nodes"] != nodes:
            line.say(refused=f"{who} was started with --nodes {said['nodes']}, {me} with --nodes {nodes}")
        elif there or not 0 < who.node < nodes:
            line.say(refused=f"there is a node {who.node} already: {there}; each node has its own --node")
        else:
            came[who] = line
            return
    except (GoneError, KeyError, TypeError, ValueError):
        pass
    line.close()


def _give_up(came: dict[Member, Line], nodes: int, me: Member, patience: float) -> None:
    missing = sorted(set(range(1, nodes)) - {one.node for one in came})
    there = ", ".join(str(one) for one in (me, *came))
    who = f"node{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))} of {nodes}"
    why = f"{who} did not come within {patience:g} s; there: {there}"
    for line in came.values():
        with contextlib.suppress(GoneError):
            line.say(refused=why)
        line.close()
    raise MeetingError(why)


def join(host: str, port: int, nodes: int, me: Member, *, patience: float, note: Callable[[str], object]) -> Line:
    """Connect to node 0, which may start later than this one.

    Args:
        host: of node 0.
        port: of node 0.
        nodes: how many there are.
        me: this node.
        patience: seconds to go on trying.
        note: told once why it does not work at once.

    Raises:
        MeetingError: node 0 cannot be reached in time.
    """
    until = time.monotonic() + patience
    where = f"{me} does not reach node 0 at {host}:{port}"
    said = ""
    while True:
        left = until - time.monotonic()
        try:
            line = Line(socket.create_connection((host, port), timeout=max(1.0, min(10.0, left))))
        except OSError as e:
            why = _why(e, host)
        else:
            line.say(hello=_HELLO, nodes=nodes, **asdict(me))
            return line
        if left <= 0:
            raise MeetingError(f"{where} within {patience:g} s: {why}")
        if why != said:
            note(f"{where} yet: {why}; trying for {left:.0f} s")
            said = why
        time.sleep(_PAUSE)


def _why(error: OSError, host: str) -> str:
    if isinstance(error, socket.gaierror):
        return f"the name {host} cannot be resolved"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there (is node 0 started?)"
    return "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error))


def free_port() -> int:
    """A port that nobody listens on at the moment; one for each run, so that no run meets the remains of another."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def token() -> str:
    """Tells one run from all others."""
    return secrets.token_hex(4)


def interface_of(address: str) -> str | None:
    """The network interface that has an IPv4 address; None where none has it (and for IPv6)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as anyone:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without address
                found = fcntl.ioctl(anyone, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None
