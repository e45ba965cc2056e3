"""Files arrive whole or not at all; a full disk is an error with advice, not a traceback."""

import errno
import fcntl
import hashlib
import os
import signal
import stat
import time
from pathlib import Path

import pytest

from verlstack import cache
from verlstack.cache import Cache, atomic, behind_links, sha256_file, storage_errors
from verlstack.errors import StorageError


def everything(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_atomic_writes(tmp_path):
    with atomic(tmp_path / "a/b/file") as f:
        f.write(b"abc")
        assert not (tmp_path / "a/b/file").exists()
    assert (tmp_path / "a/b/file").read_bytes() == b"abc"
    assert everything(tmp_path) == ["a", "a/b", "a/b/file"]


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_not_replaced(tmp_path, make, link):
    """As root, `--output /dev/null` would else leave every program of the machine without it."""
    make(tmp_path / "there")
    target = tmp_path / "there"
    if link:
        target = tmp_path / "link"
        target.symlink_to("there")
    with pytest.raises(StorageError, match="no file that could be replaced"), atomic(target) as f:
        f.write(b"x")
    assert not (tmp_path / "there").is_file()
    assert target.is_symlink() is link
    assert len(list(tmp_path.iterdir())) == 1 + link


def killed(target):
    """A process that dies while it writes `target`, as by kill -9."""
    if (pid := os.fork()) == 0:
        with atomic(target) as f:
            f.write(b"half")
            f.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL


def test_what_a_killed_run_left_is_removed_by_whatever_writes_there_next(tmp_path):
    killed(tmp_path / "image.sqsh")
    (left,) = tmp_path.iterdir()
    assert left.read_bytes() == b"half"
    with atomic(tmp_path / "another") as f:
        f.write(b"x")
    assert everything(tmp_path) == ["another"]


def test_what_is_being_written_stays_and_so_does_what_is_not_ours(tmp_path):
    boot = cache.boot()
    os.mkfifo(tmp_path / f".pipe.{boot}.12345678.verlstack")
    (tmp_path / f".link.{boot}.12345678.verlstack").symlink_to("mine")
    for name in (".f.12345678", ".notes.verlstack", f".f.{boot}.1234567.verlstack", f".{boot}.12345678.verlstack",
                 f"f.{boot}.12345678.verlstack", "mine"):  # fmt: skip
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    before = everything(tmp_path)
    with atomic(tmp_path / "f") as one:
        one.write(b"first")
        with atomic(tmp_path / "f") as other:
            other.write(b"second")
        assert (tmp_path / "f").read_bytes() == b"second"
    assert (tmp_path / "f").read_bytes() == b"first"
    assert everything(tmp_path) == sorted([*before, "f"])


def test_who_shares_a_boot_is_told_by_its_number():
    assert Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "").startswith(cache.boot())
    assert len(cache.boot()) == 12


def test_what_another_machine_left_is_removed_a_day_later(tmp_path):
    """Its lock may be one that nobody sees from here."""
    for name, age in (("old", 86_410), ("new", 86_300)):
        path = tmp_path / f".{name}.0123456789ab.12345678.verlstack"
        path.touch()
        os.utime(path, (time.time() - age,) * 2)
    with atomic(tmp_path / "f") as f:
        f.write(b"x")
    assert everything(tmp_path) == [".new.0123456789ab.12345678.verlstack", "f"]


def test_what_is_removed_while_it_is_written_is_told(tmp_path):
    with pytest.raises(StorageError, match="was removed meanwhile") as e, atomic(tmp_path / "f") as f:
        Path(f.name).unlink()
    assert (e.value.where, bool(e.value.todo)) == (str(tmp_path / "f"), True)
    assert everything(tmp_path) == []


def test_one_that_is_swept_before_it_is_locked_is_begun_again(tmp_path, monkeypatch):
    real, swept = fcntl.flock, []

    def flock(handle, how):
        if not swept:
            (found,) = tmp_path.iterdir()
            found.unlink()
            swept.append(found)
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with atomic(tmp_path / "f") as f:
        f.write(b"x")
    assert everything(tmp_path) == ["f"]


@pytest.mark.parametrize("name", ["f" * 255, "\N{PARTY POPPER}" * 63])
def test_the_longest_names_can_be_written(tmp_path, name):
    with atomic(tmp_path / name) as f:
        f.write(b"x")
    assert everything(tmp_path) == [name]


@pytest.mark.parametrize("there", [True, False])
def test_links_lead_to_the_file_to_write(tmp_path, there):
    (tmp_path / "link").symlink_to("next")
    (tmp_path / "next").symlink_to("real/file")
    if there:
        (tmp_path / "real").mkdir()
        (tmp_path / "real" / "file").touch()
    assert behind_links(tmp_path / "link", todo="-") == tmp_path / "real" / "file"
    assert behind_links(tmp_path / "plain", todo="-") == tmp_path / "plain"


def test_links_that_lead_nowhere_are_no_place_to_write(tmp_path):
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to-pipe").symlink_to("pipe")
    for name, what in (("one", "round in a circle"), ("to-pipe", "no file that could be replaced")):
        with pytest.raises(StorageError, match=what) as e:
            behind_links(tmp_path / name, todo="choose another")
        assert (e.value.where, e.value.todo) == (str(tmp_path / name), "choose another")


@pytest.mark.parametrize("mode", [0o644, 0o444, 0o755])
def test_atomic_sets_the_mode_whatever_the_umask(tmp_path, mode):
    old = os.umask(0o077)
    try:
        with atomic(tmp_path / "f", mode=mode) as f:
            f.write(b"x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == mode


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_exception_leaves_nothing(tmp_path, error):
    with pytest.raises(error), atomic(tmp_path / "f") as f:  # noqa: PT012 - the block is what is tested
        f.write(b"half")
        raise error
    assert everything(tmp_path) == []


def test_an_exception_leaves_the_old_file(tmp_path):
    (tmp_path / "f").write_bytes(b"old")
    with pytest.raises(ValueError, match="stop"), atomic(tmp_path / "f") as f:  # noqa: PT012 - likewise
        f.write(b"new")
        raise ValueError("stop")
    assert (tmp_path / "f").read_bytes() == b"old"
    assert everything(tmp_path) == ["f"]


def test_bytes_are_on_the_disk_before_the_name(tmp_path, monkeypatch):
    order = []
    real_fsync, real_replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda fd: order.append(("fsync", os.fstat(fd).st_size)) or real_fsync(fd))
    monkeypatch.setattr(Path, "replace", lambda a, b: order.append(("rename", b.name)) or real_replace(a, b))
    with atomic(tmp_path / "f") as f:
        f.write(b"abc")
    assert order == [("fsync", 3), ("rename", "f")]


def test_the_unfinished_file_lies_where_it_is_told(tmp_path):
    (tmp_path / "tmp").mkdir()
    with atomic(tmp_path / "f", tmp=tmp_path / "tmp") as f:
        assert Path(f"/proc/self/fd/{f.fileno()}").readlink().parent == tmp_path / "tmp"


def test_long_names(tmp_path):
    with atomic(tmp_path / ("n" * 255)) as f:
        f.write(b"x")
    assert everything(tmp_path) == ["n" * 255]


TROUBLE = {
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "quota",
    errno.EROFS: "read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "not permitted",
    errno.EIO: "input/output error",
    errno.ENOTDIR: "a file stands where a folder is needed",
}


@pytest.mark.parametrize("code", TROUBLE)
@pytest.mark.parametrize(
    "call", ["os.fsync", "os.fchmod", "tempfile.mkstemp", "pathlib.Path.mkdir", "pathlib.Path.replace"]
)
def test_every_refusal_at_every_step(tmp_path, monkeypatch, call, code):
    def refuse(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(call, refuse)
    with pytest.raises(StorageError, match=f"cannot write: .*{TROUBLE[code]}") as e, atomic(tmp_path / "f") as f:
        f.write(b"x")
    assert e.value.where == str(tmp_path / "f")
    assert e.value.todo
    with pytest.raises(StorageError) as e, atomic(tmp_path / "f", todo="choose another") as f:
        f.write(b"x")
    assert e.value.todo == "choose another"
    monkeypatch.undo()
    assert everything(tmp_path) == []


def test_an_error_of_the_block_about_another_file_is_not_ours(tmp_path):
    """Say a source that may not be read: the disk that is written to is not to blame."""
    with pytest.raises(PermissionError) as e, atomic(tmp_path / "f"):
        raise PermissionError(errno.EACCES, "no", "/elsewhere")
    assert e.value.filename == "/elsewhere"
    with pytest.raises(StorageError, match="no space left"), atomic(tmp_path / "f"):
        raise OSError(errno.ENOSPC, "as a write says it")
    assert everything(tmp_path) == []


def test_the_file_that_was_refused_is_named():
    with pytest.raises(StorageError) as e, storage_errors(Path("/outer")):
        raise OSError(errno.EACCES, "no", "/inner/file")
    assert e.value.where == "/inner/file"


def test_the_users_file_is_named_and_not_the_unfinished_one(tmp_path, monkeypatch):
    target = tmp_path / "image.sqsh"

    def refuse(**how):
        raise PermissionError(errno.EACCES, "no", f"{how['dir']}/{how['prefix']}x1")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.raises(StorageError) as e, atomic(target):
        pass
    assert e.value.where == str(target)
    with pytest.raises(StorageError) as e, storage_errors(target):  # as `verlstack export` calls its own
        raise PermissionError(errno.EACCES, "no", str(tmp_path / ".image.sqsh.1690"))
    assert e.value.where == str(target)


def test_other_errors_pass_unchanged(tmp_path):
    with pytest.raises(FileNotFoundError), storage_errors(tmp_path):
        (tmp_path / "missing").read_bytes()
    with pytest.raises(OSError, match="no number") as e, storage_errors(tmp_path):
        raise OSError("no number")
    assert type(e.value) is OSError


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_sha256_of_a_file(tmp_path, size):
    data = bytes(size)
    (tmp_path / "f").write_bytes(data)
    assert sha256_file(tmp_path / "f") == hashlib.sha256(data).hexdigest()


# -- places


@pytest.mark.parametrize(
    ("env", "root"),
    [
        ({"VERLSTACK_CACHE": "/c", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/c"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/verlstack"),
        ({"HOME": "/h"}, "/h/.cache/verlstack"),
        ({"VERLSTACK_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/h"}, "/h/.cache/verlstack"),
    ],
)
def test_where_the_cache_is(env, root):
    assert Cache.from_environment(env).root == Path(root)


def test_a_relative_or_home_cache(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert Cache.from_environment({"VERLSTACK_CACHE": "here"}).root == tmp_path / "here"
    assert Cache.from_environment({"VERLSTACK_CACHE": "~/c"}).root == tmp_path / "home" / "c"
    assert Cache.from_environment({}).root == tmp_path / "home" / ".cache" / "verlstack"


def test_places_in_the_cache(tmp_path):
    cache = Cache(tmp_path / "c")
    assert cache.file("ab", "x.whl") == tmp_path / "c/files/ab/x.whl"
    assert cache.built("key") == tmp_path / "c/built/key"
    assert cache.bases == tmp_path / "c/bases"
    assert not (tmp_path / "c").exists()  # nothing is touched before use


# -- use and lock


def test_use_sweeps_what_a_killed_build_left(tmp_path):
    cache = Cache(tmp_path)
    with cache.use():
        (cache.tmp / "build-x/deep").mkdir(parents=True)
        (cache.tmp / "build-x/deep/file").write_bytes(b"x")
        (cache.tmp / "half").write_bytes(b"x")
        (cache.tmp / "link").symlink_to(tmp_path)
        (cache.parts / "aa.part").write_bytes(b"x")
        (cache.layers / "key.blob").write_bytes(b"x")
    with cache.use() as held:
        assert held is cache
        assert everything(cache.tmp) == []
        assert everything(cache.parts) == ["aa.part"]
        assert everything(cache.layers) == ["key.blob"]


def test_use_leaves_the_files_of_others_alone(tmp_path):
    first, second = Cache(tmp_path), Cache(tmp_path)
    with first.use():
        (first.tmp / "half").write_bytes(b"x")
        with second.use():
            assert everything(second.tmp) == ["half"]
    with second.use():
        assert everything(second.tmp) == []


def test_use_is_over_when_it_is_over(tmp_path):
    with pytest.raises(ValueError, match="x"), Cache(tmp_path).use():
        raise ValueError("x")
    with (tmp_path / "locks/use").open("a") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize(
    ("code", "says"), [(errno.EROFS, "read-only"), (errno.EACCES, "permission"), (errno.ENOSPC, "no space")]
)
def test_a_cache_that_cannot_be_used(tmp_path, monkeypatch, code, says):
    def refuse(*_, **__):
        raise OSError(code, os.strerror(code), str(tmp_path))

    for call in ("mkdir", "open"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, call, refuse)
            with pytest.raises(StorageError, match=says) as e, Cache(tmp_path / "c").use():
                pass
        assert "VERLSTACK_CACHE" in e.value.todo


def test_a_file_where_the_cache_should_be(tmp_path):
    (tmp_path / "c").write_bytes(b"")
    with pytest.raises(StorageError, match="a file stands where a folder is needed"), Cache(tmp_path / "c").use():
        pass


def test_a_lock_excludes_and_is_freed(tmp_path):
    cache = Cache(tmp_path)
    with cache.lock("key"), (tmp_path / "locks/key").open("a") as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with cache.lock("another"):
            pass
    with (tmp_path / "locks/key").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_lock_on_a_read_only_disk(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(StorageError, match="read-only"), Cache(tmp_path).lock("key"):
        pass


# -- bugs found while these tests were written; each mark goes when its fix comes ------------------------------------


def test_a_file_where_a_folder_of_the_cache_should_be(tmp_path):
    (tmp_path / "verlstack-tmp").write_bytes(b"")
    with pytest.raises(StorageError), Cache(tmp_path).use():
        pass


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    for hold in (Cache(tmp_path).use, lambda: Cache(tmp_path).lock("x")):
        with pytest.raises(StorageError), hold():
            pass


@pytest.mark.parametrize("env", [{}, {"VERLSTACK_CACHE": "~no-such-user/c"}])
def test_nobody_is_at_home(monkeypatch, env):
    def unknown(*_):
        raise KeyError("uid not found")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(StorageError):
        Cache.from_environment(env)


def test_only_what_is_ours_is_swept(tmp_path):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "thesis").write_text("somebody's own folder of that name")
    with Cache(tmp_path).use():
        pass
    assert (tmp_path / "tmp" / "thesis").exists()


def test_a_link_is_not_swept_through(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis").write_text("x")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "verlstack-tmp").symlink_to(tmp_path / "home")
    with pytest.raises(StorageError), Cache(tmp_path / "cache").use():
        pass
    assert (tmp_path / "home" / "thesis").exists()
