"""The baseline of compose_vs_buildkit.py: the lock's closure built by `docker buildx build` from plain.Dockerfile."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import measure
import zstandard
from measure import Cost, FailedError

if TYPE_CHECKING:
    from verlstack.cache import Cache

HERE = Path(__file__).resolve().parent
BASE = "verlstack-benchmark-base:1"
_OCI = "application/vnd.oci.image"
_HASH = re.compile(r"^(\S+)==(\S+) \\\n\s+--hash=sha256:([0-9a-f]{64})$", re.MULTILINE)


def check() -> None:
    """Refuse to begin without an engine that can build.

    Raises:
        FailedError: `docker buildx` does not run, or nobody answers it.
    """
    try:
        _docker("buildx", "inspect")
    except (FailedError, OSError) as e:
        raise FailedError(f'no engine: {e}\ndo: docker/engine.sh start && eval "$(docker/engine.sh env)"') from e


def build(lock: dict[str, Any], requirements: Path, cache: Cache, layout: Path, work: Path) -> tuple[Cost, int]:
    """Build the closure and measure it.

    Args:
        lock: the lock's TOML document.
        requirements: `STACK.txt`.
        cache: where the lock's wheels lie, the built ones too.
        layout: our image, whose bottom layers (base, interpreter) become the baseline's base.
        work: scratch folder; what is written there counts as the build's disk.

    Returns:
        The cost, and the bytes a registry would store.
    """
    work.mkdir()
    bottom = work / "base.tar"
    _base_archive(layout, len(lock["layer"]), bottom)
    _docker("load", "--input", bottom)
    wheels = _wheelhouse(lock, requirements, cache, work / "wheels")
    tools = work / "uv"
    tools.mkdir()
    shutil.copy2(_uv(), tools / "uv")
    _docker("buildx", "prune", "--all", "--force")
    archive = work / "plain.oci.tar"
    command: list[str | Path] = ["docker", "buildx", "build", "--no-cache", "--network", "none", "--provenance=false"]
    command += ["--progress", "plain", "--file", HERE / "plain.Dockerfile"]
    command += ["--build-arg", f"PYTHON=python{lock['python']}", "--build-context", f"base=docker-image://{BASE}"]
    command += ["--build-context", f"wheels={wheels}", "--build-context", f"uv={tools}"]
    command += ["--output", f"type=oci,dest={archive},rewrite-timestamp=true", tools]
    env = os.environ | {"SOURCE_DATE_EPOCH": str(lock["epoch"])}
    engine = Path(_docker("info", "--format", "{{.DockerRootDir}}").strip())
    try:
        cost = measure.run(command, env=env, folders=[work, engine])
        return cost, _archive_bytes(archive)
    finally:
        _docker("buildx", "prune", "--all", "--force")
        _docker("image", "rm", "--force", BASE)


def _docker(*args: str | Path) -> str:
    command = ["docker", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FailedError(f"docker {args[0]}: {done.stderr.strip()}")
    return done.stdout


def _uv() -> Path:
    from uv import find_uv_bin  # the wheel that holds the program; pinned in tools.txt  # noqa: PLC0415

    return Path(find_uv_bin())


def _wheelhouse(lock: dict[str, Any], requirements: Path, cache: Cache, folder: Path) -> Path:
    """All wheels in one folder, and beside them requirements.txt, with a wheel's hash where the lock has an sdist's."""
    folder.mkdir()
    built = {b["name"]: b for b in lock["built"]}
    files = {w["name"]: w["file"] for w in lock["wheel"]}
    lines = []
    for name, version, sha256 in _HASH.findall(requirements.read_text(encoding="utf-8")):
        wheel, wheel_sha256 = files.get(name), sha256
        if wheel is None:
            wheel, wheel_sha256 = built[name]["wheel"], built[name]["wheel_sha256"]
        os.link(cache.file(wheel_sha256, wheel), folder / wheel)
        lines.append(f"{name}=={version} --hash=sha256:{wheel_sha256}\n")
    (folder / "requirements.txt").write_text("".join(lines), encoding="utf-8")
    return folder


def _base_archive(layout: Path, upper: int, target: Path) -> None:
    """An OCI archive of a layout's bottom layers, gzip like any base pulled from a registry.

    Args:
        layout: the whole image.
        upper: how many of its layers to leave out, from the top.
        target: the archive.
    """
    blobs = layout / "blobs" / "sha256"
    index = json.loads((layout / "index.json").read_text())
    manifest = json.loads((blobs / index["manifests"][0]["digest"][7:]).read_text())
    config = json.loads((blobs / manifest["config"]["digest"][7:]).read_text())
    kept = len(manifest["layers"]) - upper
    layers = []
    with tarfile.open(target, "w") as archive:
        for layer in manifest["layers"][:kept]:
            packed = target.with_suffix(".gz")
            _to_gzip(blobs / layer["digest"][7:], packed)
            layers.append(_add(archive, packed, f"{_OCI}.layer.v1.tar+gzip"))
            packed.unlink()
        config["rootfs"]["diff_ids"] = config["rootfs"]["diff_ids"][:kept]
        config.pop("history", None)
        config["config"] = {}
        described = _add(archive, _json(config), f"{_OCI}.config.v1+json")
        kind = f"{_OCI}.manifest.v1+json"
        top = {"schemaVersion": 2, "mediaType": kind, "config": described, "layers": layers}
        entry = _add(archive, _json(top), kind)
        entry["annotations"] = {"io.containerd.image.name": f"docker.io/library/{BASE}"}
        _member(archive, "index.json", _json({"schemaVersion": 2, "manifests": [entry]}))
        _member(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))


def _to_gzip(blob: Path, target: Path) -> None:
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    with blob.open("rb") as raw, decompressor.stream_reader(raw) as plain, gzip.open(target, "wb", 6) as out:
        shutil.copyfileobj(plain, out, 1 << 20)


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()


def _add(archive: tarfile.TarFile, content: Path | bytes, media_type: str) -> dict[str, Any]:
    """Store a blob; returns its descriptor."""
    data = content if isinstance(content, bytes) else content.read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    _member(archive, f"blobs/sha256/{sha256}", data)
    return {"mediaType": media_type, "digest": f"sha256:{sha256}", "size": len(data)}


def _member(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def _archive_bytes(archive: Path) -> int:
    """Sum of the blobs in an OCI archive."""
    with tarfile.open(archive) as members:
        return sum(m.size for m in members if m.isfile() and m.name.startswith("blobs/"))
