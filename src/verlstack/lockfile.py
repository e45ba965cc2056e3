"""The lock on disk: `STACK.txt` (every wheel: exact, sha256) and `STACK.lock.toml` (everything else)."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from verlstack import canonical, reading
from verlstack.download import Artifact
from verlstack.errors import LockError, StorageError, UsageError
from verlstack.layer import Compression
from verlstack.pins import FORMAT

if TYPE_CHECKING:
    from pathlib import Path

    from verlstack.pins import Stack

_REQUIREMENT = re.compile(r"^([a-z0-9][a-z0-9.-]*)==(\S+) \\\n {4}--hash=sha256:([0-9a-f]{64})$", re.MULTILINE)
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Built:
    """A wheel made from source.

    Attributes:
        source: the sdist on the package index.
        wheel: file name of the result.
        wheel_sha256: what the build must give, byte for byte.
    """

    source: Artifact
    wheel: str
    wheel_sha256: str


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """An extension that is compiled against torch and CUDA.

    Attributes:
        source: its sdist on the package index.
        cuda_archs: compute capabilities, "8.0".
        cxx11_abi: how torch's own libraries pass strings, so that the extension must too.
        tools: wheels that its compile needs besides the stack's build tools.
        wheel: the compiled wheel that the image gets; None where none is pinned.
    """

    source: Artifact
    cuda_archs: tuple[str, ...]
    cxx11_abi: bool
    tools: tuple[Artifact, ...]
    wheel: Artifact | None


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer of the plan: its name, the packages in it, and the diff_id it must have."""

    name: str
    packages: tuple[str, ...]
    diff_id: str


@dataclass(frozen=True, kw_only=True)
class Lock:
    """Everything that decides the image.

    Attributes:
        digest: SHA-256 over both lock files, hexadecimal: the name of this lock.
        python: the interpreter's X.Y.
        recorded_with: the interpreter's X.Y.Z that compiled the recorded bytecode.
    """

    stack: str
    digest: str
    python: str
    recorded_with: str
    epoch: int
    compression: Compression
    registry_base: str | None
    wheels: tuple[Artifact, ...]
    built: tuple[Built, ...]
    build_tools: tuple[Artifact, ...]
    compiled: Compiled | None
    layers: tuple[Layer, ...]

    def wheel(self, project: str) -> Artifact:
        """The index's wheel of a package.

        Raises:
            LockError: there is none.
        """
        for wheel in self.wheels:
            if wheel.project == project:
                return wheel
        raise LockError(f"the lock of {self.stack} has no wheel of {project}", todo="add it under `requires`")

    @property
    def extension(self) -> Compiled:
        """The extension that is compiled against torch.

        Raises:
            UsageError: the stack has none.
        """
        if self.compiled is None:
            what = f"stack {self.stack} has no extension to compile"
            raise UsageError(what, todo=f"add [stack.{self.stack}.flash_attn] to stacks.toml; cu121 is an example")
        return self.compiled


def paths(folder: Path, stack: str) -> tuple[Path, Path]:
    """(requirements, lock) of a stack."""
    return folder / f"{stack}.txt", folder / f"{stack}.lock.toml"


def load(folder: Path, stack: Stack) -> Lock:
    """The lock of a stack, known to be fresh and untouched.

    Raises:
        LockError: missing, stale, edited by hand, or damaged; each says which command renews it.
    """
    return _load(folder, stack.name, stack)


def read(toml: Path) -> Lock:
    """The lock in a file `STACK.lock.toml` with `STACK.txt` beside it, whatever the pins say now.

    Raises:
        LockError: missing, edited by hand, or damaged.
    """
    return _load(toml.parent, toml.name.removesuffix(".lock.toml"), None)


def _load(folder: Path, name: str, stack: Stack | None) -> Lock:
    requirements, toml = paths(folder, name)
    renew = f"run `verlstack lock {name}`"
    text, document = _read(requirements, renew), _read(toml, renew)
    try:
        table = tomllib.loads(document)
        _check(table, name, checksum(text, document), str(toml))
        if stack and table["pins_sha256"] != stack.checksum:
            what = f"the lock of {name} is stale: its pins have changed"
            raise LockError(what, where=str(toml), todo=renew)
        return _parse(table, text)
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as e:
        raise LockError(f"the lock is damaged: {type(e).__name__}: {e}", where=str(toml), todo=renew) from e


def _check(table: dict[str, Any], name: str, wanted: str, where: str) -> None:
    renew = f"run `verlstack lock {name}`"
    if table["checksum"] != wanted:
        raise LockError("the lock was edited by hand: its checksum is wrong", where=where, todo=renew)
    if table["format"] != FORMAT:
        raise LockError(f"the lock is for image format {table['format']}, not {FORMAT}", where=where, todo=renew)
    if table["stack"] != name:
        raise LockError(f"this is the lock of {table['stack']}, not of {name}", where=where, todo=renew)


def _read(path: Path, renew: str) -> str:
    try:
        return reading.text(path)
    except FileNotFoundError as e:
        raise LockError("there is no lock", where=str(path), todo=renew) from e
    except UnicodeDecodeError as e:
        raise LockError("the lock is damaged: not UTF-8", where=str(path), todo=renew) from e
    except OSError as e:
        raise StorageError(
            f"cannot read the lock: {e.strerror}", where=str(path), todo="check the path, and that you may read it"
        ) from e


def _parse(table: dict[str, Any], requirements: str) -> Lock:
    hashes = {name: (version, sha) for name, version, sha in _REQUIREMENT.findall(requirements)}
    built = tuple(
        Built(source=_artifact(b), wheel=_file_name(b["wheel"]), wheel_sha256=_checked(b["wheel_sha256"]))
        for b in table.get("built", [])
    )
    wheels = tuple(
        Artifact(
            project=w["name"],
            version=hashes[w["name"]][0],
            filename=_file_name(w["file"]),
            size=_size(w.get("size")),
            sha256=hashes[w["name"]][1],
        )
        for w in table.get("wheel", [])
    )
    unexplained = set(hashes) - {w.project for w in wheels} - {b.source.project for b in built}
    if unexplained:
        raise ValueError(f"{sorted(unexplained)} have no file")
    return Lock(
        stack=table["stack"],
        digest=table["checksum"],
        python=table["python"],
        recorded_with=table["recorded_with"],
        epoch=table["epoch"],
        compression=Compression(**table["compression"]),
        registry_base=table.get("registry_base"),
        wheels=wheels,
        built=built,
        build_tools=tuple(_artifact(t) for t in table.get("build_tool", [])),
        compiled=_compiled(table["compiled"], table.get("compile_tool", [])) if "compiled" in table else None,
        layers=tuple(
            Layer(name=x["name"], packages=tuple(x["packages"]), diff_id=x["diff_id"]) for x in table.get("layer", [])
        ),
    )


def _compiled(table: dict[str, Any], tools: list[dict[str, Any]]) -> Compiled:
    source = _artifact(table)
    made = None
    if "wheel" in table:
        facts = {"file": table["wheel"], "size": table["wheel_size"], "sha256": table["wheel_sha256"]}
        made = _artifact({"name": source.project, "version": source.version, **facts})
    if not isinstance(table["cxx11_abi"], bool):
        raise TypeError("cxx11_abi must be true or false")
    return Compiled(
        source=source,
        cuda_archs=tuple(table["cuda_archs"]),
        cxx11_abi=table["cxx11_abi"],
        tools=tuple(_artifact(t) for t in tools),
        wheel=made,
    )


def _artifact(table: dict[str, Any]) -> Artifact:
    return Artifact(
        project=table["name"],
        version=table["version"],
        filename=_file_name(table["file"]),
        size=_size(table.get("size")),
        sha256=_checked(table["sha256"]),
    )


def _file_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+!-]*", name):  # it becomes a path in the cache
        raise ValueError(f"{name!r} is no file name")
    return name


def _size(size: object) -> int | None:
    if size is not None and (not isinstance(size, int) or size < 0):
        raise ValueError(f"{size!r} is no size")
    return size


def _checked(sha256: str) -> str:
    if not _SHA256.fullmatch(sha256):
        raise ValueError(f"{sha256!r} is no sha256")
    return sha256


def checksum(requirements: str, document: str) -> str:
    """SHA-256 over both files but for the line that holds it: the lock's name, and the proof that nobody edited it."""
    body = "".join(line for line in document.splitlines(keepends=True) if not line.startswith("checksum = "))
    return hashlib.sha256(canonical.dumps([requirements, body])).hexdigest()


def render_requirements(wheels: tuple[Artifact, ...], sdists: tuple[Artifact, ...], stack: str) -> str:
    """Text of `STACK.txt`; `uv pip install --require-hashes` and `pip` read it as it is."""
    head = f"# Generated by `verlstack lock {stack}` from stacks.toml; do not edit.\n"
    files = sorted((*wheels, *sdists), key=lambda a: a.project)
    return head + "".join(f"{a.project}=={a.version} \\\n    --hash=sha256:{a.sha256}\n" for a in files)


def render(lock: Lock, pins_sha256: str, requirements: str) -> str:
    """Text of `STACK.lock.toml`; `lock.digest` is computed here, whatever the argument holds."""
    head = {
        "stack": lock.stack,
        "format": FORMAT,
        "pins_sha256": pins_sha256,
        "python": lock.python,
        "recorded_with": lock.recorded_with,
        "epoch": lock.epoch,
        "registry_base": lock.registry_base,
    }
    body = [*_pairs(head), "\n[compression]\n", *_pairs(vars(lock.compression))]
    for tool in lock.build_tools:
        body += ["\n[[build_tool]]\n", *_pairs(_table(tool) | {"sha256": tool.sha256})]
    for built in lock.built:
        made = {"sha256": built.source.sha256, "wheel": built.wheel, "wheel_sha256": built.wheel_sha256}
        body += ["\n[[built]]\n", *_pairs(_table(built.source) | made)]
    body += _compiled_lines(lock.compiled) if lock.compiled else []
    for layer in lock.layers:
        table = {"name": layer.name, "packages": list(layer.packages), "diff_id": layer.diff_id}
        body += ["\n[[layer]]\n", *_pairs(table)]
    for wheel in lock.wheels:
        body += ["\n[[wheel]]\n", *_pairs({k: v for k, v in _table(wheel).items() if k != "version"})]
    text = f"# Generated by `verlstack lock {lock.stack}` from stacks.toml; do not edit.\n" + "".join(body)
    return text.replace("stack = ", f'checksum = "{checksum(requirements, text)}"\nstack = ', 1)


def _compiled_lines(compiled: Compiled) -> list[str]:
    facts = _table(compiled.source) | {"sha256": compiled.source.sha256}
    facts |= {"cuda_archs": list(compiled.cuda_archs), "cxx11_abi": compiled.cxx11_abi}
    if wheel := compiled.wheel:
        facts |= {"wheel": wheel.filename, "wheel_size": wheel.size, "wheel_sha256": wheel.sha256}
    lines = ["\n[compiled]\n", *_pairs(facts)]
    for tool in compiled.tools:
        lines += ["\n[[compile_tool]]\n", *_pairs(_table(tool) | {"sha256": tool.sha256})]
    return lines


def _table(artifact: Artifact) -> dict[str, Any]:
    return {
        "name": artifact.project,
        "version": artifact.version,
        "file": artifact.filename,
        "size": artifact.size,
    }


def _pairs(table: dict[str, Any]) -> list[str]:
    """TOML key/value lines: JSON's values are TOML's, but for DELETE, which TOML wants escaped."""
    text = {key: json.dumps(value, ensure_ascii=False) for key, value in table.items() if value is not None}
    return [f"{key} = {value}\n".replace("\x7f", "\\u007f") for key, value in text.items()]
