"""The Debian base without a mirror: sources, plan, command line, the canonical tree, and the cache entry."""

from __future__ import annotations

import io
import os
import re
import tarfile
from pathlib import Path

import pytest

from verlstack import layer, shell, trees
from verlstack.base import aptsources, basestore, debian, debs, mmdebstrap, rootfs
from verlstack.cache import Cache
from verlstack.content import Inline, Reader, Slice
from verlstack.errors import BaseImageError, FetchError, StorageError
from verlstack.progress import Silent

EPOCH = 1_700_000_000
FAST = layer.Compression(level=1, window_log=20, long_distance=False, library="1.5.7")
OS_RELEASE = 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n'
BOOKWORM = aptsources.parse_release(OS_RELEASE)
DEB822 = """# the distribution
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/security
Suites: bookworm-security
Components: main
"""


def test_os_release():
    assert (BOOKWORM.id, BOOKWORM.version, BOOKWORM.codename) == ("debian", "12", "bookworm")
    assert aptsources.parse_release("NAME=Strange\n").name == "Strange"


def test_the_distributions_own_stanzas_pass_through_verbatim():
    own = aptsources.own_sources({"debian.sources": DEB822}, BOOKWORM)
    assert list(own) == ["own.sources"]
    assert "http://mirror.example/debian" in own["own.sources"]
    assert own["own.sources"].count("Types:") == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("Suites", "trixie"),
        ("Suites", "bookworm-backports"),
        ("Suites", "bookworm-pgdg"),
        ("Components", "stable"),
        ("Types", "deb-src"),
        ("Enabled", "no"),
        ("Signed-By", "/usr/share/keyrings/vendor.gpg"),
    ],
)
def test_other_peoples_stanzas_are_left_out(field, value):
    fields = {"Types": "deb", "URIs": "http://x.example", "Suites": "bookworm", "Components": "main"} | {field: value}
    text = "".join(f"{key}: {one}\n" for key, one in fields.items())
    own = aptsources.own_sources({"a.sources": DEB822, "b.sources": text}, BOOKWORM)
    assert "x.example" not in own["own.sources"]


def test_one_line_sources():
    lines = """deb http://mirror.example/debian bookworm main
    deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://m.example/s bookworm-security main # x
    deb [signed-by=/vendor.gpg] http://v.example bookworm main
    deb http://w.example ./
    deb-src http://mirror.example/debian bookworm main
    # deb http://off.example bookworm main
    """
    own = aptsources.own_sources({"/etc/apt/sources.list": lines}, BOOKWORM)["own.list"]
    assert own.count("deb ") == 2
    assert not {"v.example", "w.example", "off.example", "deb-src"} & set(own.split())


def test_no_source_left_says_what_to_add():
    with pytest.raises(BaseImageError, match="knows no mirror") as caught:
        aptsources.own_sources({"x.disabled": DEB822}, BOOKWORM)
    assert "bookworm" in caught.value.todo


def test_source_files_are_found(tmp_path):
    (tmp_path / "sources.list.d").mkdir()
    for name in ("sources.list", "sources.list.d/a.sources", "sources.list.d/b.list", "sources.list.d/c.list.off"):
        (tmp_path / name).write_text(name)
    assert [Path(name).name for name in aptsources.read(tmp_path)] == ["sources.list", "a.sources", "b.list"]


def test_only_the_options_that_reach_a_mirror_are_carried():
    dump = 'Acquire::http::Proxy "http://p";\nAcquire::Languages:: "de";\nAPT::Sandbox "";\nAcquire::Retries "3";\n'
    assert aptsources.carried_options(dump) == 'Acquire::http::Proxy "http://p";\nAcquire::Retries "3";\n'


def a_plan(*packages, **more):
    return debian.plan(packages or ("gcc",), **{"epoch": EPOCH, "compression": FAST, "os_release": OS_RELEASE} | more)


def test_the_key_names_what_decides_the_bytes():
    assert a_plan("gcc", "apt", "apt").key == a_plan("apt", "gcc").key
    trixie = OS_RELEASE.replace("bookworm", "trixie")
    keys = {a_plan().key, a_plan("tar").key, a_plan(epoch=1).key, a_plan(os_release=trixie).key}
    assert len(keys) == 4


def test_a_machine_without_codename_is_refused():
    with pytest.raises(BaseImageError, match="needs a Debian or Ubuntu machine"):
        a_plan(os_release="NAME=Other\n")


def test_mmdebstraps_arguments(tmp_path):
    words = mmdebstrap.words(
        a_plan("gcc", "tar"), tmp_path / "t", tmp_path / "c", [tmp_path / "own.list"], tmp_path / "h"
    )
    assert "--include=gcc,tar" in words
    assert "--variant=essential" in words
    assert any("apt-helper" in str(word) and str(word).endswith(f">{tmp_path / mmdebstrap.INDEX}") for word in words)
    assert "--dpkgopt=path-include=/usr/share/doc/*/copyright" in words
    assert words[-3:] == ["bookworm", tmp_path / "t", tmp_path / "own.list"]
    assert not any("path-exclude=/usr/share/doc/*" in str(word) for word in words[words.index(
        "--dpkgopt=path-include=/usr/share/doc/*/copyright"):]), "dpkg takes the last filter that fits"  # fmt: skip


class Run:
    """Answers `true` by exit status, and records."""

    def __init__(self, *, code=0, missing=False, bootstrap=None):
        self.code, self.missing, self.bootstrap, self.calls = code, missing, bootstrap, []

    def __call__(self, words, *, env=None, timeout=None):
        words = tuple(map(str, words))
        self.calls.append((words, env))
        if self.missing:
            raise shell.ProgramMissingError("x")
        if "--variant=essential" in words and self.bootstrap:
            return self.bootstrap(words, env)
        return shell.Result(args=words, returncode=self.code, stdout='Acquire::Retries "1";\n', stderr="")


@pytest.fixture
def as_root(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "gid_map").write_text("         0          0 4294967295\n")
    monkeypatch.setattr(mmdebstrap, "_GID_MAP", tmp_path / "gid_map")


@pytest.fixture
def as_user(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


def program(folder, name):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("")
    (folder / name).chmod(0o755)
    return str(folder)


def test_root_works_in_a_mount_namespace_where_it_may(as_root):
    assert mmdebstrap._root_words("", Run()) == ["unshare", "--mount"]
    assert mmdebstrap._root_words("", Run(code=1)) == []
    assert mmdebstrap._root_words("", Run(missing=True)) == []


def test_root_of_a_small_user_namespace_counts_as_a_user(as_root, tmp_path):
    (tmp_path / "gid_map").write_text("0 1000 1\n")
    path = program(tmp_path / "bin", "fakeroot")
    assert mmdebstrap._root_words(path, Run()) == ["unshare", "--map-root-user", "--mount", "fakeroot"]


def test_a_user_needs_a_namespace_and_fakeroot(as_user, tmp_path):
    with pytest.raises(BaseImageError, match="user namespace"):
        mmdebstrap._root_words("", Run(code=1))
    with pytest.raises(BaseImageError, match="fakeroot is not installed") as caught:
        mmdebstrap._root_words(str(tmp_path), Run())
    assert "make host-tools" in caught.value.todo


def said(stderr):
    return shell.Result(args=(), returncode=1, stdout="", stderr=stderr)


@pytest.mark.parametrize(
    ("stderr", "kind", "text"),
    [
        (
            "E: Unable to locate package nosuch\nE: Unable to locate package also",
            BaseImageError,
            "no package also, nosuch",
        ),
        ("E: Package 'gone' has no installation candidate", BaseImageError, "no package gone"),
        ("E: Failed to fetch http://u:secret@m.example/x  Could not connect", BaseImageError, "cannot be reached"),
        ("tar: write error: No space left on device", StorageError, "no space left"),
        ("E: something\nelse", BaseImageError, "exit status 1"),
    ],
)
def test_failures_say_what_they_were(stderr, kind, text):
    error = mmdebstrap.failure(said(stderr), a_plan())
    assert isinstance(error, kind)
    assert text in error.what
    assert error.todo
    assert "secret" not in str(error)


def root_tar(path, *, day=b"20000", version=b"1.34"):
    """A small bootstrapped tree with every kind of member and every kind of litter."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as out:

        def add(name, data=b"", kind=tarfile.REGTYPE, mode=0o644, gid=0, link=""):
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.gid, info.linkname, info.size = kind, mode, gid, link, len(data)
            info.mtime = os.getpid()  # anything
            out.addfile(info, io.BytesIO(data))

        for name in ("./", "./usr", "./usr/bin", "./var", "./var/log", "./etc", "./etc/apt/sources.list.d", "./dev"):
            add(name, kind=tarfile.DIRTYPE, mode=0o755)
        add("./tmp", kind=tarfile.DIRTYPE, mode=0o1777)
        add("./usr/bin/perl", b"perl" * 200, mode=0o755)
        add("./usr/bin/perl5.36", kind=tarfile.LNKTYPE, link="./usr/bin/perl")
        add("./usr/bin/su", b"su", mode=0o4755)
        add("./usr/sbin/unix_chkpwd", b"x", mode=0o2755, gid=42)
        add("./bin", kind=tarfile.SYMTYPE, mode=0o777, link="usr/bin")
        add("./dev/null", kind=tarfile.CHRTYPE)
        add("./etc/shadow", b"root:*:" + day + b":0:99999:7:::\nx:!:::::::\n", mode=0o640, gid=42)
        add("./var/lib/dpkg/status", b"Package: tar\nStatus: install ok installed\nVersion: " + version + b"\n"
            b"Architecture: amd64\n\n"
            b"Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n")  # fmt: skip
        for litter in (
            "./var/log/dpkg.log", "./etc/machine-id", "./etc/resolv.conf", "./etc/hostname", "./etc/passwd-",
            "./var/lib/dpkg/status-old", "./var/cache/ldconfig/aux-cache", "./var/lib/apt/lists/x",
            "./etc/apt/sources.list.d/0000.sources", "./etc/apt/apt.conf.d/99mmdebstrap", "./usr/share/man/man1/x.1",
            "./var/cache/debconf/config.dat-old",
        ):  # fmt: skip
            add(litter, b"litter")
        add("./etc/ca-certificates/F\u0151.crt", b"cert")
    return path


def test_the_tree_is_canonical(tmp_path):
    entries = {entry.path: entry for entry in rootfs.entries(root_tar(tmp_path / "r.tar"), epoch=EPOCH)}
    assert sorted(entries) == sorted([
        "bin", "dev", "etc", "etc/apt/sources.list.d", "etc/ca-certificates/F\u0151.crt", "etc/shadow", "tmp", "usr",
        "usr/bin", "usr/bin/perl", "usr/bin/perl5.36", "usr/bin/su", "usr/sbin/unix_chkpwd", "var", "var/log",
        "var/lib/dpkg/status",
    ])  # fmt: skip
    assert entries["tmp"].mode == 0o1777
    assert entries["usr/bin/su"].mode == 0o4755
    assert (entries["usr/sbin/unix_chkpwd"].mode, entries["usr/sbin/unix_chkpwd"].gid) == (0o2755, 42)
    assert entries["usr/bin/perl5.36"].kind == "file"
    assert isinstance(entries["usr/bin/perl"].content, Slice)
    with Reader() as reader:
        assert reader.read(entries["usr/bin/perl5.36"].content) == b"perl" * 200
        assert reader.read(entries["etc/shadow"].content) == b"root:*:19675:0:99999:7:::\nx:!:::::::\n"


def test_owners_and_modes_reach_the_tar(tmp_path):
    arranged = layer.arrange(rootfs.entries(root_tar(tmp_path / "r.tar"), epoch=EPOCH))
    stream = b"".join(layer.stream(arranged, epoch=EPOCH))
    with tarfile.open(fileobj=io.BytesIO(stream)) as members:
        found = {member.name: member for member in members}
    assert found["usr/sbin/unix_chkpwd"].gid == 42
    assert found["usr/bin/su"].mode == 0o4755
    assert {member.mtime for member in found.values()} == {EPOCH}


def test_a_slice_that_changed_is_noticed(tmp_path):
    archive = root_tar(tmp_path / "r.tar")
    entries = {entry.path: entry for entry in rootfs.entries(archive, epoch=EPOCH)}
    archive.write_bytes(archive.read_bytes().replace(b"perlperl", b"PERLperl"))
    with Reader() as reader, pytest.raises(StorageError, match="changed while"):
        reader.read(entries["usr/bin/perl"].content)
    archive.write_bytes(b"")
    with Reader() as reader, pytest.raises(StorageError, match="changed while"):
        reader.read(entries["usr/bin/perl"].content)


def test_a_damaged_root_tar_is_an_error(tmp_path):
    path = tmp_path / "r.tar"
    path.write_bytes(b"x" * 2000)
    with pytest.raises(BaseImageError, match="damaged"):
        rootfs.entries(path, epoch=EPOCH)


def test_packages_come_from_dpkgs_status(tmp_path):
    (package,) = rootfs.packages(root_tar(tmp_path / "r.tar"))
    assert (package.name, package.version) == ("tar", "1.34")
    with tarfile.open(tmp_path / "empty.tar", "w"):
        pass
    assert rootfs.packages(tmp_path / "empty.tar") == ()


@pytest.fixture
def etc(monkeypatch, tmp_path):
    folder = tmp_path / "etc-apt"
    (folder / "sources.list.d").mkdir(parents=True)
    (folder / "sources.list.d" / "debian.sources").write_text(DEB822)
    (folder / "auth.conf.d").mkdir()
    (folder / "auth.conf").write_text("")
    monkeypatch.setattr(mmdebstrap, "ETC_APT", folder)
    return folder


def bootstrap(cache, run, env=None, *, offline=False, fresh=False):
    return debian.bootstrap(
        a_plan(), cache=cache, env=env or {}, progress=Silent(), offline=offline, fresh=fresh, run=run
    )


def fake_bootstrap(day, version=b"1.34"):
    def write(words, env):
        archive = root_tar(Path(next(word for word in words if word.endswith("root.tar"))), day=day, version=version)
        archive.with_name(mmdebstrap.INDEX).write_text(
            f"Package: tar\nVersion: {version.decode()}\nArchitecture: amd64\nSHA256: {'a' * 64}\n\n\n"
        )
        return shell.Result(args=words, returncode=0, stdout="", stderr="")

    return write


def test_a_bootstrap_is_canonical_cached_and_clean(tmp_path, etc, as_root):
    env = {"PATH": program(tmp_path / "bin", "mmdebstrap"), "https_proxy": "http://proxy", "SECRET": "x"}
    run = Run(bootstrap=fake_bootstrap(b"20000"))
    one = bootstrap(Cache(tmp_path / "one"), run, env)
    other = bootstrap(Cache(tmp_path / "two"), Run(bootstrap=fake_bootstrap(b"20001")), env)
    assert (one.layer.digest, one.layer.diff_id) == (other.layer.digest, other.layer.diff_id)
    assert one.packages == (("tar", "1.34"),)
    listed = trees.read(one.layer.path, one.layer.media_type, keep=re.compile(debs.PATH))
    assert listed.kept == {debs.PATH: f"{'a' * 64}  tar_1.34_amd64.deb\n".encode()}
    (node,) = (member.node for member in listed.members if member.path == debs.PATH)
    assert (node.kind, node.mode, node.uid, node.gid) == ("file", 0o644, 0, 0)
    assert list((tmp_path / "one" / "verlstack-tmp").iterdir()) == []
    words, seen = run.calls[-1]
    assert words[:2] == ("unshare", "--mount")
    assert seen["https_proxy"] == "http://proxy"
    assert "SECRET" not in seen
    assert seen["SOURCE_DATE_EPOCH"] == str(EPOCH)
    again = Run(missing=True)
    assert bootstrap(Cache(tmp_path / "one"), again, env, offline=True) == one
    assert again.calls == []


def test_a_fresh_bootstrap_sees_a_changed_mirror_and_replaces_the_cached_one(tmp_path, etc, as_root):
    env, cache = {"PATH": program(tmp_path / "bin", "mmdebstrap")}, Cache(tmp_path / "c")
    old = bootstrap(cache, Run(bootstrap=fake_bootstrap(b"20000")), env)
    newer = Run(bootstrap=fake_bootstrap(b"20000", version=b"1.35"))
    assert bootstrap(cache, newer, env) == old
    assert bootstrap(cache, newer, env, fresh=True, offline=True) == old
    new = bootstrap(cache, newer, env, fresh=True)
    assert (old.packages, new.packages) == ((("tar", "1.34"),), (("tar", "1.35"),))
    assert bootstrap(cache, Run(missing=True), env, offline=True) == new


def test_a_failed_bootstrap_leaves_nothing(tmp_path, etc, as_root):
    env = {"PATH": program(tmp_path / "bin", "mmdebstrap")}
    run = Run(bootstrap=lambda words, env: said("E: Unable to locate package gcc"))
    with pytest.raises(BaseImageError, match="no package gcc"):
        bootstrap(Cache(tmp_path / "c"), run, env)
    assert list((tmp_path / "c" / "verlstack-tmp").iterdir()) == []
    assert not (tmp_path / "c" / "bases").exists()


def test_offline_without_a_cached_base_says_so(tmp_path):
    with pytest.raises(FetchError, match="not in the cache"):
        bootstrap(Cache(tmp_path), Run(), offline=True)


@pytest.mark.parametrize(("uid", "todo"), [(0, "apt-get install mmdebstrap"), (1000, "make host-tools")])
def test_a_missing_mmdebstrap_says_how_to_get_it(tmp_path, monkeypatch, uid, todo):
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(mmdebstrap.shutil, "which", lambda *args, **kwargs: None)
    with pytest.raises(BaseImageError, match="mmdebstrap is not installed") as caught:
        bootstrap(Cache(tmp_path), Run())
    assert todo in caught.value.todo


def test_a_cached_base_that_was_damaged_is_made_anew(tmp_path):
    work = tmp_path / "work"
    work.write_bytes(b"layer")
    digest = "sha256:" + "0" * 64
    blob = layer.Blob(path=work, digest=digest, diff_id=digest, size=5, raw_size=5, media_type="x")
    blobs, _ = basestore.save(tmp_path / "base", (blob, blob), {"a": 1})
    assert len({one.path for one in blobs}) == 1
    assert basestore.load(tmp_path / "base") is None, "the digest is checked"
    assert basestore.load(tmp_path / "nowhere") is None
    (tmp_path / "base" / "base.json").write_text("{")
    assert basestore.load(tmp_path / "base") is None


def test_inline_shadow_is_part_of_no_archive(tmp_path):
    entries = {entry.path: entry for entry in rootfs.entries(root_tar(tmp_path / "r.tar"), epoch=EPOCH)}
    assert isinstance(entries["etc/shadow"].content, Inline)
