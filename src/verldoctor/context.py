"""What a check may know besides its input: environment, pins of the stack, what the image says of itself."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from verldoctor import stackfile
from verldoctor.installed import Distribution, distributions, search_path, torch_build

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


@dataclass(frozen=True)
class Context:
    """What is known beside the input.

    Attributes:
        env: environment variables.
        stack: versions that the checks judge by, e.g. {"torch": "2.3.1+cu121", "transformers": "4.41.2",
            "verl": "0.2.0.post2", "cuda": "12.1", "python": "3.10"}; packages that are absent have no key.
        dump: write what the machine says instead of judging it.
        image: what the image says of itself; None outside a verlstack image.
    """

    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    stack: Mapping[str, str] = field(default_factory=lambda: dict(CU121))
    dump: bool = False
    image: stackfile.Image | None = None


def here(*, dump: bool = False) -> Context:
    """The context of this process: default pins, over them the image's own, over them what is installed."""
    env = dict(os.environ)
    image = stackfile.read(env)
    found = distributions(search_path())
    stack = {**CU121, **(pins_of(image) if image else {}), **versions_of(found)}
    return Context(env=env, stack=stack, dump=dump, image=image)


def pins_of(image: stackfile.Image) -> dict[str, str]:
    """The pins of what is in `image`: package to version, with `name`, `cuda` and `python` where told."""
    words = {"name": image.name, "cuda": image.cuda, "python": image.python}
    pins = {**image.here, **{key: value for key, value in words.items() if value}}
    if pins.get("torch") == CU121["torch"].partition("+")[0]:
        pins["torch"] = CU121["torch"]  # the index's wheel of 2.3.1 is the cu121 build: it says 2.3.1+cu121 itself
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
