"""Rules on variables and search paths: torch.compile's switch, LD_LIBRARY_PATH, ~/.local, the current directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from verldoctor.finding import Finding, found
from verldoctor.text import safe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from verldoctor.installed import Distribution
    from verldoctor.stackfile import Image

_SWITCH = "TORCH_COMPILE_DISABLE"
_LIBRARY = "LD_LIBRARY_PATH"
_OFF = {"0", "false", "no", "off", ""}
_SHADOWING = ("libcudnn.so.8", "libcudnn.so.9", "libcublas.so.11", "libcublas.so.12", "libnccl.so.2")
_TEXT_BYTES = 1000


def judge(env: Mapping[str, str], torch: str, *, here: bool, image: Image | None) -> Iterator[Finding]:
    """Findings on variables; `here` says that their paths are of this machine and may be looked at."""
    yield from _compile(env, torch, image)
    entries = env.get(_LIBRARY, "").split(":")[:1000]
    for entry in filter(None, entries):
        if rule := _library_rule(entry, here=here):
            rest = ":".join(other for other in entries if other and not _library_rule(other, here=here))
            yield found("env", rule, _LIBRARY, measured=safe(entry), right=safe(rest) or '""')


def _compile(env: Mapping[str, str], torch: str, image: Image | None) -> Iterator[Finding]:
    if not torch:
        return
    told = image is not None and not image.problem
    wants_off = _SWITCH in image.environment if image and told else torch.partition("+")[0] == "2.3.1"  # stack cu121
    value = env.get(_SWITCH)
    if value is None and wants_off:
        yield found("env", "ENV-COMPILE", _SWITCH, measured="not set", right="1")
    elif value is not None and value.strip().lower() in _OFF:
        remedy = f"export {_SWITCH}=1 (it means the same and says so)" if wants_off else f"unset {_SWITCH}"
        yield found("env", "ENV-COMPILE-VALUE", _SWITCH, measured=safe(value, 20) or '""', remedy=remedy)


def _library_rule(entry: str, *, here: bool) -> str:
    parts = Path(entry).parts
    if "stubs" in parts:
        folder = Path(entry)
        harmless = here and not (folder / "libcuda.so.1").exists() and not (folder / "libnvidia-ml.so.1").exists()
        return "ENV-STUBS-PATH" if harmless else "ENV-STUBS"
    if "compat" in parts and any(part.startswith("cuda") for part in parts):
        return "ENV-COMPAT"
    if here and any((Path(entry) / name).exists() for name in _SHADOWING) and "site-packages" not in parts:
        return "ENV-LDPATH-CUDA"
    return ""


def user_site(dists: Iterable[Distribution], env: Mapping[str, str]) -> Iterator[Finding]:
    """A finding if packages of ~/.local can be imported."""
    homes = [dist.place for dist in dists if ".local" in dist.place.parts and dist.place.name == "site-packages"]
    if homes and not env.get("PYTHONNOUSERSITE"):
        yield found("env", "ENV-USER-SITE", safe(homes[0]), measured=len(homes), right="0")


def current_directory(taken: Mapping[str, Distribution], folder: Path) -> Iterator[Finding]:
    """A finding for each installed package of the stack that `folder` holds a package of the same name of."""
    for name in ("verl", "torch", "transformers"):
        package = folder / name
        if name in taken and (package / "__init__.py").is_file() and taken[name].place.resolve() != folder.resolve():
            version = _version_file(package)
            if version != taken[name].version:
                right = f"{safe(taken[name].version, 40)} in {safe(taken[name].place, 120)}"
                yield found("env", "ENV-CWD", name, measured=version or "of unknown version", right=right)


def _version_file(package: Path) -> str:
    try:
        with (package / "version" / "version").open("rb") as stream:
            return safe(stream.read(_TEXT_BYTES).decode("utf-8", "replace").strip(), 40)
    except OSError:
        return ""
