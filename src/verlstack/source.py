"""Wheels that exist only as source: verl from its tag, and sdist-only packages; the same bytes on every build."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from verlstack import canonical, layer, shell, wheel
from verlstack.cache import atomic, sha256_file
from verlstack.content import Reader
from verlstack.errors import BuildError, HashMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from packaging.tags import Tag

    from verlstack.base.interpreter import Interpreter
    from verlstack.cache import Cache
    from verlstack.pins import Verl

_GIT_PATIENCE = 60.0  # seconds for a shallow fetch of one commit; an unreachable host says no sooner


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What decides the bytes of a wheel built from source.

    Attributes:
        project: canonical name.
        sdist: path of the fetched source archive.
        sdist_sha256: its hash.
        strip: paths removed from the unpacked source.
        tools: paths of the build tools' wheels (pip, setuptools, wheel), already verified.
        tool_hashes: their SHA-256 in the same order.
        epoch: SOURCE_DATE_EPOCH.
    """

    project: str
    sdist: Path
    sdist_sha256: str
    strip: tuple[str, ...]
    tools: tuple[Path, ...]
    tool_hashes: tuple[str, ...]
    epoch: int

    def key(self, python: str) -> str:
        """Cache key: all of the above but for paths, and the interpreter's X.Y.Z."""
        parts = [self.project, self.sdist_sha256, self.strip, self.tool_hashes, self.epoch, python]
        return canonical.digest(parts)


@dataclass(frozen=True, kw_only=True)
class Builder:
    """Where and with what wheels are built.

    Attributes:
        interpreter: the stack's own Python.
        tags: what it accepts; build tools are checked against them.
        cache: where results are kept.
        say: receives one line about where a source came from.
        offline: do not ask verl's repository.
        run: the program runner.
    """

    interpreter: Interpreter
    tags: frozenset[Tag]
    cache: Cache
    say: Callable[[str], None]
    offline: bool = False
    run: Callable[..., shell.Result] = shell.run

    def build(self, recipe: Recipe, *, verl: Verl | None = None, expected: str | None = None) -> Path:
        """Build a wheel with `pip wheel --no-build-isolation --no-deps`, or take it from the cache.

        Args:
            recipe: what to build.
            verl: for verl, the tag to prefer over the sdist where its repository answers.
            expected: SHA-256 that the lock names; None while locking.

        Raises:
            BuildError: the build failed; pip's last lines are passed on.
            HashMismatchError: the wheel is not the one the lock names.
        """
        folder = self.cache.built(recipe.key(self.interpreter.version))
        with self.cache.lock(folder.name):
            path = _sound(folder)
            if path is None:
                shutil.rmtree(folder, ignore_errors=True)
                with tempfile.TemporaryDirectory(prefix="build-", dir=self.cache.tmp) as name:
                    path = self._keep(self._build(recipe, Path(name), verl, expected), folder)
        if expected and (have := sha256_file(path)) != expected:
            shutil.rmtree(folder, ignore_errors=True)
            raise HashMismatchError(
                f"the wheel built for {recipe.project} has sha256 {have}, the lock says {expected}; it was deleted",
                where=path.name,
                todo=f"was the lock recorded with Python {self.interpreter.version}? If so, run `verlstack lock`",
            )
        return path

    def _keep(self, made: Path, folder: Path) -> Path:
        """Put a wheel into the cache, and beside it, as its last part, its hash."""
        for name, data in ((made.name, made.read_bytes()), ("sha256", sha256_file(made).encode())):
            with atomic(folder / name, tmp=self.cache.tmp) as out:
                out.write(data)
        return folder / made.name

    def _build(self, recipe: Recipe, work: Path, verl: Verl | None, expected: str | None) -> Path:
        python = self._environment(recipe)
        if verl and verl.commit and not self.offline and (checkout := _checkout(verl, work / "git", self.run)):
            made = _wheel(recipe, checkout, work / "git-out", python, self.run)
            if expected in {None, sha256_file(made)}:
                self.say(f"{recipe.project}: built from tag {verl.tag}, commit {verl.commit[:12]}")
                return made
            self.say(
                f"{recipe.project}: the wheel of tag {verl.tag} is not the lock's; building the release sdist instead"
            )
        source = unpack(recipe.sdist, work / "sdist")
        self.say(f"{recipe.project}: built from {recipe.sdist.name}, sha256 {recipe.sdist_sha256[:12]}")
        try:
            return _wheel(recipe, source, work / "sdist-out", python, self.run)
        except BuildError:
            shutil.rmtree(python.parent.parent, ignore_errors=True)  # were the kept tools damaged? The next run tells
            raise

    def _environment(self, recipe: Recipe) -> Path:
        """A virtual environment of the stack's interpreter that holds exactly the pinned build tools; its Python.

        It is kept, because pip without bytecode takes a second longer to start. A build compares what it makes with the
        lock's hash; locking itself trusts it.
        """
        root = self.cache.tools(
            canonical.digest([recipe.tool_hashes, str(self.interpreter.executable), self.interpreter.version])
        )
        with self.cache.lock(root.name):
            if not root.exists():
                with tempfile.TemporaryDirectory(prefix="tools-", dir=self.cache.tmp) as name:
                    self._install(recipe.tools, Path(name, "venv"))
                    root.parent.mkdir(exist_ok=True)
                    Path(name, "venv").rename(root)
        return root / "bin" / "python"

    def _install(self, tools: Sequence[Path], root: Path) -> None:
        done = self.run([self.interpreter.executable, "-I", "-m", "venv", "--without-pip", root])
        if done.returncode:
            where = str(self.interpreter.executable)
            raise BuildError(f"the stack's interpreter makes no venv:\n{done.tail}", where=where)
        venv = wheel.Venv(root=str(root).lstrip("/"), python=self.interpreter.version.rpartition(".")[0])
        with Reader() as reader:
            for tool in tools:
                for entry in layer.arrange(wheel.plan(tool, venv, self.tags).entries):
                    target = Path("/", entry.path)
                    if entry.content is None:
                        target.mkdir(exist_ok=True)
                    else:
                        target.write_bytes(reader.read(entry.content))


def _sound(folder: Path) -> Path | None:
    """The wheel in a folder of the cache, if it is there and still what it was."""
    try:
        (path,) = folder.glob("*.whl")
        return path if sha256_file(path) == (folder / "sha256").read_text() else None
    except (OSError, ValueError):
        return None


def _checkout(verl: Verl, into: Path, run: Callable[..., shell.Result]) -> Path | None:
    """The tagged source, or None where its repository does not answer.

    Raises:
        BuildError: the tag names another commit than the pins say.
    """
    env = {"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(into), "PATH": shell.search_path()}
    env |= shell.network_settings()
    into.mkdir()
    fetched = [
        ["git", "init", "--quiet", into],
        ["git", "-C", into, "fetch", "--quiet", "--depth=1", "--", verl.repository, f"refs/tags/{verl.tag}"],
    ]
    try:
        if any(run(command, env=env, timeout=_GIT_PATIENCE).returncode for command in fetched):
            return None
    except shell.ProgramMissingError:
        return None
    named = run(["git", "-C", into, "rev-parse", "FETCH_HEAD^{commit}"], env=env).stdout.strip()
    if named != verl.commit:
        raise BuildError(
            f"tag {verl.tag} names commit {named}, the pins say {verl.commit}: the tag was moved",
            where=verl.repository,
            todo="find out why before you trust either; the release sdist on the index is pinned by sha256",
        )
    if run(["git", "-C", into, "checkout", "--quiet", verl.commit], env=env).returncode:
        return None
    shutil.rmtree(into / ".git")
    return into


def unpack(sdist: Path, into: Path) -> Path:
    """The one top folder of a source archive.

    Raises:
        BuildError: the archive is damaged, hostile, or has several top folders.
    """
    into.mkdir()
    try:
        with tarfile.open(sdist) as archive:
            for member in archive:
                _extract(archive, member, into)
    except (tarfile.TarError, EOFError, OSError, ValueError) as e:
        raise BuildError(f"the source archive is damaged or unsafe: {e}", where=str(sdist)) from e
    tops = list(into.iterdir())
    if len(tops) != 1 or not tops[0].is_dir():
        raise BuildError(f"the source archive has {len(tops)} top folders instead of one", where=str(sdist))
    return tops[0]


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, into: Path) -> None:
    """Write one file or folder; stricter than tarfile's own filter, which Debian 12's Python does not have.

    Raises:
        ValueError: the member is a link or a device, or leaves the folder.
    """
    parts = member.name.removeprefix("./").rstrip("/").split("/")
    if member.name.startswith("/") or any(part in {"", ".."} for part in parts):
        raise ValueError(f"{member.name!r} leaves its folder")
    target = into.joinpath(*parts)
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
    elif member.isreg() and (content := archive.extractfile(member)):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.read())
        target.chmod(0o755 if member.mode & 0o100 else 0o644)
    elif member.type not in {tarfile.XGLTYPE, tarfile.XHDTYPE}:
        raise ValueError(f"{member.name!r} is a link or a device")


def _wheel(recipe: Recipe, source: Path, out: Path, python: Path, run: Callable[..., shell.Result]) -> Path:
    for name in recipe.strip:
        if (source / name).resolve().is_relative_to(source.resolve()):  # a link may lead out
            shutil.rmtree(source / name, ignore_errors=True)
    # The wheel's zip entries carry mode bits and, through SOURCE_DATE_EPOCH, one time; umask must not show.
    for path in source.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    env = {
        "PATH": f"{python.parent}:/usr/bin:/bin",
        "HOME": str(source.parent),
        "TMPDIR": str(out.parent),
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "SOURCE_DATE_EPOCH": str(recipe.epoch),
        "PIP_CONFIG_FILE": "/dev/null",
    }
    command = [python, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--quiet", "--wheel-dir", out, "."]
    done = run(command, env=env, cwd=source)
    made = sorted(out.glob("*.whl"))
    if done.returncode or len(made) != 1:
        raise BuildError(
            f"{recipe.project} does not build with --no-build-isolation:\n{done.tail}",
            where=recipe.sdist.name,
            todo="check build_tools in stacks.toml",
        )
    return made[0]
