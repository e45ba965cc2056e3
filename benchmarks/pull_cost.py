"""What a host must pull after a bump of one pin: our image against a plain Dockerfile build of the same two closures.

    docker/engine.sh start && eval "$(docker/engine.sh env)"
    python benchmarks/pull_cost.py [--stack cu121] [--pin numpy==1.26.3]

Both pairs of images go into Debian's docker-registry on loopback. Skopeo pulls the old one and then the new one into
one folder, and the bytes that the registry sends for the new one are counted on the line. Needs `docker-registry` and
`skopeo` (Debian's packages), root, 50 GB of disk and about 25 minutes; exit status 0 if the bound holds, 1 if not, 2 if
something could not be measured. Numbers go to `benchmarks/out/`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import buildkit
import measure
from measure import FailedError

from verlstack.cache import Cache

REPOSITORY = Path(__file__).resolve().parent.parent
OUT = REPOSITORY / "benchmarks" / "out"
MOST = 1.05  # times the stored bytes of the changed wheels' layers; the bound of issue 5
sys.path.append(str(REPOSITORY / "tests"))

from support.real_registry import Line, running  # noqa: E402


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two images, as skopeo names them."""

    old: str
    new: str


def ours(stack: str, pin: str, work: Path) -> tuple[Pair, int]:
    """Build, bump, build, in a copy of the pins; the images, and the stored bytes of the layers that changed."""
    shutil.copytree(REPOSITORY / "constraints", work / "constraints")
    for name in ("smoke_tests", "src"):
        (work / name).symlink_to(REPOSITORY / name)
    tool = [sys.executable, "-m", "verlstack"]
    where = ["--constraints", str(work / "constraints")]

    def run(*words: str) -> str:
        print(f"verlstack {' '.join(words)}", flush=True)
        return measure.run([*tool, *words, *where], env=os.environ, folders=[work]).stdout

    def build(name: str) -> str:
        run("build", stack, "--base", "debian", "--dist", str(work / name))
        index = json.loads((work / name / stack / "index.json").read_text())
        tag = index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"]
        return f"oci:{work / name / stack}:{tag}"

    old = build("before")
    shutil.copytree(work / "constraints", work / "constraints-before")
    told = json.loads(run("pin", stack, pin, "--why", "a benchmark", "--json"))
    return Pair(old=old, new=build("after")), sum(size for _, size in told["report"]["pull"]["layers"])


def plain(stack: str, work: Path, cache: Cache) -> Pair:
    """The same two closures, each as a plain Dockerfile build."""
    names = []
    for name, constraints in (("before", "constraints-before"), ("after", "constraints")):
        print(f"plain Dockerfile, {name}", flush=True)
        lock = tomllib.loads((work / constraints / f"{stack}.lock.toml").read_text())
        requirements = work / constraints / f"{stack}.txt"
        folder = work / f"plain-{name}"
        cost, _ = buildkit.build(lock, requirements, cache, work / name / stack, folder)
        print(f"BuildKit: {cost}", flush=True)
        names.append(f"oci-archive:{folder / 'plain.oci.tar'}")
    return Pair(old=names[0], new=names[1])


def pulled(pair: Pair, name: str, host: str, work: Path) -> tuple[int, int]:
    """Bytes that the registry sends for the old image, and then for the new one, to a client that keeps blobs."""
    for tag, image in (("old", pair.old), ("new", pair.new)):
        _copy(image, f"docker://{host}/bench/{name}:{tag}", work)
    with Line(host) as line:
        got = []
        for tag in ("old", "new"):
            line.received = 0
            _copy(f"docker://{line.address}/bench/{name}:{tag}", f"oci:{work / f'client-{name}'}:{tag}", work)
            got.append(line.received)
    return got[0], got[1]


def _copy(source: str, target: str, work: Path) -> None:
    words = ["skopeo", "--insecure-policy", "copy", "--src-tls-verify=false", "--dest-tls-verify=false", source, target]
    measure.run(words, env=os.environ | {"no_proxy": "*"}, folders=[work])


def measured(stack: str, pin: str, work: Path) -> dict[str, Any]:
    """Everything, as the document that is written to `out/`."""
    buildkit.check()
    programs = {name: shutil.which(name) for name in ("docker-registry", "skopeo")}
    if missing := [name for name, path in programs.items() if path is None]:
        raise FailedError(f"not installed: {' '.join(missing)}\ndo: apt-get install {' '.join(missing)}")
    images, changed = ours(stack, pin, work)
    others = plain(stack, work, Cache.from_environment(os.environ))
    with running(Path(programs["docker-registry"] or ""), work) as host:
        mine, theirs = (pulled(pair, name, host, work) for pair, name in ((images, "ours"), (others, "plain")))
    return {
        "stack": stack,
        "pin": pin,
        "changed layers": changed,
        "ours": {"first": mine[0], "after the bump": mine[1]},
        "plain": {"first": theirs[0], "after the bump": theirs[1]},
        "ours ÷ changed layers": mine[1] / changed,
        "ours ÷ plain": mine[1] / theirs[1],
    }


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stack", default="cu121")
    parser.add_argument("--pin", default="numpy==1.26.3")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # 128 + 15: leave through the clean-up, not past it
    root = Cache.from_environment(os.environ).root
    root.mkdir(parents=True, exist_ok=True)
    # Beside the cache: hard links do not cross file systems.
    with tempfile.TemporaryDirectory(prefix="bench-", dir=root, ignore_cleanup_errors=True) as work:
        try:
            document = measured(arguments.stack, arguments.pin, Path(work))
        except (FailedError, OSError) as e:
            print(f"could not measure: {e}", file=sys.stderr)
            return 2
    OUT.mkdir(exist_ok=True)
    text = json.dumps(document, indent=1, ensure_ascii=False)
    print(text)
    (OUT / f"pull_cost-{arguments.stack}.json").write_text(text + "\n", encoding="utf-8")
    return 0 if document["ours ÷ changed layers"] <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
