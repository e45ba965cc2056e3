"""What this machine is called, what that resolves to, and which network interfaces it has."""

from __future__ import annotations

import ipaddress
import socket
import threading
from pathlib import Path
from typing import Any

_HOSTS = Path("/etc/hosts")
_RESOLVE_SECONDS = 0.2  # a resolver that is slower than this is asked by the run itself, not by us


def facts() -> dict[str, Any]:
    """Hostname, host_addresses and interfaces of this machine."""
    name = socket.gethostname()
    return {"hostname": name, "host_addresses": addresses(name), "interfaces": interfaces()}


def addresses(name: str, hosts: Path = _HOSTS) -> list[str]:
    """Addresses of `name` from the hosts file, else from the resolver; empty where it does not answer at once."""
    try:
        lines = hosts.read_text(encoding="utf-8", errors="replace")[:1_000_000].splitlines()
    except OSError:
        lines = []
    rows = [line.partition("#")[0].split() for line in lines]
    return [row[0] for row in rows if name in row[1:]] or _resolved(name)


def _resolved(name: str) -> list[str]:
    answers: list[str] = []

    def ask() -> None:
        try:
            answers.extend(sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None)}))
        except (OSError, UnicodeError):
            return

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_RESOLVE_SECONDS)
    return list(answers)


def interfaces() -> list[str]:
    """Names of the network interfaces."""
    try:
        return sorted(name for _, name in socket.if_nameindex())
    except OSError:
        return []


def is_loopback(address: str) -> bool:
    """Whether `address` is one of 127.0.0.0/8, ::1 or the name localhost."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address.lower() in {"localhost", "localhost.localdomain", "ip6-localhost"}
