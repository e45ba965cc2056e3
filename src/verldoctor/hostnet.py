"""Rules on the network: interfaces named for NCCL and Gloo, the host's own name, InfiniBand and EFA."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from verldoctor.dump import names, texts, whole
from verldoctor.finding import Finding, found
from verldoctor.hostnames import is_loopback
from verldoctor.text import safe

Facts = Mapping[str, Any]
_VIRTUAL = ("lo", "docker", "br-", "veth", "virbr", "cni", "flannel", "cali", "ifb", "tun", "dummy")


def judge(facts: Facts, subject: str) -> Iterator[Finding]:
    """Findings on the network in a host dump."""
    env = texts(facts.get("env"))
    yield from _nccl(env, facts)
    yield from _gloo(env, facts)
    yield from _loopback_if(env, facts)
    yield from _hostname(env, facts, subject)
    yield from _rdma(env, facts, subject)


def nodes(facts: Facts) -> int:
    """Nodes of this run, as far as the environment tells; 1 where it does not."""
    env = texts(facts.get("env"))
    told = [
        whole(facts.get("nnodes")),
        *(whole(env.get(key)) for key in ("NNODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")),
    ]
    world, local = whole(env.get("WORLD_SIZE")), whole(env.get("LOCAL_WORLD_SIZE"))
    spread = world // local if world and local and local > 0 else None
    return max([count for count in (*told, spread) if count], default=1)


def _example(facts: Facts) -> str:
    real = [name for name in names(facts.get("interfaces")) or [] if not name.startswith(_VIRTUAL)]
    return safe(real[0] if real else "eth0", 20)


def _nccl(env: Mapping[str, str], facts: Facts) -> Iterator[Finding]:
    value, here = env.get("NCCL_SOCKET_IFNAME", ""), names(facts.get("interfaces"))
    if not value or not here or value.startswith("^"):
        return
    exact, wanted = value.startswith("="), [part for part in value.lstrip("=").split(",") if part]
    if not any(name == part if exact else name.startswith(part) for name in here for part in wanted):
        yield _unknown("NCCL_SOCKET_IFNAME", value, here, facts)


def _gloo(env: Mapping[str, str], facts: Facts) -> Iterator[Finding]:
    value, here = env.get("GLOO_SOCKET_IFNAME", ""), names(facts.get("interfaces"))
    if value.startswith(("^", "=")):
        yield found("host", "HOST-GLOO-SYNTAX", "GLOO_SOCKET_IFNAME", measured=safe(value), example=_example(facts))
    elif here and any(part not in here for part in value.split(",") if value):
        yield _unknown("GLOO_SOCKET_IFNAME", value, here, facts)
    elif "," in value:
        first = safe(value.partition(",")[0], 20)
        yield found("host", "HOST-GLOO-LIST", "GLOO_SOCKET_IFNAME", measured=safe(value), right=first, example=first)


def _unknown(variable: str, value: str, here: list[str], facts: Facts) -> Finding:
    words = {"variable": variable, "example": _example(facts)}
    return found("host", "HOST-IFNAME", variable, measured=safe(value), right=safe(", ".join(here)), **words)


def _loopback_if(env: Mapping[str, str], facts: Facts) -> Iterator[Finding]:
    count = nodes(facts)
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        if count > 1 and env.get(variable, "").lstrip("=") == "lo":
            yield found("host", "HOST-IF-LOOPBACK", variable, measured="lo", nodes=count, example=_example(facts))


def _hostname(env: Mapping[str, str], facts: Facts, subject: str) -> Iterator[Finding]:
    count, master = nodes(facts), env.get("MASTER_ADDR", "")
    if count > 1 and master and is_loopback(master):
        yield found("host", "HOST-MASTER", "MASTER_ADDR", measured=safe(master), nodes=count)
    addresses = names(facts.get("host_addresses")) or []
    if env.get("GLOO_SOCKET_IFNAME") or not addresses or not all(is_loopback(address) for address in addresses):
        return
    name, shown = safe(facts.get("hostname", "of this machine"), 80), safe(", ".join(addresses), 80)
    code = "HOST-LOOPBACK-NODES" if count > 1 else "HOST-LOOPBACK"
    yield found("host", code, subject, measured=shown, name=name, nodes=count, example=_example(facts))


def _rdma(env: Mapping[str, str], facts: Facts, subject: str) -> Iterator[Finding]:
    devices, efa = names(facts.get("ib_devices")) or [], names(facts.get("efa_devices")) or []
    shown = safe(", ".join(devices), 80)
    if (devices or efa) and facts.get("dev_infiniband") is False:
        yield found("host", "HOST-IB-DEV", subject, measured=shown or safe(", ".join(efa), 80), right="/dev/infiniband")
    if devices and env.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
        yield found("host", "HOST-IB-OFF", "NCCL_IB_DISABLE", measured=safe(env["NCCL_IB_DISABLE"], 20), right=shown)
    yield from _hca(env.get("NCCL_IB_HCA", ""), devices)
    if efa and facts.get("nccl_net_plugin") is False:
        yield found("host", "HOST-EFA", subject, measured=safe(", ".join(efa), 80), right="libnccl-net.so")


def _hca(value: str, devices: list[str]) -> Iterator[Finding]:
    if not value or not devices or value.startswith("^"):
        return
    exact, wanted = value.startswith("="), [part.partition(":")[0] for part in value.lstrip("=").split(",") if part]
    if not any(name == part if exact else name.startswith(part) for name in devices for part in wanted):
        yield found("host", "HOST-IB-HCA", "NCCL_IB_HCA", measured=safe(value), right=safe(", ".join(devices), 80))
