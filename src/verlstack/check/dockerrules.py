"""The rules on Dockerfiles: what would undo the pins, break at run time, or be another image tomorrow."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from verlstack.check import dockerfile, installs, knowledge, releases
from verlstack.check.finding import FAIL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.version import Version

    from verlstack.check.against import Against
    from verlstack.check.dockerfile import Stage
    from verlstack.check.finding import Finding
    from verlstack.check.installs import Install

_PINNING = ("-r", "--requirement", "--require-hashes")
_BOUND = ("-c", "--constraint", "--no-deps", "--no-index", "--require-hashes")
_CHECKED = re.compile(r"\bsha(256|512)sum\b|\bshasum\b|\bgpg\b")
_COMMIT = re.compile(r"git\b.*\b(checkout|reset|switch)\b.*\b[0-9a-f]{40}\b")
_IMAGE_CUDA = re.compile(r"(?:(?:^|/)cuda:|[:-]cuda)(?P<major>\d+)\.\d")  # cuda:11.8.0-devel, 2.3.1-cuda11.8-cudnn8
_VERL_TAG = re.compile(
    r"git\+\S*/verl(?:\.git)?@(?P<tag>v\d[^#\s]*)|git clone\b.*(?:-b|--branch)[ =](?P<branch>v\d\S*).*/verl(?:\.git)?\b"
)
_OURS = re.compile(r"(^|/)verlstack[:@]")  # an image of this project has all pins in it


def check(text: str, path: str, against: Against) -> list[Finding]:
    """Everything that is wrong with a Dockerfile.

    Raises:
        UsageError: it is none.
    """
    stages = dockerfile.parse(text, path)
    found: list[Finding] = []
    for stage in stages:
        found += _base(stages, stage, path)
        found += _patterns(stage, path)
        found += _sources(stage, path)
        found += _installs(stages, stage, path)
    found += _compiler(stages, path)
    found += _index_cuda(stages, path, against)
    found += _nvcc(stages, path, against)
    found += _versions(stages, path, against)
    return found


def _finding(code: str, subject: str, measured: str, path: str, line: int, **other: str) -> Finding:
    return knowledge.finding(code, subject=subject[:200], measured=measured, where=f"{path}:{line}", **other)


def _base(stages: list[Stage], stage: Stage, path: str) -> Iterator[Finding]:
    """An image without digest; what a build argument without a value names, the build must give.

    A bare word after `--from=` may be a context that the build is given: only what has a tag or a path is an image.
    """
    earlier = {one.name.lower() for one in stages[: stages.index(stage)] if one.name}
    images = [] if stage.image is None else [("FROM ", stage.image, stage.line)]
    images += [("from=", image, line) for image, line in stage.borrowed if re.search(r"[/:@]", image)]
    for word, image, line in images:
        if image.lower() in earlier | {"scratch"} or re.search(r"@sha256:[0-9a-f]{64}$", image):
            continue
        tag = image.rpartition("/")[2].partition(":")[2]
        measured = f"tag {tag} without a digest" if tag else "no tag, that is latest, and no digest"
        yield _finding("DOCKER-DIGEST", f"{word}{image}", measured, path, line)


def _patterns(stage: Stage, path: str) -> Iterator[Finding]:
    lines = {"command": [(installs.plain(one)[0], one.line) for one in stage.commands]}
    lines["environment"] = _settings(stage)
    for rule in knowledge.patterns():
        for text, line in lines[rule.on]:
            hit = rule.pattern.search(text)
            if hit and not (rule.unless and rule.unless.search(text)):
                yield _finding(rule.code, text, hit[0].strip(), path, line)


def _settings(stage: Stage) -> list[tuple[str, int]]:
    """NAME=value of ENV and ARG; and what a RUN sets for pip and uv, in front of a command or by export."""
    found = [(f"{name}={value}", line) for name, (value, line) in stage.environment.items()]
    return found + [(word, x.line) for x in stage.commands for word in x.words if re.match(r"(PIP|UV)_\w+=", word)]


def _sources(stage: Stage, path: str) -> Iterator[Finding]:
    """What is fetched without a hash or commit."""
    texts = [(installs.plain(command)[0], command.line) for command in stage.commands]
    for at, (text, line) in enumerate(texts):
        cloned = re.match(r"git( -\S+( [^-\s]\S*)?)* clone\b", text)
        if cloned and not any(_COMMIT.match(later) for later, _ in texts[at:]):
            yield _finding("DOCKER-CLONE", text, "a branch or tag is cloned", path, line)
        fetched = re.match(r"(curl|wget)\b.*\bhttps?://", text)
        if fetched and not any(_CHECKED.search(later) for later, at_line in texts if at_line == line):
            yield _finding("DOCKER-ADD", text, "an address without a hash", path, line)
    for text, line in stage.copies:
        if re.match(r"ADD\b.*\shttps?://", text) and "--checksum=" not in text:
            yield _finding("DOCKER-ADD", text, "an address without a hash", path, line)


def _installs(stages: list[Stage], stage: Stage, path: str) -> Iterator[Finding]:
    """Rules that depend on what was installed before."""
    below = [one for one in dockerfile.lineage(stages, stage) if one is not stage]
    before = [x for one in below for x in _of(one)]
    root = [*below, stage][0].image or ""
    torch = bool(re.search(r"torch|verl|vllm", root))
    environment = {name for one in (*below, stage) for name in one.environment}
    for one in _of(stage):
        torch = torch or any(_brings_torch(x) for x in before)
        yield from _after_pins(one, before, root, path)
        yield from _unpinned(one, path)
        yield from _from_source(one, path, torch=torch, environment=environment | one.environment)
        before.append(one)


def _of(stage: Stage) -> list[Install]:
    return [found for command in stage.commands if (found := installs.read(dockerfile.filled(command, stage)))]


def _brings_torch(one: Install) -> bool:
    return one.unknown or one.has(*_PINNING) or bool(one.names & {"torch", "vllm", "torchvision", "xformers"})


def _after_pins(one: Install, before: list[Install], root: str, path: str) -> Iterator[Finding]:
    hashed = bool(_OURS.search(root)) or any(x.has("--require-hashes") for x in before)
    pins = hashed or any(x.has("-r", "--requirement") for x in before)
    loose = bool(one.packages or one.folders) or (hashed and one.has("-r", "--requirement"))
    if pins and loose and not one.has(*_BOUND) and not one.text.startswith(("pip wheel", "pip download")):
        yield _finding("DOCKER-AFTER-PINS", one.text, "installs after the pins, without them", path, one.line)


def _unpinned(one: Install, path: str) -> Iterator[Finding]:
    """Names without a version; of those that the pins are about it breaks, of others it may."""
    if one.has(*_BOUND):
        return
    about = set(knowledge.table("dockerfile")["packages"]["pinned"])
    for name in sorted(name for name, version in one.packages.items() if version is None):
        severity = "fail" if name in about else "warn"
        yield _finding(
            "DOCKER-UNPINNED", name, f"no exact version in: {one.text[:160]}", path, one.line, severity=severity
        )


def _from_source(one: Install, path: str, *, torch: bool, environment: set[str]) -> Iterator[Finding]:
    """What is compiled against torch."""
    names = sorted(one.names & set(knowledge.table("dockerfile")["packages"]["compiled"]))
    if not names or ".whl" in one.text or one.has("--no-index", "--only-binary", "--find-links", "-f"):
        return
    name = names[0]
    if not torch:
        yield _finding("DOCKER-ORDER", name, f"{name} is installed before torch", path, one.line)
    if not one.has("--no-build-isolation"):
        yield _finding("DOCKER-ISOLATION", name, f"{name} is built in isolation", path, one.line)
    if not environment & {"TORCH_CUDA_ARCH_LIST", "FLASH_ATTN_CUDA_ARCHS"}:
        yield _finding("DOCKER-ARCH", name, "TORCH_CUDA_ARCH_LIST is not set", path, one.line)
    if "MAX_JOBS" not in environment:
        yield _finding("DOCKER-JOBS", name, "MAX_JOBS is not set", path, one.line)
    if name == "flash-attn" and "FLASH_ATTENTION_FORCE_BUILD" not in environment:
        yield _finding("DOCKER-PREBUILT", name, "FLASH_ATTENTION_FORCE_BUILD is not set", path, one.line)


def _compiler(stages: list[Stage], path: str) -> Iterator[Finding]:
    """Triton in a last stage that has no C compiler."""
    known = knowledge.table("dockerfile")["packages"]
    chain = dockerfile.lineage(stages, stages[-1])
    image = chain[0].image or ""
    needing = sorted({name for one in chain for x in _of(one) for name in x.names} & set(known["compilers"]))
    has = any(re.search(known["gives_compiler"], command.text) for one in chain for command in one.commands)
    if needing and not has and re.search(known["bare"], image):
        measured = f"no C compiler is installed, and {image.partition('@')[0]} has none"
        yield _finding("DOCKER-COMPILER", ", ".join(needing), measured, path, stages[-1].line)


def _index_cuda(stages: list[Stage], path: str, against: Against) -> Iterator[Finding]:
    """Indexes of PyTorch's that are named for another CUDA."""
    texts = [(x.text, x.line) for stage in stages for x in _of(stage)]
    texts += [x for stage in stages for x in _settings(stage) if re.match(r"(PIP|UV)_\w*INDEX", x[0])]
    for text, line in texts:
        match = releases.INDEX_CUDA.search(text)
        if match and match["major"] != against.cuda.partition(".")[0]:
            right = f"CUDA {against.cuda}, as the stack"
            yield _finding("DOCKER-INDEX-CUDA", text, f"torch for {match['build']}", path, line, right=right)


def _nvcc(stages: list[Stage], path: str, against: Against) -> Iterator[Finding]:
    """What is compiled on an image that is named for another CUDA major."""
    compiled = set(knowledge.table("dockerfile")["packages"]["compiled"])
    for stage in stages:
        image = dockerfile.lineage(stages, stage)[0].image or ""
        match = _IMAGE_CUDA.search(image)
        if match and match["major"] != against.cuda.partition(".")[0]:
            for one in _of(stage):
                if names := sorted(one.names & compiled):
                    measured = f"{names[0]} is compiled by the nvcc of {image.partition('@')[0]}"
                    right = f"an image of CUDA {against.cuda}, as the stack"
                    yield _finding("DOCKER-NVCC", names[0], measured, path, one.line, right=right)


def _verl_tags(chain: list[Stage]) -> Iterator[tuple[str, int]]:
    """Tags of verl's repository that are cloned or installed."""
    for stage in chain:
        for command in stage.commands:
            match = _VERL_TAG.search(dockerfile.filled(command, stage).text)
            if match:
                yield match["tag"] or match["branch"], command.line


def _versions(stages: list[Stage], path: str, against: Against) -> Iterator[Finding]:
    """Known troubles among the releases that the last stage installs."""
    versions: dict[str, Version] = {}
    lines: dict[str, int] = {}
    for one in (x for stage in dockerfile.lineage(stages, stages[-1]) for x in _of(stage)):
        for name, version in one.packages.items():
            if version is not None:
                versions[name], lines[name] = version, one.line

    for tag, line in _verl_tags(dockerfile.lineage(stages, stages[-1])):
        version, wrong = releases.verl(tag, f"{path}:{line}")
        yield from wrong
        if version and not wrong:
            versions["verl"], lines["verl"] = version, line

    def where(name: str) -> str:
        return f"{path}:{lines[name]}" if name in lines else ""

    if "torch" in versions:
        yield from releases.torch_cuda(versions["torch"], against.cuda, where("torch"))
    for found in releases.troubles(against.near(versions), frozenset(versions), where):
        if found.severity == FAIL:
            yield found
