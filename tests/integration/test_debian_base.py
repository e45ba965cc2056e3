"""The Debian base for real: the machine's own mirror, mmdebstrap, and the machine's own Python 3.10 on top."""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
from pathlib import Path

import pytest
import zstandard

from support.debian_programs import unpacked
from verlstack import layer, shell, trees
from verlstack.base import aptsources, bases, debs, interpreter, mmdebstrap, python_tree
from verlstack.cache import Cache, sha256_file
from verlstack.errors import BaseImageError
from verlstack.progress import Silent
from verlstack.sbom import contents

pytestmark = pytest.mark.full

EPOCH = 1_700_000_000
FAST = layer.Compression(level=1, window_log=20, long_distance=False, library="1.5.7")
PACKAGES = ["gcc", "libc6-dev", "libgomp1", "libstdc++6", "ca-certificates"]
CHILD = """
import os, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
import test_debian_base
os.umask(0o77)
print(test_debian_base.obtain(Path(sys.argv[1])).layers[0].digest)
"""


def obtain(root, packages=PACKAGES, run=shell.run, apt=None):
    with Cache(root).use() as cache:
        request = bases.Request(
            wanted_python="3.10", debian_packages=tuple(packages), registry_default=None, compression=FAST,
            epoch=EPOCH, cache=cache, interpreter=interpreter.find("3.10", tree=None, env=os.environ), env=os.environ,
            progress=Silent(), offline=False, apt=apt, run=run,
        )  # fmt: skip
        return bases.obtain("debian", request)


@pytest.fixture(scope="module")
def python():
    try:
        return interpreter.find("3.10", tree=None, env=os.environ)
    except BaseImageError as e:
        pytest.skip(f"no Python 3.10 here: {e.what}")


@pytest.fixture(scope="module")
def base(tmp_path_factory, python):
    if not shutil.which("mmdebstrap") or not shutil.which("apt-get"):
        pytest.skip("needs apt and mmdebstrap (make host-tools)")
    try:
        return obtain(tmp_path_factory.mktemp("base") / "cache")
    except BaseImageError as e:
        if "cannot be reached" in e.what:
            pytest.skip(f"the mirror is out of reach: {e.where}")
        raise


def child(tmp_path, *before):
    words = [*before, sys.executable, "-c", CHILD, tmp_path / "cache", Path(__file__).parent, Path(__file__).parents[1]]
    env = dict(os.environ) | {"TZ": "Asia/Tokyo", "LANG": "de_DE.UTF-8", "PYTHONHASHSEED": "7"}
    return shell.run(words, env=env)


def test_again_under_another_umask_time_zone_and_language(base, tmp_path):
    done = child(tmp_path)
    assert done.stdout.split()[-1] == base.layers[0].digest, done.stderr


def test_without_root_the_layer_is_the_same(base, tmp_path):
    """A user namespace of one id is what an ordinary user has; root can make itself one too."""
    if not shutil.which("fakeroot"):
        pytest.skip("needs fakeroot")
    alone = ("unshare", "--map-root-user")
    if shell.run((*alone, "true")).returncode:
        pytest.skip("this machine allows no user namespaces")
    done = child(tmp_path, *(alone if os.geteuid() == 0 else ()))
    assert done.stdout.split()[-1] == base.layers[0].digest, done.stderr


def unpack(blob, target):
    with (
        blob.path.open("rb") as packed,
        zstandard.ZstdDecompressor().stream_reader(packed) as raw,
        tarfile.open(fileobj=raw, mode="r|", encoding="utf-8") as members,
    ):
        # Debian 12's own Python 3.11.2 is older than extractall's `filter` (3.11.4).
        members.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
        members.extractall(target)  # noqa: S202 - our own layer, in a temporary folder


def lay(entries, target, work):
    path = work / "layer"
    with path.open("wb") as out:
        layer.write(layer.arrange(entries), out, FAST, epoch=EPOCH, progress=lambda n: None)
    unpack(layer.Blob(path=path, digest="", diff_id="", size=0, raw_size=0, media_type=""), target)


@pytest.fixture(scope="module")
def root(base, python, tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("chroot needs root")
    work = tmp_path_factory.mktemp("root")
    work.parent.chmod(0o755)
    work.parent.parent.chmod(0o755)
    work.chmod(0o755)
    target = work / "root"
    target.mkdir()
    target.chmod(0o755)
    unpack(base.layers[0], target)
    lay(python_tree.layer_entries(python, "3.10"), target, work)
    lay(python_tree.venv_entries(python_tree.HOME, python.version), target, work)
    return target


def inside(root, uid, script):
    env = {"PATH": "/opt/verl/bin:/usr/bin:/bin:/usr/sbin", "HOME": "/tmp"}
    return shell.run(("chroot", f"--userspec={uid}:{uid}", root, "sh", "-ec", script), env=env)


@pytest.mark.parametrize("uid", [0, 54321])
def test_the_interpreter_runs_as_root_and_as_anybody(root, python, uid):
    modules = "ssl, ctypes, sqlite3, lzma, bz2, zlib, readline, hashlib, uuid, curses, multiprocessing.synchronize"
    done = inside(
        root, uid, f"python -c 'import sys, {modules}; print(sys.version.split()[0], sys.prefix, sys.base_prefix)'"
    )
    assert done.stdout.split() == [python.version, "/opt/verl", "/usr/local"], done.stderr


@pytest.mark.parametrize("uid", [0, 54321])
def test_the_compiler_makes_an_extension_that_imports(root, uid):
    (root / "tmp" / "probe.c").write_text("""#include <Python.h>
static struct PyModuleDef it = {PyModuleDef_HEAD_INIT, "probe", 0, -1, 0};
PyMODINIT_FUNC PyInit_probe(void) { return PyModule_Create(&it); }
""")
    done = inside(
        root,
        uid,
        """cd "$(mktemp -d)"
        include=$(python -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
        cc -shared -fPIC -I"$include" /tmp/probe.c -o probe.so
        PYTHONPATH=. python -c 'import probe; print(probe.__name__)'""",
    )
    assert done.stdout == "probe\n", done.stderr


def test_nothing_of_the_machine_or_the_moment_stays(root, python):
    release = aptsources.parse_release(Path("/etc/os-release").read_text())
    own = "".join(aptsources.own_sources(aptsources.read(mmdebstrap.ETC_APT), release).values())
    mirrors = {word.strip("/").encode() for word in own.split() if "://" in word}
    places = [root / "etc", root / "var", root / "usr/local", root / "opt"]
    strings = [*mirrors, bytes(python.prefix), python.build_dir.encode() or bytes(python.prefix)]
    for path in (one for place in places for one in place.rglob("*") if one.is_file() and not one.is_symlink()):
        data = path.read_bytes()
        assert not [string for string in strings if string in data], path
    assert not [path for path in ("etc/machine-id", "etc/resolv.conf", "etc/hostname") if (root / path).exists()]
    assert list((root / "var/log").iterdir()) == []
    assert (root / "tmp").stat().st_mode & 0o7777 == 0o1777
    assert (root / "usr/bin/su").stat().st_mode & 0o4000


def test_the_packages_are_listed_and_the_base_is_local(base):
    names = {name for name, _ in base.packages}
    assert {"gcc", "libc6-dev", "ca-certificates", "dpkg"} <= names
    assert base.local
    assert "://" not in base.reference


def test_every_package_has_the_hash_of_its_file(base, tmp_path):
    (blob,) = base.layers
    found = contents.describe(trees.read(blob.path, blob.media_type, keep=contents.KEEP))
    assert found.wrong == ()
    assert len(found.debs) == len(base.packages)
    assert [one.name for one in found.debs if one.sha256 is None] == []
    known = {debs.file_name(one): one.sha256 for one in found.debs}
    unpacked("gcc", tmp_path)  # its version has an epoch, and no security update ever came
    (file,) = tmp_path.rglob("*.deb")
    assert known[file.name] == sha256_file(file)


def test_a_package_the_mirror_lacks_is_named_before_anything_is_installed(base, tmp_path):
    with pytest.raises(BaseImageError, match="no package verlstack-no-such-package"):
        obtain(tmp_path / "cache", [*PACKAGES, "verlstack-no-such-package"])
    assert list((tmp_path / "cache" / "verlstack-tmp").iterdir()) == []


def test_a_mirror_that_is_not_there(base, tmp_path, monkeypatch):
    etc = tmp_path / "apt"
    etc.mkdir()
    release = aptsources.parse_release(Path("/etc/os-release").read_text())
    (etc / "sources.list").write_text(f"deb http://127.0.0.1:9/debian {release.codename} main\n")
    monkeypatch.setattr(mmdebstrap, "ETC_APT", etc)
    with pytest.raises(BaseImageError, match="cannot be reached") as caught:
        obtain(tmp_path / "cache")
    assert "127.0.0.1:9" in caught.value.where
