"""Reads of this machine what a host dump holds; no command is run unless nothing else tells."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verldoctor import cpus, hostnames

if TYPE_CHECKING:
    from collections.abc import Mapping

_RELEVANT = re.compile(
    r"^(USER|LOGNAME|LNAME|USERNAME|HOME|MASTER_ADDR|(LOCAL_)?WORLD_SIZE|NNODES|KUBERNETES_SERVICE_HOST"
    r"|(NCCL|GLOO|NVIDIA|CUDA|RAY|OMP|FI|SLURM_(NNODES|JOB_NUM_NODES))[A-Z0-9_]*)$"
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|KEY$|AUTH|CREDENTIAL")
_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_PROC_GPUS = Path("/proc/driver/nvidia/gpus")
_SMI_SECONDS = 8.0  # it loads the driver first where persistence mode is off
_QUERY = "--query-gpu=driver_version,name,compute_cap,uuid"
_NCCL_NETS = ("libnccl-net.so", "libnccl-net-ofi.so", "libnccl-net-aws-ofi.so")
_NET_PLACES = (
    "/opt/amazon/ofi-nccl/lib",
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/aws-ofi-nccl/lib",
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
)


def facts(env: Mapping[str, str]) -> dict[str, Any]:
    """What this machine says, in the form of a host dump; no secret is in it."""
    return {
        "kind": "host",
        "version": 1,
        **_limits(),
        **_user(),
        **cpus.facts(env),
        **hostnames.facts(),
        **_gpus(),
        **_rdma(env),
        "container": _container(env),
        "env": {key: env[key] for key in sorted(env) if _RELEVANT.match(key) and not _SECRET.search(key)},
    }


def _limits() -> dict[str, Any]:
    import resource  # noqa: PLC0415 - Unix only; the rest of verldoctor runs anywhere

    names = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC, "memlock_bytes": resource.RLIMIT_MEMLOCK}
    limits: dict[str, Any] = {name: resource.getrlimit(which)[0] for name, which in names.items()}
    limits["nofile_hard"] = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    try:
        shm = os.statvfs("/dev/shm")  # noqa: S108 - its size is asked, nothing is written
        limits["shm_bytes"] = shm.f_frsize * shm.f_blocks
    except OSError:
        limits["shm_bytes"] = 0
    return limits


def _user() -> dict[str, Any]:
    import pwd  # noqa: PLC0415 - Unix only

    uid = os.getuid()
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return {"uid": uid, "passwd_entry": False, "home_writable": _home_writable()}
    return {"uid": uid, "passwd_entry": True, "home_writable": _home_writable()}


def _home_writable() -> bool:
    return os.access(os.environ.get("HOME", "/"), os.W_OK | os.X_OK)


def _gpus() -> dict[str, Any]:
    driver = re.search(r"Kernel Module.*?\s(\d{3,4}\.\d+(?:\.\d+)?)\s", read_text(_DRIVER_FILE))
    rows = [_proc_gpu(folder, driver[1] if driver else "") for folder in _folders(_PROC_GPUS)]
    device = Path("/dev/nvidiactl").exists()
    facts: dict[str, Any] = {"driver_version": driver[1] if driver else "", "nvidia_device": device}
    if (driver and rows and device) or not shutil.which("nvidia-smi"):
        return {**facts, "smi": rows if device else [], "gpus": len(rows) if device else 0}
    text = _run_smi()
    return {**facts, "smi_text": text, "gpus": max(len(text.splitlines()) - 1, 0) if _QUERY[12:26] in text else 0}


def _proc_gpu(folder: Path, driver: str) -> dict[str, str]:
    fields = dict(re.findall(r"^(Model|GPU UUID)\s*:\s*(.+?)\s*$", read_text(folder / "information"), re.MULTILINE))
    return {"driver_version": driver, "name": fields.get("Model", ""), "uuid": fields.get("GPU UUID", "")}


def _run_smi() -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", _QUERY, "--format=csv"],  # noqa: S607 - wherever the driver put it
            capture_output=True,
            check=False,
            timeout=_SMI_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi: {error}"
    return (done.stdout + done.stderr).decode("utf-8", "replace")[:100_000]


def _rdma(env: Mapping[str, str]) -> dict[str, Any]:
    devices = [folder.name for folder in _folders(Path("/sys/class/infiniband"))]
    efa = [name for name in devices if Path(f"/sys/class/infiniband/{name}/device/driver").resolve().name == "efa"]
    places = [*_NET_PLACES, *env.get("LD_LIBRARY_PATH", "").split(":")]
    plugin = any(Path(place, name).exists() for place in places if place for name in _NCCL_NETS)
    return {
        "ib_devices": [name for name in devices if name not in efa],
        "efa_devices": efa,
        "dev_infiniband": Path("/dev/infiniband").is_dir(),
        "nccl_net_plugin": plugin,
    }


def _container(env: Mapping[str, str]) -> str:
    if "KUBERNETES_SERVICE_HOST" in env:
        return "kubernetes"
    if "APPTAINER_NAME" in env or "SINGULARITY_NAME" in env:
        return "apptainer"
    if Path("/run/.containerenv").exists():
        return "podman"
    return "docker" if Path("/.dockerenv").exists() else ""


def _folders(parent: Path) -> list[Path]:
    try:
        return sorted(parent.iterdir())[:256]
    except OSError:
        return []


def read_text(path: Path, most: int = 65_536) -> str:
    """The start of a small system file, or "" where it cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(most).decode("utf-8", "replace")
    except OSError:
        return ""
