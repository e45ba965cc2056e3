"""Composing a stack against building it with BuildKit and uv: both sides in one run, the ratios beside their bounds.

    docker/engine.sh start && eval "$(docker/engine.sh env)"
    python benchmarks/compose_vs_buildkit.py [--stack cu121] [--ours-only]

As root (the start-up measurement enters the image's root tree) on a machine that does nothing else: disk is read off
the file system's free space. Both sides have warm wheels and a warm base, and no layer. About 10 minutes and 30 GB of
disk; exit status 0 if all bounds hold, 1 if not, 2 if something could not be measured. Numbers go to `benchmarks/out/`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import sys
import tempfile
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import buildkit
import measure
import rootfs
from measure import Cost, FailedError

from verlstack.cache import Cache

REPOSITORY = Path(__file__).resolve().parent.parent
OUT = REPOSITORY / "benchmarks" / "out"
OURS_ALONE = ("verl", "smoke")  # layers that hold no wheel from the index
GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Bound:
    """One line of the result: what was measured, against what, and the most that issue 2 allows."""

    what: str
    ours: float
    baseline: float | None
    unit: str
    most: float

    @property
    def value(self) -> float:
        """The number to be judged: a ratio where there is a baseline, else our own."""
        return self.ours if self.baseline is None else self.ours / self.baseline

    @property
    def holds(self) -> bool:
        """Whether it is within its bound."""
        return self.value <= self.most

    def __str__(self) -> str:
        """One row of the table."""
        other = "" if self.baseline is None else f"{self.baseline:.2f}"
        verdict = "ok" if self.holds else "TOO MUCH"
        return f"{self.what:42} {self.ours:9.2f} {other:>9} {self.unit:3} {self.value:7.3f} ≤ {self.most:<5} {verdict}"


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where one run happens: the stack, a scratch folder, and a private cache with warm wheels in it."""

    stack: str
    work: Path
    cache: Cache

    def build(self, name: str, *options: str) -> tuple[Cost, dict[str, Any]]:
        """Compose into `work/NAME`; returns the cost and the build's own report."""
        command = [sys.executable, "-m", "verlstack", "build", self.stack, "--base", "debian", "--offline", "--json"]
        cost = measure.run(
            [*command, "--constraints", str(REPOSITORY / "constraints"), "--dist", str(self.work / name), *options],
            env=os.environ | {"VERLSTACK_CACHE": str(self.cache.root)},
            folders=[self.work],
        )
        print(f"composed {name}: {cost}", flush=True)
        return cost, json.loads(cost.stdout)

    def forget_layers(self) -> None:
        """Leave no finished layer."""
        shutil.rmtree(self.cache.layers, ignore_errors=True)

    def forget_verl(self, report: dict[str, Any], lock: dict[str, Any]) -> None:
        """Leave neither verl's layer nor its wheel, as if its tag had just been bumped."""
        diff_id = next(row["diff_id"] for row in report["rows"] if row["layer"] == "verl")
        for meta in self.cache.layers.glob("*.json"):
            if json.loads(meta.read_text())["blob"]["diff_id"] == diff_id:
                meta.with_suffix(".blob").unlink()
                meta.unlink()
        wheel = next(b for b in lock["built"] if b["name"] == "verl")
        shutil.rmtree(self.cache.file(wheel["wheel_sha256"], wheel["wheel"]).parent)
        for path in self.cache.built("").glob(f"*/{wheel['wheel']}"):
            shutil.rmtree(path.parent)


def warm_cache(stack: str, work: Path) -> Cache:
    """A private cache with hard links to the user's wheels and bases: its layers can be thrown away at will."""
    own = Cache.from_environment(os.environ)
    common = ["--constraints", str(REPOSITORY / "constraints")]
    build = ["build", stack, "--base", "debian", "--dist", str(work / "prepared")]
    for verb in (["fetch", stack], build, [*build, "--fast"]):  # a base is kept for each compression
        print(f"preparing: verlstack {' '.join(verb)}", flush=True)
        measure.run([sys.executable, "-m", "verlstack", *verb, *common], env=os.environ, folders=[work])
    shutil.rmtree(work / "prepared")
    private = Cache(work / "cache")
    for name in ("files", "built", "tools", "bases"):
        if (own.root / name).is_dir():
            shutil.copytree(own.root / name, private.root / name, copy_function=os.link, symlinks=True)
    return private


def blobs_bytes(layout: Path) -> int:
    """Bytes a registry stores for the one image of an OCI layout."""
    return sum(path.stat().st_size for path in (layout / "blobs" / "sha256").iterdir())


def our_side(bench: Bench, lock: dict[str, Any]) -> tuple[list[Bound], dict[str, float]]:
    """All measurements that need no engine; the second value is what the baseline is compared with."""
    bench.forget_layers()
    default, report = bench.build("default")
    bench.forget_verl(report, lock)
    verl, again = bench.build("default")
    built = [row["layer"] for row in again["rows"] if not row["cached"] and row["layer"] != "base"]
    if again["digest"] != report["digest"] or built != ["verl"]:
        raise FailedError(f"after verl's layer alone was removed, {built} were built and {again['digest']} came out")
    layout = bench.work / "default" / bench.stack
    with_pyc, without_pyc = startup(bench, layout)
    bench.forget_layers()
    fast, _ = bench.build("fast", "--fast")
    names = {layer["name"] for layer in lock["layer"]} - set(OURS_ALONE)
    layers = sum(row["compressed_bytes"] for row in report["rows"] if row["layer"] in names) / 1e9
    wheels = report["wheel_bytes"] / 1e9
    bounds = [
        Bound(what="verl alone rebuilt", ours=verl.seconds, baseline=None, unit="s", most=3),
        Bound(what="wheel layers ÷ wheels", ours=layers, baseline=wheels, unit="GB", most=0.70),
        Bound(what="peak memory (GiB)", ours=default.memory / GIB, baseline=None, unit="GiB", most=1),
        Bound(what="peak memory, --fast (GiB)", ours=fast.memory / GIB, baseline=None, unit="GiB", most=1),
        Bound(what="import ÷ import without .pyc", ours=with_pyc, baseline=without_pyc, unit="s", most=0.5),
    ]
    ours = {"seconds": default.seconds, "disk": default.disk, "load": default.load, "bytes": blobs_bytes(layout)}
    return bounds, ours | {"fast_seconds": fast.seconds, "fast_disk": fast.disk, "fast_load": fast.load}


def startup(bench: Bench, layout: Path) -> tuple[float, float]:
    """Seconds of `import torch, transformers, verl` in the image's root tree, with its `.pyc` files and without."""
    root = bench.work / "root"
    env = rootfs.unpack(layout, root)
    try:
        times = [statistics.median(rootfs.import_seconds(root, env, runs=3))]
        rootfs.remove_bytecode(root)
        times.append(statistics.median(rootfs.import_seconds(root, env, runs=3)))
    finally:
        shutil.rmtree(root)
    return times[0], times[1]


def compare(ours: dict[str, float], theirs: Cost, image_bytes: int) -> list[Bound]:
    """The ratios to the baseline."""
    return [
        Bound(what="time", ours=ours["seconds"], baseline=theirs.seconds, unit="s", most=0.30),
        Bound(what="time, --fast", ours=ours["fast_seconds"], baseline=theirs.seconds, unit="s", most=0.18),
        Bound(what="image bytes", ours=ours["bytes"] / 1e9, baseline=image_bytes / 1e9, unit="GB", most=0.67),
        Bound(what="peak extra disk", ours=ours["disk"] / 1e9, baseline=theirs.disk / 1e9, unit="GB", most=0.25),
    ]


def measured(stack: str, work: Path, *, ours_only: bool) -> dict[str, Any]:
    """Everything, as the document that is written to `out/`."""
    lock = tomllib.loads((REPOSITORY / "constraints" / f"{stack}.lock.toml").read_text())
    if not ours_only:
        buildkit.check()
    bench = Bench(stack=stack, work=work, cache=warm_cache(stack, work))
    bounds, ours = our_side(bench, lock)
    document: dict[str, Any] = {"stack": stack, "lock": lock["checksum"], "ours": ours}
    if not ours_only:
        requirements = REPOSITORY / "constraints" / f"{stack}.txt"
        layout = work / "default" / stack
        theirs, image_bytes = buildkit.build(lock, requirements, bench.cache, layout, work / "baseline")
        print(f"BuildKit: {theirs}, image {image_bytes / 1e9:.2f} GB", flush=True)
        bounds = [*compare(ours, theirs, image_bytes), *bounds]
        document["baseline"] = asdict(theirs) | {"bytes": image_bytes}
        del document["baseline"]["stdout"], document["baseline"]["memory"]  # the engine's memory is not in this tree
    document["machine"] = {"cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}
    document["bounds"] = [asdict(b) | {"value": b.value, "holds": b.holds} for b in bounds]
    print("\n".join(["", f"{'':42} {'ours':>9} {'baseline':>9}", *map(str, bounds)]))
    return document


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stack", default="cu121")
    parser.add_argument("--ours-only", action="store_true", help="no baseline: no engine needed, no ratios to it")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # 128 + 15: leave through the clean-up, not past it
    root = Cache.from_environment(os.environ).root
    root.mkdir(parents=True, exist_ok=True)
    # Beside the cache: hard links do not cross file systems.
    with tempfile.TemporaryDirectory(prefix="bench-", dir=root, ignore_cleanup_errors=True) as work:
        try:
            document = measured(arguments.stack, Path(work), ours_only=arguments.ours_only)
        except (FailedError, OSError) as e:
            print(f"could not measure: {e}", file=sys.stderr)
            return 2
    OUT.mkdir(exist_ok=True)
    out = OUT / f"compose_vs_buildkit-{arguments.stack}{'-ours' if arguments.ours_only else ''}.json"
    out.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"\nwritten to {out.relative_to(REPOSITORY)}")
    return 0 if all(b["holds"] for b in document["bounds"]) else 1


if __name__ == "__main__":
    sys.exit(main())
