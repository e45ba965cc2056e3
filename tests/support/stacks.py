"""Small pins and locks: a `stacks.toml` as a document that tests bend, and the text it becomes."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import zstandard

if TYPE_CHECKING:
    from pathlib import Path

LIBRARY = ".".join(map(str, zstandard.ZSTD_VERSION))
GONE = object()  # as a value: remove the key

DOCUMENT: dict[str, Any] = {
    "image": {
        "format": 2,
        "epoch": 1_741_046_400,
        "compression": {"level": 3, "window_log": 20, "long_distance": True, "library": LIBRARY, "fast_level": -3},
        "environment": {
            "PATH": {"value": "/opt/verl/bin:/bin", "why": "the venv first"},
            "LANG": {"value": "C.UTF-8", "why": "text is UTF-8"},
        },
    },
    "layers": {
        "heavy_bytes": 1000,
        "group": [
            {"name": "cloud", "packages": ["google-*", "grpcio"], "why": "released often"},
            {"name": "libs", "packages": ["*"], "why": "the rest"},
        ],
    },
    "debian": {"packages": {"gcc": "Triton compiles", "libc6-dev": "headers"}},
    "stack": {
        "demo": {
            "title": "a small stack",
            "python": "3.10",
            "cuda": "12.1",
            "platform": "x86_64-manylinux_2_35",
            "registry_base": "registry.invalid/python:3.10@sha256:" + "a" * 64,
            "requires": {
                "torch": {"bound": "==2.3.1", "why": "the reason to be"},
                "ray[default]": {"bound": ">=2.10", "why": "verl wants it"},
            },
            "build_tools": {"setuptools": {"bound": "==75.8.0", "why": "byte-identical with it"}},
            "verl": {
                "tag": "v0.2.0.post2",
                "commit": "f" * 40,
                "repository": "https://git.invalid/verl",
                "sdist": "verl-0.2.0.post2.tar.gz",
                "sdist_sha256": "5" * 64,
                "strip": ["tests"],
                "why": "the newest that imports",
            },
            "environment": {"TORCH_COMPILE_DISABLE": {"value": "1", "why": "breaks FSDP"}},
            "flash_attn": {
                "version": "2.5.9.post1",
                "why": "four values",
                "sdist": "flash_attn-2.5.9.post1.tar.gz",
                "sdist_sha256": "7" * 64,
                "cuda_archs": {"9.0": "H100", "8.0": "A100", "10.0": "B200"},
                "build_tools": {"ninja": {"bound": "==1.11.1.3", "why": "many files at once"}},
            },
        },
    },
}


def bent(**changes: Any) -> dict[str, Any]:
    """A copy of DOCUMENT; `stack__demo__python="3.11"` sets one value, GONE removes it."""
    document = copy.deepcopy(DOCUMENT)
    for place, value in changes.items():
        *folders, key = place.split("__")
        table = document
        for folder in folders:
            table = table[int(folder) if folder.isdigit() else folder]
        if value is GONE:
            del table[key]
        else:
            table[key] = value
    return document


def toml(value: Any) -> str:
    """A value as TOML writes it, tables inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def write(folder: Path, document: dict[str, Any] | None = None) -> Path:
    """`stacks.toml` in `folder`."""
    path = folder / "stacks.toml"
    document = DOCUMENT if document is None else document
    path.write_text("".join(f"{json.dumps(k)} = {toml(v)}\n" for k, v in document.items()), encoding="utf-8")
    return path
