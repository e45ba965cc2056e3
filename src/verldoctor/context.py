"""What a check may know besides its input: environment, pins of the stack, the image's own labels."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from verldoctor.installed import Distribution, distributions, normal, search_path, torch_build

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CU121: Mapping[str, str] = {
    "name": "cu121",
    "torch": "2.3.1+cu121",
    "transformers": "4.41.2",
    "verl": "0.2.0.post2",
    "cuda": "12.1",
    "python": "3.10",
}
LABELS_FILE = "verlstack-labels.json"  # the image's OCI labels, which nobody inside a container can see otherwise
_LABELS_BYTES = 1_000_000
_FOLLOWED = (
    "torch",
    "transformers",
    "verl",
    "flash-attn",
    "vllm",
    "tensordict",
    "peft",
    "datasets",
    "numpy",
    "pyarrow",
)
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;]+)$")


@dataclass(frozen=True)
class Context:
    """What is known beside the input.

    Attributes:
        env: environment variables.
        stack: versions that the checks judge by, e.g. {"torch": "2.3.1+cu121", "transformers": "4.41.2",
            "verl": "0.2.0.post2", "cuda": "12.1", "python": "3.10"}; packages that are absent have no key.
        dump: write what the machine says instead of judging it.
        labels: the image's own labels; empty outside a verlstack image.
    """

    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    stack: Mapping[str, str] = field(default_factory=lambda: dict(CU121))
    dump: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)


def here(*, dump: bool = False) -> Context:
    """The context of this process: default pins, over them the image's labels, over them what is installed."""
    env = dict(os.environ)
    labels = read_labels(env)
    found = distributions(search_path())
    stack = {**CU121, **pins_of(labels), **versions_of(found)}
    return Context(env=env, stack=stack, dump=dump, labels=labels)


def read_labels(env: Mapping[str, str]) -> dict[str, str]:
    """Labels of the image we run in, from $VERLSTACK_LABELS, this venv or /opt/verl; empty if there are none."""
    places = (env.get("VERLSTACK_LABELS", ""), f"{sys.prefix}/{LABELS_FILE}", f"/opt/verl/{LABELS_FILE}")
    for place in filter(None, places):
        try:
            with Path(place).open("rb") as stream:
                table = json.loads(stream.read(_LABELS_BYTES))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(table, dict):
            return {str(key): str(value) for key, value in table.items()}
    return {}


def pins_of(labels: Mapping[str, str]) -> dict[str, str]:
    """The pins that an image's labels name: package to version, with `name`, `cuda` and `python` where told."""
    matches = (_PIN.match(word) for word in labels.get("dev.verlstack.pins", "").split())
    pins = {normal(m[1]): m[2] for m in matches if m}
    for key in ("stack", "cuda", "python"):
        if value := labels.get(f"dev.verlstack.{key}"):
            pins["name" if key == "stack" else key] = value
    if pins.get("torch") == CU121["torch"].partition("+")[0]:
        pins["torch"] = CU121["torch"]  # the index's wheel of 2.3.1 is the cu121 build, FACTS
    return pins


def versions_of(found: Iterable[Distribution]) -> dict[str, str]:
    """Versions of the followed packages as an import would find them, torch's with its CUDA."""
    versions: dict[str, str] = {}
    for dist in found:
        if dist.name not in _FOLLOWED or dist.name in versions:
            continue
        versions[dist.name] = dist.version
        if dist.name == "torch":
            build = torch_build(dist.place)
            versions["torch"] = build.get("__version__", dist.version)
            versions |= {"cuda": build["cuda"]} if "cuda" in build else {}
    return versions
