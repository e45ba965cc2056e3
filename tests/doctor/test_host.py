"""The check `host`: each rule by one dump that breaks it and one that does not, live reading, bad input."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verldoctor import cpus, gpu, host, hostnames, machine
from verldoctor.context import Context
from verldoctor.finding import Finding, rules

SMI = "driver_version, cuda_version, name, compute_cap, uuid\n"
GIB = 1 << 30

# code: a file that must be said so, one that must not
BOTH: dict[str, tuple[Any, Any]] = {
    "HOST-DRIVER": (SMI + "470.82.01, 11.4, A100, 8.0, GPU-1", SMI + "525.60.13, 12.0, A100, 8.0, GPU-1"),
    "HOST-ARCH": (SMI + "570.1, 12.8, RTX 5090, 12.0, GPU-1", SMI + "570.1, 12.8, L40S, 8.9, GPU-1"),
    "HOST-AMPERE": (SMI + "550.1, 12.4, Tesla T4, 7.5, GPU-1", SMI + "550.1, 12.4, A100, 8.0, GPU-1"),
    "HOST-SMI": ("Failed to initialize NVML: Driver/library version mismatch", SMI + "550.1, 12.4, A100, 8.0, GPU-1"),
    "HOST-SMI-EMPTY": (SMI, SMI + "550.1, 12.4, A100, 8.0, GPU-1"),
    "HOST-CAPABILITIES": (
        {"env": {"NVIDIA_DRIVER_CAPABILITIES": "graphics,compute"}},
        {"env": {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}},
    ),
    "HOST-GPU-HIDDEN": (
        {"driver_version": "550.54.15", "nvidia_device": False, "smi": []},
        {"driver_version": "550.54.15", "nvidia_device": True, "smi": []},
    ),
    "HOST-SHM": ({"shm_bytes": 64 << 20, "gpus": 8}, {"shm_bytes": 8 * GIB, "gpus": 8}),
    "HOST-SHM-LOW": ({"shm_bytes": 2 * GIB, "gpus": 8}, {"shm_bytes": 2 * GIB, "gpus": 2}),
    "HOST-NOFILE": ({"nofile": 1024}, {"nofile": 65_535}),
    "HOST-NOFILE-LOW": ({"nofile": 1024, "nofile_hard": 1 << 20}, {"nofile": "unlimited"}),
    "HOST-NPROC": ({"nproc": 4096, "uid": 1000}, {"nproc": 4096, "uid": 0}),
    "HOST-NPROC-LOW": ({"nproc": 16_384}, {"nproc": -1}),
    "HOST-MEMLOCK": ({"memlock_bytes": 65_536, "ib_devices": ["mlx5_0"]}, {"memlock_bytes": 65_536, "ib_devices": []}),
    "HOST-CPUS": ({"cgroup_cpus": 8, "os_cpus": 128}, {"cgroup_cpus": None, "os_cpus": 128}),
    "HOST-RAY-OVERCOUNT": (
        {"cgroup_cpus": 8, "os_cpus": 128, "ray_cpus": 128},
        {"cgroup_cpus": 8, "os_cpus": 128, "ray_cpus": 8},
    ),
    "HOST-RAY-HANG": ({"os_cpus": 8, "gpus": 8}, {"os_cpus": 9, "gpus": 8}),
    "HOST-USER": (
        {"uid": 54321, "passwd_entry": False, "env": {"HOME": "/tmp"}},
        {"uid": 54321, "passwd_entry": False, "env": {"HOME": "/tmp", "LOGNAME": "verl"}},
    ),
    "HOST-HOME": ({"home_writable": False, "env": {"HOME": "/"}}, {"home_writable": True, "env": {"HOME": "/tmp"}}),
    "HOST-IFNAME": (
        {"env": {"NCCL_SOCKET_IFNAME": "ib,bond"}, "interfaces": ["eth0", "lo"]},
        {"env": {"NCCL_SOCKET_IFNAME": "ib,eth"}, "interfaces": ["eth0", "lo"]},
    ),
    "HOST-GLOO-SYNTAX": ({"env": {"GLOO_SOCKET_IFNAME": "^docker0"}}, {"env": {"NCCL_SOCKET_IFNAME": "^docker0"}}),
    "HOST-GLOO-LIST": ({"env": {"GLOO_SOCKET_IFNAME": "eth0,eth1"}}, {"env": {"NCCL_SOCKET_IFNAME": "eth0,eth1"}}),
    "HOST-IF-LOOPBACK": (
        {"env": {"GLOO_SOCKET_IFNAME": "lo", "NNODES": "2"}},
        {"env": {"GLOO_SOCKET_IFNAME": "lo", "NNODES": "1"}},
    ),
    "HOST-LOOPBACK": (
        {"hostname": "n1", "host_addresses": ["127.0.1.1"]},
        {"hostname": "n1", "host_addresses": ["127.0.1.1", "10.0.0.1"]},
    ),
    "HOST-LOOPBACK-NODES": (
        {"host_addresses": ["127.0.1.1"], "env": {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}},
        {
            "host_addresses": ["127.0.1.1"],
            "env": {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "GLOO_SOCKET_IFNAME": "e"},
        },
    ),
    "HOST-MASTER": (
        {"nnodes": 2, "env": {"MASTER_ADDR": "localhost"}},
        {"nnodes": 1, "env": {"MASTER_ADDR": "localhost"}},
    ),
    "HOST-IB-DEV": (
        {"ib_devices": ["mlx5_0"], "dev_infiniband": False},
        {"ib_devices": ["mlx5_0"], "dev_infiniband": True},
    ),
    "HOST-IB-HCA": (
        {"ib_devices": ["mlx5_0"], "env": {"NCCL_IB_HCA": "=mlx5_9:1"}},
        {"ib_devices": ["mlx5_0"], "env": {"NCCL_IB_HCA": "mlx5"}},
    ),
    "HOST-IB-OFF": (
        {"ib_devices": ["mlx5_0"], "env": {"NCCL_IB_DISABLE": "1"}},
        {"ib_devices": ["mlx5_0"], "env": {"NCCL_IB_DISABLE": "0"}},
    ),
    "HOST-EFA": (
        {"efa_devices": ["rdmap0"], "nccl_net_plugin": False},
        {"efa_devices": ["rdmap0"], "nccl_net_plugin": True},
    ),
    "HOST-VALUE": ({"shm_bytes": [1]}, {"shm_bytes": "64G"}),
    "HOST-DUMP": ({"colour": "red"}, {"uid": 0}),
}
LIVE = {"HOST-NO-GPU", "HOST-ARCH-UNKNOWN"}


def codes(tmp_path: Path, content: Any, context: Context | None = None) -> list[str]:
    return [finding.code for finding in judged(tmp_path, content, context)]


def judged(tmp_path: Path, content: Any, context: Context | None = None) -> list[Finding]:
    file = tmp_path / "dump"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return host.check([file], context or Context(env={}))


@pytest.mark.parametrize("code", BOTH)
def test_each_rule_speaks_where_it_should_and_is_silent_where_not(code: str, tmp_path: Path) -> None:
    bad, good = BOTH[code]
    assert code in codes(tmp_path, bad)
    assert codes(tmp_path, good).count(code) == 0


def test_every_rule_has_a_case_both_ways() -> None:
    assert set(rules("host")) == set(BOTH) | LIVE


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("\ufeff470.1, Tesla P40, 6.1\r\n", ["HOST-DRIVER", "HOST-AMPERE"]),  # BOM, no header
        ("name, driver_version\nTesla V100-SXM2-32GB, 460.32.03\n", ["HOST-DRIVER", "HOST-AMPERE"]),  # no capability
        ("| NVIDIA-SMI 470.82  Driver Version: 470.82.01  CUDA Version: 11.4 |", ["HOST-DRIVER"]),
        ("name, driver_version, compute_cap\nA100, [N/A], [N/A]\n", ["HOST-SMI-EMPTY"]),
        ("name, compute_cap\nA100, 8.0\n", []),
        ("name, driver_version, compute_cap\nNVIDIA B200, 570.1, 10.0\n", ["HOST-ARCH"]),
        ("No devices were found\n", ["HOST-SMI"]),
        ("nothing of the kind", ["HOST-SMI-EMPTY"]),
        (SMI + "550.1, 12.4, A100, 8.0, GPU-1\n470.1, 11.4, A100, 8.0, GPU-2", ["HOST-DRIVER"]),
    ],
)
def test_nvidia_smi_in_any_form(text: str, code: list[str], tmp_path: Path) -> None:
    assert codes(tmp_path, text) == code


def test_a_gpu_line_is_named_by_its_line_number(tmp_path: Path) -> None:
    found = judged(tmp_path, SMI + "550.1, 12.4, A100, 8.0, GPU-1\n470.1, 11.4, A100, 8.0, GPU-2\n")
    assert found[0].subject.endswith(":3")
    assert (found[0].measured, found[0].right) == ("470.1", "525.60.13")


def test_the_driver_bound_follows_the_stack(tmp_path: Path) -> None:
    line = SMI + "550.54.14, 12.4, A100, 8.0, GPU-1\n"
    assert codes(tmp_path, line, Context(stack={"cuda": "13.0"})) == ["HOST-DRIVER"]
    assert codes(tmp_path, line, Context(stack={"cuda": "11.8"})) == []
    assert codes(tmp_path, line, Context(stack={"torch": "9.9.9"})) == ["HOST-ARCH-UNKNOWN"]
    assert codes(tmp_path, line, Context(stack={"torch": "2.3.1", "cuda": "12.1"})) == []


def test_the_capability_is_known_by_name_where_nvidia_smi_is_old() -> None:
    assert {name: gpu.capability_of(name) for name in ("NVIDIA H200", "NVIDIA GeForce RTX 4090", "unheard of")} == {
        "NVIDIA H200": "9.0",
        "NVIDIA GeForce RTX 4090": "8.9",
        "unheard of": "",
    }


def test_a_dump_without_values_tells_nothing(tmp_path: Path) -> None:
    assert codes(tmp_path, '{"nofile": null, "shm_bytes": null}') == ["HOST-DUMP"]
    assert codes(tmp_path, '{"nofile": null, "uid": 0}') == []


def test_a_dump_of_this_machine_reads_back(tmp_path: Path) -> None:
    context = Context(env={"HOME": "/tmp", "USER": "verl", "NCCL_SECRET_TOKEN": "hush", "AWS_KEY": "hush"})
    text = host.dump(context)
    assert "hush" not in text
    assert json.loads(text)["kind"] == "host"
    assert not {"HOST-DUMP", "HOST-VALUE"} & set(codes(tmp_path, text))
    live = {finding.code for finding in host.check([], context)} - LIVE
    assert live == set(codes(tmp_path, text)) - LIVE


def test_a_driver_without_device_files_is_a_container_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    info = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\nGPU UUID: \t GPU-1234abcd\n"
    monkeypatch.setattr(machine, "read_text", lambda path, most=0: info if path.name == "information" else version)
    monkeypatch.setattr(machine, "_folders", lambda parent: [Path("0")] if parent.name == "gpus" else [])
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    monkeypatch.setattr(machine.Path, "exists", lambda self: False)
    assert "HOST-GPU-HIDDEN" in [finding.code for finding in host.check([], Context(env={}))]
    monkeypatch.setattr(machine.Path, "exists", lambda self: self.name == "nvidiactl")
    facts = machine.facts({})
    assert facts["smi"] == [{"driver_version": "535.104.05", "name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-1234abcd"}]
    assert facts["gpus"] == 1
    assert not LIVE & {finding.code for finding in host.check([], Context(env={}))}


def test_nvidia_smi_is_asked_where_proc_is_silent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho driver_version, name, compute_cap, uuid\necho 470.1, A100, 8.0, GPU-1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(machine, "_DRIVER_FILE", tmp_path / "none")
    monkeypatch.setattr(machine, "_PROC_GPUS", tmp_path / "none")
    assert machine.facts({})["gpus"] == 1
    assert "HOST-DRIVER" in [finding.code for finding in host.check([], Context(env={}))]


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "membership", "allowed", "ray"),
    [
        ({"cpu.max": "400000 100000"}, "0::/", 4.0, 4),
        ({"cpu.max": "max 100000"}, "0::/", None, 128),
        ({"slice/cpu.max": "50000 100000"}, "0::/slice/job", 0.5, 128),  # Ray does not look below the root
        ({"cpu/cpu.cfs_quota_us": "800000", "cpu/cpu.cfs_period_us": "100000"}, "3:cpu,cpuacct:/", 8.0, 8),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "3:cpu:/", None, 128),
        ({"cpuset/cpuset.cpus": "0-3,8"}, "0::/", None, 5),
        ({"cpu.max": "garbage"}, "nonsense", None, 128),
        ({"cpuset/cpuset.cpus": "x-y"}, "", None, 128),
    ],
)
def test_cgroup_limits_and_what_ray_counts(
    files: dict[str, str], membership: str, allowed: float | None, ray: int, tmp_path: Path
) -> None:
    root = write(tmp_path, files)
    assert cpus.limit(root, membership) == allowed
    assert cpus.ray_count({}, root, 128) == ray
    assert cpus.ray_count({"RAY_USE_MULTIPROCESSING_CPU_COUNT": "1"}, root, 128) == 128


def test_the_hosts_file_is_asked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1 n1.example n1 # Debian\n")
    assert hostnames.addresses("n1", hosts) == ["127.0.1.1"]
    monkeypatch.setattr(hostnames, "_resolved", lambda name: ["10.0.0.7"])
    assert hostnames.addresses("n2", hosts) == ["10.0.0.7"]
    assert hostnames.is_loopback("::1")
    assert not hostnames.is_loopback("10.0.0.7")


@pytest.mark.parametrize(
    "content", ["", "   ", "[1, 2]", "{", "{" * 100_000, '{"a":' * 50_000, "\0\0\0", '{"x": 1e999}']
)
def test_nonsense_is_an_unknown_finding(content: str, tmp_path: Path) -> None:
    found = judged(tmp_path, content)
    assert found
    assert {finding.severity for finding in found} == {"unknown"}


def test_escape_codes_and_huge_files_do_no_harm(tmp_path: Path) -> None:
    found = judged(tmp_path, SMI + "470.1, 11, \x1b[31mA100\x1b[0m, 12.0, GPU-1\n")
    assert all("\x1b" not in f"{finding}" for finding in found)
    assert codes(tmp_path, "x" * 5_000_000) == ["HOST-DUMP"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
NAMES = (
    *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NNODES"),
    *("MASTER_ADDR", "OMP_NUM_THREADS", "NVIDIA_DRIVER_CAPABILITIES", "HOME"),
)
ENV = st.dictionaries(st.sampled_from(NAMES), VALUES)


@given(
    st.dictionaries(st.sampled_from(sorted(host._KNOWN)), VALUES) | st.fixed_dictionaries({"env": ENV, "gpus": VALUES})
)
def test_no_dump_of_known_keys_breaks_the_check(facts: dict[str, Any]) -> None:
    assert all(isinstance(finding, Finding) for finding in host.judge(facts, "x", Context().stack))


@given(st.binary(max_size=300) | st.text(alphabet="0123456789.,GPU-[] \n\"'driver_version", max_size=200))
def test_no_bytes_break_the_check(tmp_path: Path, data: bytes | str) -> None:
    file = tmp_path / "x"
    file.write_bytes(data if isinstance(data, bytes) else data.encode())
    assert all(isinstance(finding, Finding) for finding in host.check([file], Context(env={})))


@pytest.mark.parametrize(
    ("container", "fix"),
    [
        ("docker", "--shm-size=10g"),
        ("kubernetes", "emptyDir"),
        ("apptainer", "remount"),
        ("", "Kubernetes"),
        (["docker"], "Kubernetes"),
    ],
)
def test_the_fix_is_for_the_container_runtime(tmp_path: Path, container: Any, fix: str) -> None:
    assert fix in judged(tmp_path, {"shm_bytes": 64 << 20, "container": container})[0].fix
