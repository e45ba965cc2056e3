"""The check `env`: the Python environment that will train, a saved list of it, or a script that uses verl."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verldoctor import envabi, envdists, envnames, envpaths, stackfile
from verldoctor.bounded import Unreadable
from verldoctor.dump import parse_table, read_dump, texts
from verldoctor.finding import Finding, found
from verldoctor.installed import Distribution, distributions, normal, search_path, torch_build
from verldoctor.text import safe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from verldoctor.context import Context
    from verldoctor.stackfile import Image

_STACK = ("torch", "verl")
_PYTHONS_OF_TORCH = {"2.3": (3, 12), "2.4": (3, 12)}  # the newest Python that its wheels are built for


def check(paths: Sequence[Path], context: Context) -> list[Finding]:
    """Findings on each of `paths`, or on this interpreter where there is none."""
    if not paths:
        return list(_live(context))
    return [finding for path in paths for finding in (_folder if path.is_dir() else _file)(path, context)]


def _live(context: Context) -> Iterator[Finding]:
    python = (sys.version_info.major, sys.version_info.minor)
    dists = distributions(search_path())
    taken = envdists.first_of(dists)
    torch = taken["torch"].version if "torch" in taken else ""
    if context.image and context.image.problem:
        yield found("env", "ENV-STACK-FILE", stackfile.subject(context.env), measured=context.image.problem)
    yield from envpaths.judge(context.env, torch, here=True, image=context.image)
    yield from envpaths.user_site(dists, context.env)
    if not context.image and not any(name in taken for name in _STACK):
        yield found("env", "ENV-ABSENT", "this machine", measured=safe(sys.executable or "this Python"))
        yield from envdists.judge(dists, None)
        return
    yield from envpaths.current_directory(taken, Path.cwd())
    yield from _installed(dists, python, context)


def _installed(dists: list[Distribution], python: tuple[int, int] | None, context: Context) -> Iterator[Finding]:
    yield from envdists.judge(dists, context.image)
    torch = envdists.first_of(dists).get("torch")
    if python:
        yield from _python(python, torch.version if torch else "", context.image)
    if torch:
        yield from _torch(torch, context)
        yield from envabi.judge(torch.place, torch.version, python)


def _python(python: tuple[int, int], torch: str, image: Image | None) -> Iterator[Finding]:
    measured, wanted = f"{python[0]}.{python[1]}", image.python if image else ""
    newest = _PYTHONS_OF_TORCH.get(".".join(torch.split(".")[:2]))
    if wanted and wanted != measured:
        yield found("env", "ENV-PYTHON", "python", measured=measured, right=safe(wanted, 20))
    elif newest and python > newest:
        yield found("env", "ENV-PYTHON", "python", measured=measured, right=f"{newest[0]}.{newest[1]} or older")


def _torch(torch: Distribution, context: Context) -> Iterator[Finding]:
    build = torch_build(torch.place)
    version = build.get("__version__", torch.version)
    wanted = context.image.cuda if context.image else ""
    if build and "cuda" not in build:
        yield found(
            "env", "ENV-TORCH-CPU", "torch", measured=safe(version, 40), right=safe(version.partition("+")[0], 40)
        )
    elif build and wanted and build["cuda"] != wanted:
        words = {"torch": safe(version, 40), "right": safe(wanted, 20), "wanted": context.stack.get("torch", "")}
        yield found("env", "ENV-CUDA", "torch", measured=safe(build["cuda"], 20), **words)


def _folder(path: Path, context: Context) -> Iterator[Finding]:
    places = [path, *sorted(path.glob("lib/python3.*/site-packages"))[:8]]
    dists = distributions(places)
    if not dists:
        yield found("env", "ENV-FILE", safe(path), measured="a directory without any .dist-info")
        return
    names = [part.removeprefix("python") for place in places for part in place.parts if part.startswith("python3.")]
    minor = names[-1].partition(".")[2] if names else ""
    python = (3, int(minor)) if minor.isdecimal() else None
    yield from _installed(dists, python, context)


def _file(path: Path, context: Context) -> Iterator[Finding]:
    subject = safe(path)
    try:
        data = read_dump(path)
        table = parse_table(data) if path.suffix == ".json" else None
    except Unreadable as error:
        yield found("env", "ENV-FILE", subject, measured=safe(error))
        return
    if b"\0" in data:
        yield found("env", "ENV-FILE", subject, measured="binary, not text")
    elif table is not None:
        yield from _dump(table, subject, context)
    else:
        yield from _text(path, data.decode("utf-8-sig", "replace"), subject, context)


def _text(path: Path, text: str, subject: str, context: Context) -> Iterator[Finding]:
    yield from envnames.judge(text, subject, context.stack)
    if path.suffix in (".txt", ".in"):
        versions = envnames.requirements(text)
        yield from envdists.judge_versions(versions, subject)
        yield from _listed_torch(versions.get("torch", ""), subject)


def _listed_torch(version: str, subject: str) -> Iterator[Finding]:
    """Whether a list names a torch without CUDA, which its version's local part tells; `cu118` there would run."""
    public, _, local = version.partition("+")
    if local.lower().startswith("cpu"):
        yield found("env", "ENV-TORCH-CPU", f"{subject}: torch", measured=safe(version, 40), right=safe(public, 40))


def _dump(table: Mapping[str, Any], subject: str, context: Context) -> Iterator[Finding]:
    if not {"packages", "env", "python"} & table.keys():
        yield found("env", "ENV-FILE", subject, measured=f"none of its keys is known ({safe(', '.join(table), 80)})")
    versions = {normal(name): version for name, version in texts(table.get("packages")).items()}
    torch = versions.get("torch", "")
    if "packages" in table and not versions:
        yield found("env", "ENV-FILE", subject, measured="its list of packages is empty")
    yield from envdists.judge_versions(versions, subject)
    yield from _listed_torch(torch, subject)
    yield from envpaths.judge(texts(table.get("env")), torch, here=False, image=None)
    parts = str(table.get("python", "")).split(".")[:2]
    if len(parts) == 2 and all(part.isdecimal() and len(part) < 4 for part in parts):
        yield from _python((int(parts[0]), int(parts[1])), torch, context.image)
