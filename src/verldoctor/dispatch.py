"""Tells by name and first bytes which check a path is for."""

from __future__ import annotations

import json
import os
from itertools import islice
from typing import TYPE_CHECKING

from verldoctor import overrides

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HEAD_BYTES = 65_536
_JSON_BYTES = 4_000_000  # a dump or a config; whoever is larger is data
_DIR_ENTRIES = 10_000
_SUFFIXES = {
    ".yaml": "fsdp", ".yml": "fsdp", ".parquet": "data", ".jsonl": "data", ".ndjson": "data",
    ".log": "explain", ".out": "explain", ".err": "explain",
    ".py": "env", ".in": "env", ".toml": "env", ".dockerfile": "env",
}  # fmt: skip
_SCRIPTS = {".sh", ".bash", ".slurm", ".sbatch"}
_HOST_KEYS = {
    "shm_bytes", "nofile", "nproc", "memlock_bytes", "uid", "passwd_entry", "cgroup_cpus", "os_cpus", "hostname",
    "host_addresses", "interfaces", "driver_version", "smi", "ib_devices", "efa_devices", "container",
}  # fmt: skip
_DEVICE_KEYS = {
    "nproc_per_node", "sp", "micro_batch", "mini_batch", "train_batch", "n", "placement", "pools", "n_gpus_per_node",
    "nnodes", "tp", "tensor_parallel",
}  # fmt: skip
_KEYS = (
    ("model", {"model_type", "architectures", "tokenizer_class"}),
    ("data", {"data_source", "prompt"}),
    ("devices", _DEVICE_KEYS),
    ("host", _HOST_KEYS),
    ("devices", {"env", "gpus"}),
)


def kind_of(path: Path) -> tuple[str, str]:
    """The kind of `path` and "", or "" and why it fits none."""
    if overrides.instead_of(path):
        return "fsdp", ""
    try:
        return _of_directory(path) if path.is_dir() else _of_file(path)
    except (OSError, ValueError) as error:
        return "", str(getattr(error, "strerror", None) or error)


def _of_directory(path: Path) -> tuple[str, str]:
    names = set(_names(path))
    shards = any(name.startswith(("model_world_size_", "optim_world_size_", "global_step_")) for name in names)
    if shards or "latest_checkpointed_iteration.txt" in names or any(n.endswith(".distcp") for n in names):
        return "checkpoint", ""
    if names & {"actor", "critic"} and any(n.startswith("model_world_size_") for n in _names(path / "actor")):
        return "checkpoint", ""
    if "config.json" in names or any(n.startswith("tokenizer") or n.endswith(".safetensors") for n in names):
        return "model", ""
    if any(n.endswith((".parquet", ".jsonl")) for n in names):
        return "data", ""
    if any(n.endswith(".dist-info") for n in names):
        return "env", ""
    return "", "a directory without config.json, tokenizer, model_world_size_* or parquet"


def _names(path: Path) -> Iterator[str]:
    if not path.is_dir():
        return
    with os.scandir(path) as entries:
        yield from (entry.name for entry in islice(entries, _DIR_ENTRIES))


def _of_file(path: Path) -> tuple[str, str]:
    name, suffix = path.name.lower(), path.suffix.lower()
    if suffix in _SCRIPTS:
        from verldoctor import launch  # noqa: PLC0415 - 10 ms that no other file need pay

        with path.open("rb") as stream:
            starts = launch.starts_verl(stream.read(_HEAD_BYTES).decode("utf-8", "replace"))
        return "fsdp" if starts else "env", ""
    if suffix in _SUFFIXES or name.endswith("dockerfile"):
        return _SUFFIXES.get(suffix, "env"), ""
    if suffix in {".pt", ".distcp"}:
        return "checkpoint", ""
    with path.open("rb") as stream:
        head = stream.read(_HEAD_BYTES)
    return _of_content(path, name, head)


def _of_content(path: Path, name: str, head: bytes) -> tuple[str, str]:
    if head.startswith(b"PAR1"):
        return "data", ""
    if b"driver_version" in head[:4096] or (b"NVIDIA" in head and name.endswith(".csv")):
        return "host", ""
    if name.endswith(".json") or head.lstrip()[:1] in (b"{", b"["):
        return _of_json(path, head)
    if name.endswith(".txt") and name.startswith(("requirements", "constraints")):
        return "env", ""
    if b"Traceback (most recent call last)" in head or name.endswith(".txt"):
        return "explain", ""
    return "", "neither its name nor its first bytes say"


def _of_json(path: Path, head: bytes) -> tuple[str, str]:
    if path.stat().st_size > _JSON_BYTES:
        return "data", ""
    try:
        table = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return ("data", "") if head.lstrip().startswith(b"{") and b"\n{" in head else ("", "JSON that does not parse")
    if isinstance(table, list):
        return "data", ""
    return _of_keys(path, table) if isinstance(table, dict) else ("", "JSON, but no object")


def _of_keys(path: Path, table: dict[str, object]) -> tuple[str, str]:
    if table.get("kind") in ("host", "devices"):
        return str(table["kind"]), ""
    kind = next((kind for kind, keys in _KEYS if keys & table.keys()), "")
    return kind, "" if kind else f"JSON object of unknown keys in {path.name}"
