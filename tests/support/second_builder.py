"""A Dockerfile that copies the layers of a composed image: BuildKit's own bytes, without uv, an index or a shell."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from verlstack import layer, oci

if TYPE_CHECKING:
    from support.synthetic import Tiny

BAKE = """
variable "LAYERS" {}
target "runtime" {
  context    = "."
  dockerfile = "docker/Dockerfile"
}
"""


def unpack(layout: Path, into: Path) -> list[str]:
    """Every layer of an image in a folder of its own below `into`; their names, base first."""
    _, manifest, config = oci.read_layout(layout)
    names = []
    for number, (entry, note) in enumerate(zip(manifest["layers"], config["history"], strict=True)):
        name = note["created_by"].removeprefix("verlstack: ")
        names.append(name if not name.startswith("base ") else f"base-{number}")
        blob = layout / oci.blob_path(entry["digest"])
        with layer.opened(blob, "zstd") as raw, tarfile.open(fileobj=raw, mode="r|") as archive:
            archive.extractall(into / names[-1])  # noqa: S202 - our own image
    return names


def prepare(stack: Tiny) -> None:
    """Compose the tiny image, and write a Dockerfile that makes it again out of its layers' files."""
    stack.run("build")
    folder = stack.root / "docker"
    names = unpack(stack.root / "dist" / "tiny", folder / "layers")
    above = [name for name in names if name != "interpreter" and not name.startswith("base-")]
    copies = "".join(f"COPY --link docker/layers/{name}/ /\n" for name in above)
    (folder / "Dockerfile").write_text(f"FROM os AS runtime\n{copies}WORKDIR /\n")
    (folder / "docker-bake.hcl").write_text(BAKE)
    _, _, config = oci.read_layout(stack.root / "dist" / "tiny")
    lock = {"lock": config["config"]["Labels"]["dev.verlstack.lock"]}
    variables = {"VERLSTACK_LOCK": {"default": lock}, "LAYERS": {"default": above}}
    (stack.root / "constraints" / "tiny.bake.json").write_text(json.dumps({"variable": variables}))
