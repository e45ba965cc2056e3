"""`verlstack publish` beside skopeo, both into Debian's docker-registry on loopback, in one run.

    .venv/bin/python benchmarks/push.py [LAYOUT] [--rounds N]

LAYOUT is dist/cu121 unless another is named. Needs `docker-registry` and `skopeo`, and twice the image's size of disk.
Timed in each round, in turn: skopeo from disk to disk (`oci:` to `oci:`), skopeo into an empty registry, and `verlstack
publish` into an empty registry. Then the layer of verl is deleted in the registry, and the image published again.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
VERLSTACK = [sys.executable, "-m", "verlstack"]
RATE = 0.8  # at least so much of skopeo's rate from disk to disk
AGAIN_S = 3.0  # at most, where all is there but the layer of verl
CONFIG = """
version: 0.1
log: {{level: error}}
storage:
  filesystem: {{rootdirectory: {folder}}}
  delete: {{enabled: true}}
http: {{addr: "127.0.0.1:{port}"}}
"""


def main() -> int:
    """Measure, print, and tell by the exit code whether the bounds hold."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("layout", nargs="?", type=Path, default=ROOT / "dist" / "cu121")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="push-", dir="/var/tmp") as name:
        folder = Path(name)
        layout = publishable(arguments.layout.absolute(), folder / "image")
        size = sum(path.stat().st_size for path in (layout / "blobs/sha256").iterdir())
        print(f"{size / 1e6:.0f} MB, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        rows = [once(layout, folder) for _ in range(arguments.rounds)]
    disk, other, ours, again = (statistics.median(column) for column in zip(*rows, strict=True))
    for label, seconds in (("skopeo, disk to disk", disk), ("skopeo, into the registry", other), ("publish", ours)):
        print(f"{label:28}{seconds:7.2f} s {size / seconds / 1e6:8.0f} MB/s")
    print(f"{'publish, verl alone':28}{again:7.2f} s            ≤ {AGAIN_S:g}  {verdict(again <= AGAIN_S)}")
    print(f"{'rate ÷ disk to disk':28}{disk / ours:7.2f}              ≥ {RATE:g}  {verdict(disk / ours >= RATE)}")
    print(f"{'rate ÷ skopeo, registry':28}{other / ours:7.2f}")
    return 0 if disk / ours >= RATE and again <= AGAIN_S else 1


def verdict(holds: bool) -> str:  # noqa: FBT001
    """In a word."""
    return "ok" if holds else "MISSED"


def publishable(layout: Path, target: Path) -> Path:
    """The same blobs under a stack name that admits what is local and left out; only config and manifest are others."""
    shutil.copytree(layout, target, copy_function=os.link)
    blobs = target / "blobs/sha256"
    index = json.loads((layout / "index.json").read_text())
    entry = index["manifests"][0]
    manifest = json.loads((blobs / entry["digest"].removeprefix("sha256:")).read_text())
    config = json.loads((blobs / manifest["config"]["digest"].removeprefix("sha256:")).read_text())
    labels = config["config"]["Labels"]
    stack, title = labels["dev.verlstack.stack"], labels["org.opencontainers.image.title"]
    lacks = title.removeprefix(f"verlstack {stack}").removeprefix("-")
    name = "-".join(filter(None, (stack, lacks, "local")))
    labels |= {"dev.verlstack.stack": name, "org.opencontainers.image.title": f"verlstack {name}-{lacks}"}
    manifest["config"] |= put(blobs, config)
    entry |= put(blobs, manifest)
    (target / "index.json").unlink()
    (target / "index.json").write_text(json.dumps(index))
    return target


def put(blobs: Path, document: object) -> dict[str, object]:
    """Write a document under its digest; what a descriptor says of it."""
    data = json.dumps(document).encode()
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def once(layout: Path, folder: Path) -> tuple[float, float, float, float]:
    """Seconds of skopeo from disk to disk, of skopeo and of ours into a registry, and of ours for verl alone."""
    tag = json.loads((layout / "index.json").read_text())["manifests"][0]["annotations"][
        "org.opencontainers.image.ref.name"
    ]
    source = f"oci:{layout}:{tag}"
    disk = timed(["skopeo", "--insecure-policy", "copy", "--quiet", source, f"oci:{folder}/copy:{tag}"], folder)
    shutil.rmtree(folder / "copy")
    with registry(folder) as host:
        target = f"docker://{host}/team/verl:{tag}"
        other = timed(
            ["skopeo", "--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false", source, target], folder
        )
    with registry(folder) as host:
        words = [
            *VERLSTACK,
            "publish",
            layout,
            f"{host}/team/verl",
            "--insecure",
            "--constraints",
            ROOT / "constraints",
        ]
        ours = timed(words, folder)
        request = urllib.request.Request(f"http://{host}/v2/team/verl/blobs/{layer_of_verl(layout)}", method="DELETE")
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).close()
        again = timed(words, folder)
    return disk, other, ours, again


def layer_of_verl(layout: Path) -> str:
    """The digest of the layer that history calls verl."""
    blobs = layout / "blobs/sha256"
    entry = json.loads((layout / "index.json").read_text())["manifests"][0]
    manifest = json.loads((blobs / entry["digest"].removeprefix("sha256:")).read_text())
    config = json.loads((blobs / manifest["config"]["digest"].removeprefix("sha256:")).read_text())
    names = [row["created_by"] for row in config["history"]]
    return str(manifest["layers"][names.index("verlstack: verl")]["digest"])


def timed(words: list[object], folder: Path) -> float:
    """Wall time of a program that must end well."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "no_proxy": "*"}
    start = time.monotonic()
    done = subprocess.run([str(word) for word in words], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stderr}")
    return time.monotonic() - start


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[str]:
    """An empty registry that keeps its files below a folder."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "registry.yml").write_text(CONFIG.format(folder=folder / "registry", port=port))
    words = [shutil.which("docker-registry") or "docker-registry", "serve", folder / "registry.yml"]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(folder / "registry")


if __name__ == "__main__":
    sys.exit(main())
