"""Our Dockerfile through bake against one plain `uv pip install`, both from cold caches and exported; one pin bumped.

    docker/engine.sh start && eval "$(docker/engine.sh env)"
    python benchmarks/bake_vs_uv.py [--stack cu121]

Empties BuildKit's cache, twice. Both sides stand on the same base, download the same wheels through the configured
index and export an OCI archive with zstd layers. Then one pin is changed, and the build's log tells what ran again.
About 10 minutes and 40 GB. Exit status 0 if the bound holds and one layer alone ran again, 1 if not, 2 if nothing could
be measured.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import measure
from measure import Cost, FailedError

from verlstack import bakefile, buildinputs, buildkit, lockfile, oci, pins
from verlstack.cache import Cache
from verlstack.progress import Lines
from verlstack.workshop import Workshop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from verlstack.lockfile import Lock

REPOSITORY = Path(__file__).resolve().parent.parent
CONSTRAINTS = REPOSITORY / "constraints"
MOST = 2.0  # times plain uv
EXPORT = "type=oci,compression=zstd,force-compression=true,dest="
HOST_NETWORK = '{"services": {"runtime": {"build": {"context": ".", "network": "host"}}}}'  # a compose file
# The pin that is bumped: a release that the lock does not have.
LAYER, OTHER = (
    "codetiming",
    "codetiming==1.3.2 --hash=sha256:2666dc510ef4e9e641ec361c6f28fd1734773ca6e023abb6f8ad932ee5fe2b3d",
)


class Sides:
    """The two builds, on one base, with the secrets and contexts that this machine needs."""

    def __init__(self, lock: Lock, shop: Workshop, work: Path) -> None:
        """Write the base and the secrets below `work`."""
        layout = REPOSITORY / "dist" / lock.stack
        _, _, config = oci.read_layout(layout)
        own = {layer.name for layer in lock.layers}
        names = [line["created_by"].removeprefix("verlstack: ") for line in config["history"]]
        below = sum(name not in own for name in names)
        self.contexts = {"os": buildinputs.base_layout(layout, below, work / "os", epoch=lock.epoch)}
        self.more = buildinputs.contexts(lock, shop, work)
        (work / "secrets").mkdir(mode=0o700)
        self.secrets = buildinputs.secrets(shop.env, work / "secrets")
        self.builder, self.env, self.work, self.lock = (
            buildkit.check(shop.env),
            buildkit.environment(shop.env),
            work,
            lock,
        )

    def plain(self) -> Cost:
        """One `uv pip install` in one RUN."""
        folder = self.work / "lock"
        folder.mkdir()
        (folder / "requirements.txt").write_text(self._requirements(), encoding="utf-8")
        uv = self.work / "uv"
        uv.mkdir()
        shutil.copy2(Path(sys.executable).with_name("uv"), uv / "uv")
        command = ["docker", "buildx", "build", "--network", self.builder.network, "--progress=plain"]
        command += [
            "--file",
            str(REPOSITORY / "benchmarks" / "uv.Dockerfile"),
            "--output",
            f"{EXPORT}{self.work / 'plain.tar'}",
        ]
        command += [
            f"--build-context={name}={where}" for name, where in {**self.contexts, "uv": uv, "lock": folder}.items()
        ]
        command += [f"--secret=id={name},src={path}" for name, path in self.secrets.items()]
        return self._run([*command, str(folder)])

    def _requirements(self) -> str:
        """All wheels of the lock, but for those built from source, which plain uv would have to build."""
        return "".join(f"{w.project}=={w.version} --hash=sha256:{w.sha256}\n" for w in self.lock.wheels)

    def bake(self, *sets: str) -> Cost:
        """Target `runtime`."""
        request = buildkit.Request(
            folder=REPOSITORY,
            files=(REPOSITORY / buildkit.BAKE, bakefile.path(CONSTRAINTS, self.lock.stack)),
            target="runtime",
            output=self.work / "unused",
            contexts={**self.more, **self.contexts},
            secrets=self.secrets,
            cached=True,
        )
        extra = []
        if self.builder.network == "host":
            (self.work / "network.yaml").write_text(
                '{"services": {"runtime": {"build": {"context": ".", "network": "host"}}}}'
            )
            extra.append(self.work / "network.yaml")
        *words, target = buildkit.command(request, extra)
        words += ["--set", f"runtime.output={EXPORT}{self.work / 'bake.tar'}"]
        return self._run([*words, *(word for one in sets for word in ("--set", one)), target])

    def _run(self, command: Sequence[str]) -> Cost:
        os.chdir(REPOSITORY)
        words = ["sh", "-c", 'exec "$@" 2>&1', "sh", *command]  # the log is on stderr
        return measure.run(words, env=self.env, folders=[self.work])


def prune() -> None:
    """Empty BuildKit's cache."""
    subprocess.run(["docker", "buildx", "prune", "--all", "--force"], check=True, capture_output=True)  # noqa: S607 - the user's


def ran(log: str) -> set[str]:
    """Stages of which a RUN or COPY was not taken from the cache."""
    steps = dict(re.findall(r"^#(\d+) \[([\w-]+) +\d+/\d+\] (?:RUN|COPY)", log, re.MULTILINE))
    cached = set(re.findall(r"^#(\d+) CACHED", log, re.MULTILINE))
    return {stage for number, stage in steps.items() if number not in cached}


def measured(lock: Lock, shop: Workshop, work: Path) -> int:
    """Run everything, print it, and return the exit status."""
    sides = Sides(lock, shop, work)
    prune()
    plain = sides.plain()
    print(f"plain uv: {plain}", flush=True)
    prune()
    ours = sides.bake()
    print(f"bake:     {ours}", flush=True)
    again = sides.bake(f"runtime.args.{bakefile.argument(LAYER)}={OTHER}")
    stages = ran(again.stdout) - {"runtime"}
    print(f"bump of {LAYER}: {again}; ran again: {', '.join(sorted(stages))}")
    ratio = ours.seconds / plain.seconds
    good = ratio <= MOST and stages == {f"layer-{LAYER}"}
    print(f"bake ÷ plain uv: {ratio:.2f} ≤ {MOST}  {'ok' if good else 'NOT AS IT SHOULD BE'}")
    return 0 if good else 1


def main() -> int:
    """Parse, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stack", default="cu121")
    stack = pins.load(CONSTRAINTS / "stacks.toml", parser.parse_args().stack)
    lock = lockfile.load(CONSTRAINTS, stack)
    cache = Cache.from_environment(os.environ)
    with cache.use(), tempfile.TemporaryDirectory(prefix="bench-", dir=cache.tmp) as work:
        shop = Workshop(
            constraints=CONSTRAINTS, smoke_tests=REPOSITORY / "smoke_tests", cache=cache, env=dict(os.environ),
            progress=Lines(sys.stderr), workers=2,
        )  # fmt: skip
        try:
            return measured(lock, shop, Path(work))
        except FailedError as e:
            print(f"not measured: {e}", file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main())
