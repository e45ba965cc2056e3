"""Compiling without an engine: what is refused before one is asked, and where the toolchain of a base is kept."""

from types import SimpleNamespace

import pytest

from support import layouts
from verlstack import compiling, reproduce, shell
from verlstack.cache import Cache
from verlstack.errors import BuildError, LockError, UsageError
from verlstack.progress import Silent
from verlstack.workshop import Workshop

LOCK = SimpleNamespace(stack="demo", digest="9" * 64, extension=None)
STACK = SimpleNamespace(name="demo")


@pytest.fixture
def shop(tmp_path):
    (tmp_path / "constraints").mkdir()
    (tmp_path / "docker").mkdir()
    (tmp_path / compiling._TOOLCHAIN).write_text("nvcc 12.4")
    with Cache(tmp_path / "cache").use() as cache:
        yield Workshop(
            constraints=tmp_path / "constraints",
            smoke_tests=tmp_path,
            cache=cache,
            env={},
            progress=Silent(),
            workers=1,
        )


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch):
    def asked(env):
        raise AssertionError("the engine was asked")

    monkeypatch.setattr("verlstack.buildkit.check", asked)


def offline(shop):
    return Workshop(**{**vars(shop), "offline": True})


def test_offline_is_refused_before_the_engine_is_asked(shop, tmp_path):
    with pytest.raises(UsageError, match="--offline"):
        compiling.compile_wheel(STACK, LOCK, offline(shop), base=None, jobs=None)
    with pytest.raises(UsageError, match="--offline"):
        reproduce.by_buildkit(LOCK, offline(shop), tmp_path / "dist")


def test_arguments_of_another_lock_are_refused_before_the_engine_is_asked(shop, tmp_path):
    (shop.constraints / "demo.bake.json").write_text("{}")
    with pytest.raises(LockError, match="damaged"):
        compiling.compile_wheel(STACK, LOCK, shop, base=None, jobs=None)
    labels = {"dev.verlstack.lock": f"sha256:{LOCK.digest}"}
    layouts.write(tmp_path / "dist", layouts.FIT, labels=labels)
    with pytest.raises(LockError, match="damaged"):
        reproduce.by_buildkit(LOCK, shop, tmp_path / "dist")


class Script:
    """Stands in for docker/toolchain-debian.sh."""

    def __init__(self, returncode=0):
        self.returncode = returncode
        self.seen = []

    def __call__(self, words, **_):
        self.seen.append((words[1], words[2].read_text()))
        return shell.Result(args=(), stdout="", stderr="no mirror", returncode=self.returncode)


def from_debian(shop, monkeypatch, folder, status, run):
    layout = layouts.write(folder / "base", layouts.FIT | {"var/lib/dpkg/status": status.encode()})
    made = SimpleNamespace(layout=layout, digest="sha256:d")
    monkeypatch.setattr("verlstack.base.assemble.assemble", lambda *_, **__: made)
    return compiling._from_debian(STACK, shop, "debian", folder, run)


def test_each_base_has_a_toolchain_of_its_own(shop, monkeypatch, tmp_path):
    script, kits = Script(), []
    for n, status in enumerate((layouts.STATUS, layouts.STATUS, layouts.STATUS.replace("2.36", "2.41"))):
        kits.append(from_debian(shop, monkeypatch, tmp_path / str(n), status, script)["cuda"])
    assert kits[0] == kits[1] != kits[2]
    assert kits == [f"{kit}/cuda" for kit, _ in script.seen]
    assert script.seen[0][1] == layouts.STATUS
    assert len(list((shop.cache.root / "locks").glob("toolchain-*"))) == 2


def test_another_script_makes_another_toolchain(shop, monkeypatch, tmp_path):
    script, kits = Script(), []
    for text in ("nvcc 12.4", "nvcc 12.5"):
        (tmp_path / compiling._TOOLCHAIN).write_text(text)
        kits.append(from_debian(shop, monkeypatch, tmp_path / text, layouts.STATUS, script)["cuda"])
    assert kits[0] != kits[1]


def test_a_toolchain_that_cannot_be_had(shop, monkeypatch, tmp_path):
    with pytest.raises(BuildError, match="no mirror"):
        from_debian(shop, monkeypatch, tmp_path, layouts.STATUS, Script(returncode=1))


@pytest.mark.parametrize("base", ["alpine", "oci:x", "auto"])
def test_a_toolchain_is_debians_or_the_pinned_images(base, capsys):
    from verlstack import cli

    with pytest.raises(SystemExit) as e:
        cli.main(["flash-attn", "compile", "demo", "--base", base])
    assert e.value.code == 2
    assert "invalid choice" in capsys.readouterr().err
