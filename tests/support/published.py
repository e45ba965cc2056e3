"""A small layout that may be published: the metadata of torch, transformers and verl in layers of their names."""

from __future__ import annotations

from pathlib import Path

from support import layouts

CONSTRAINTS = Path(__file__).parents[2] / "constraints"
SITE = "opt/verl/lib/python3.10/site-packages"
CUDA = "nvidia-cuda-runtime-cu12 (==12.1.105) ; platform_system == 'Linux'"
TAG = "cu121-torch2.3.1-cuda12.1-transformers4.41.2-flashattn2.5.9.post1-verl0.2.0.post2-20250304-11111111"
LOCK = f"sha256:{'1' * 64}"
LABELS = {
    "dev.verlstack.stack": "cu121",
    "dev.verlstack.lock": LOCK,
    "dev.verlstack.base": f"127.0.0.1:5000/team/base:1@sha256:{'2' * 64}",
    "dev.verlstack.base.scope": "pinned",
    "org.opencontainers.image.title": "verlstack cu121",
}


def metadata(project, version, *requires):
    """A layer with the METADATA of a project, and a file beside it."""
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project}",
        f"Version: {version}",
        *(f"Requires-Dist: {x}" for x in requires),
    ]
    name = project.replace("-", "_")
    text = "\n".join(lines).encode() + b"\n\nA description.\n"
    return {f"{SITE}/{name}-{version}.dist-info/METADATA": text, f"{SITE}/{name}/__init__.py": b"x = 1\n"}


LAYERS = {
    "base x": {"etc/os-release": b"ID=debian\n"},
    "torch": metadata("torch", "2.3.1", "filelock", CUDA),
    "transformers": metadata("transformers", "4.41.2"),
    "flash-attn": metadata("flash-attn", "2.5.9.post1"),
    "verl": metadata("verl", "0.2.0.post2"),
}


def image(folder, layers=LAYERS, labels=None, created="2025-03-04T00:00:00Z"):
    """The layout's folder; `labels` go over LABELS, None removes one."""
    known = {name: value for name, value in (LABELS | (labels or {})).items() if value is not None}
    history = [{"created_by": f"verlstack: {name}"} for name in layers]
    config = {"created": created, "history": history, "config": {"Env": ["PATH=/usr/bin"], "Labels": known}}
    return layouts.write(folder, *layers.values(), config=config, index=None)
