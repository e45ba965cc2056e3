"""Run one program in an unpacked image, in namespaces of its own and without rights; `unpacked` starts this file.

Three processes: the outer one waits, and dies with verlstack; the first one inside makes the place, waits for every
process that is left to it, and dies with the outer one; the program is its child. When the first one ends, the kernel
kills whatever else runs in its PID namespace, so nothing outlives verlstack, whatever the image does.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any, NoReturn

CANNOT_ENTER, CANNOT_START = 125, 127  # exit statuses, as `docker run` has them
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
# What the OCI runtime-spec calls "Dev symbolic links"
_LINKS = {
    "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}  # fmt: skip
# What tells of the machine or changes it is closed to uid 0 too: as engines do (Docker's default, oci/defaults.go).
_HIDDEN = ("acpi", "kcore", "keys", "latency_stats", "sched_debug", "scsi", "timer_list")
_READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger")
# sched.h, sys/mount.h, sys/prctl.h, linux/capability.h, linux/keyctl.h
_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_DETACH = 2
_PDEATHSIG, _DUMPABLE, _BOUND_DROP, _NO_NEW_PRIVS = 1, 4, 24, 38
_CAPABILITIES_3 = 0x20080522
_JOIN_SESSION_KEYRING = 1
_CALLS = {"x86_64": (155, 250), "aarch64": (41, 219)}  # pivot_root and keyctl, which glibc does not wrap
_UP = struct.pack("16sH14x", b"lo", 0x1 | 0x8 | 0x40)  # SIOCSIFFLAGS with IFF_UP | IFF_LOOPBACK | IFF_RUNNING
_SIOCSIFFLAGS = 0x8914  # netdevice(7); `ip` is not on every machine

_libc = ctypes.CDLL(None, use_errno=True)


def main(order: dict[str, Any]) -> int:
    """Run `words` in the folder `root` as `user` with `environment`, and return the exit status (128 + a signal).

    Args:
        order: those four, and the pid of the `parent` with which all of it ends.
    """
    _die_with_parent()
    if os.getppid() != order["parent"]:  # it ended before we asked to be told
        return CANNOT_ENTER
    os.setsid()  # no terminal: else the image could type into the user's shell (TIOCSTI)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    alive, held = os.pipe()
    mapped = os.geteuid() != 0
    _namespaces(order["user"] if mapped else None)
    first = os.fork()
    if first == 0:
        os.close(held)
        _ended(_first, order, mapped, alive)
    os.close(alive)
    return _status(os.waitpid(first, 0)[1])


def _namespaces(user: int | None) -> None:
    """Leave the namespaces of the machine; who is not root there is called `user` in a user namespace."""
    uid, gid = os.geteuid(), os.getegid()
    apart = _NEWNS | _NEWIPC | _NEWPID | _NEWNET
    _call("unshare", apart if user is None else apart | _NEWUSER)
    if user is not None:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {uid} 1"), ("gid_map", f"{user} {gid} 1")):
            Path("/proc/self", name).write_text(text, encoding="ascii")


def _first(order: dict[str, Any], mapped: bool, alive: int) -> int:  # noqa: FBT001 - private
    """PID 1: make the place, lose every right, start the program, and reap until it ends."""
    root = Path(order["root"])
    _mount(None, Path("/"), None, _REC | _PRIVATE)
    _mount(root, root, None, _BIND | _REC)
    _proc(root / "proc", _devices(root / "dev"))
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, _UP)
    _leave_for(root)
    _drop(None if mapped else order["user"])
    _prctl(_DUMPABLE, 0)  # /proc/1/exe is the machine's python, which may be the user's own to write
    _die_with_parent()  # after _drop, which would undo it
    if select.select([alive], [], [], 0)[0]:  # the outer one has ended already
        return CANNOT_ENTER
    os.close(alive)
    child = os.fork()
    if child == 0:
        _ended(_start, order["words"], order["environment"])
    while True:
        pid, status = os.wait()
        if pid == child:
            return _status(status)


def _start(words: list[str], environment: dict[str, str]) -> NoReturn:
    for one in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(one, signal.SIG_DFL)  # Python ignores them, and what it starts would, too
    try:
        os.execvpe(words[0], words, environment)  # noqa: S606 - no shell is wanted
    except OSError as e:
        _say(f"the image does not start {words[0]}: {e.strerror}")
        os._exit(CANNOT_START)


def _devices(dev: Path) -> Path:
    """Six harmless devices, terminals and shared memory of its own; returns the null device."""
    _mount("tmpfs", dev, "tmpfs", _NOSUID, "mode=0755")
    for name in DEVICES:
        (dev / name).touch()
        _mount(Path("/dev", name), dev / name, None, _BIND)
    for name, target in _LINKS.items():
        (dev / name).symlink_to(target)
    (dev / "shm").mkdir()
    _mount("tmpfs", dev / "shm", "tmpfs", _NOSUID | _NODEV, "mode=1777")
    (dev / "pts").mkdir()
    _mount("devpts", dev / "pts", "devpts", _NOSUID | _NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
    return dev / "null"


def _proc(proc: Path, null: Path) -> None:
    """The /proc of the new PID namespace, without what is the machine's."""
    flags = _NOSUID | _NODEV | _NOEXEC
    _mount("proc", proc, "proc", flags)
    for name in _HIDDEN:
        if (proc / name).is_dir():
            _mount("tmpfs", proc / name, "tmpfs", _RDONLY | flags)
        elif (proc / name).exists():
            _mount(null, proc / name, None, _BIND)
    for name in _READ_ONLY:
        if (proc / name).exists():
            _mount(proc / name, proc / name, None, _BIND | _REC)
            _mount(None, proc / name, None, _REMOUNT | _BIND | _RDONLY | flags)


def _leave_for(root: Path) -> None:
    """Make `root` the root, and unmount all else: no capability leads back, as it would out of a chroot."""
    calls = _CALLS.get(os.uname().machine)
    if calls is None:
        raise OSError(errno.ENOSYS, f"not known for {os.uname().machine}", "pivot_root")
    os.chdir(root)
    _call("syscall", calls[0], b".", b".", name="pivot_root")  # the old root lies on the new one (pivot_root(2), NOTES)
    _call("umount2", b".", _DETACH)
    os.chdir("/")
    _libc.syscall(calls[1], _JOIN_SESSION_KEYRING, None)  # the user's keys; where that is forbidden, so is reading them


def _drop(user: int | None) -> None:
    """Become `user` (None: stay who we are) without any capability, and never get one back."""
    capability = 0
    while _libc.prctl(_BOUND_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    _call("capset", struct.pack("=Ii", _CAPABILITIES_3, 0), bytes(24))  # ambient ones go with the permitted
    _prctl(_NO_NEW_PRIVS, 1)


def _die_with_parent() -> None:
    _prctl(_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    _call("prctl", option, value, 0, 0, 0)


def _mount(source: Path | str | None, target: Path, kind: str | None, flags: int, data: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, data)]
    _call("mount", words[0], words[1], words[2], ctypes.c_ulong(flags), words[3], name=f"mount {target}")


def _call(function: str, *arguments: Any, name: str = "") -> None:
    if _libc[function](*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name or function)


def _ended(run: Any, *arguments: Any) -> NoReturn:
    """Run the rest of a forked process, which must never go on with what its parent was doing."""
    status = CANNOT_ENTER
    try:
        status = run(*arguments)
    except OSError as e:
        _say_cannot_enter(e)
    finally:
        os._exit(status)


def _status(waited: int) -> int:
    code = os.waitstatus_to_exitcode(waited)
    return code if code >= 0 else 128 - code


def _say_cannot_enter(e: OSError) -> None:
    todo = "" if os.geteuid() == 0 else "; if this machine forbids user namespaces, run as root or use an engine"
    _say(f"the image cannot be entered: {e.filename or 'a call'}: {e.strerror}{todo}")


def _say(line: str) -> None:
    os.write(2, f"verlstack: {line}\n".encode(errors="replace"))


if __name__ == "__main__":
    try:
        sys.exit(main(json.loads(sys.argv[1])))
    except OSError as e:
        _say_cannot_enter(e)
        sys.exit(CANNOT_ENTER)
