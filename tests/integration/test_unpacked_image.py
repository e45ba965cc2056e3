"""Programs of an image that is unpacked: what they cannot reach, as root and as an ordinary user, and that they end."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support import python_root
from verlstack import enter_worker
from verlstack.unpacked import OUTSIDE, STRANGER, Root

PATIENCE = 60  # seconds; a hang is a failure, whatever the machine's load
ORDINARY = 12345
# What an image does to get out of a chroot; the root of the machine is known by the file that the test names.
ESCAPES = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
def climb():
    os.makedirs("/tmp/x", exist_ok=True)
    os.chroot("/tmp/x")
    for _ in range(40):
        os.chdir("..")
    os.chroot(".")
def again():
    if libc.unshare(0x10000000):  # a user namespace within ours, where we would have every capability
        raise PermissionError
    climb()
def of_pid_1():
    os.chroot("/proc/1/root")
def unmount():
    if libc.umount2(b"/", 2) or libc.umount2(b"/proc/sys", 2):
        raise PermissionError
try:
    {way}()
except OSError:
    pass
print("out" if os.path.exists(sys.argv[1]) else "in")
"""


def outside_users():
    return ["root", "ordinary"] if os.geteuid() == 0 else ["ordinary"]


@pytest.fixture(params=outside_users())
def outside(request):
    """Words that make a command run as such a user of the machine."""
    if request.param == "root" or os.geteuid() != 0:
        return []
    if not shutil.which("setpriv"):
        pytest.skip("setpriv is not installed")
    return ["setpriv", f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups"]


@pytest.fixture(scope="module")
def folder():
    """An image with Python, and a worker, which an ordinary user can reach; pytest's own folders he cannot."""
    with tempfile.TemporaryDirectory(prefix="verlstack-root-") as name:
        Path(name).chmod(0o755)
        shutil.copy(enter_worker.__file__, name)
        root = python_root.make(Path(name, "root"))
        yield root


def words(folder, outside, code, *arguments, user=STRANGER):
    """The command, with a worker and an interpreter that this user of the machine can reach."""
    root = Root(folder=folder, environment=python_root.environment())
    found = root.command([python_root.PYTHON, "-c", code, *arguments], user=user)
    found[found.index(enter_worker.__file__)] = str(folder.parent / "enter_worker.py")
    if outside and subprocess.run([*outside, found[0], "-c", ""], capture_output=True).returncode:
        found[0] = shutil.which("python3", path=OUTSIDE["PATH"]) or pytest.skip("no Python that a stranger may run")
    return [*outside, *found]


def inside(folder, outside, code, *arguments, user=STRANGER):
    """What a program prints in there."""
    done = subprocess.run(
        words(folder, outside, code, *arguments, user=user),
        env=OUTSIDE, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    if "cannot be entered: unshare" in done.stderr:
        pytest.skip("this machine forbids user namespaces")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("user", [0, STRANGER])
@pytest.mark.parametrize("way", ["climb", "again", "of_pid_1", "unmount"])
def test_no_way_out(folder, outside, way, user):
    marker = Path(folder.parent, "enter_worker.py")
    assert inside(folder, outside, ESCAPES.replace("{way}", way), str(marker), user=user) == "in\n"


@pytest.mark.parametrize("user", [0, STRANGER])
def test_without_rights(folder, outside, user):
    code = (
        "import os; print(os.getuid(), os.getgid(), os.getsid(0), *"
        "[line.split()[1] for line in open('/proc/self/status') if line.startswith(('Cap', 'NoNewPrivs', 'Groups'))"
        " and len(line.split()) > 1 and not line.startswith('Groups')])"
    )
    assert inside(folder, outside, code, user=user).split() == [str(user), str(user), "0", *["0" * 16] * 5, "1"]


def test_signals_are_as_a_shell_gives_them(folder, outside):
    code = "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('SigIgn')])"
    bits = int(inside(folder, outside, "import signal; " + code).split("'")[1], 16)
    python_itself = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
    of_the_c_library = 1 << 31 | 1 << 32  # signals 32 and 33, which no program can set: as whoever started us had them
    assert bits & ~of_the_c_library == python_itself


@pytest.mark.parametrize("user", [0, STRANGER])
def test_of_the_machine_there_are_six_devices_and_nothing_to_change(folder, outside, user):
    code = (
        "import os, socket, sys\n"
        "print(*sorted(os.listdir('/dev')), *sorted(os.listdir('/dev/pts')))\n"
        "for name in 'null', 'zero', 'full', 'random', 'urandom', 'ptmx', 'shm/x':\n"
        "    os.close(os.open('/dev/' + name, os.O_RDWR | (os.O_CREAT if 'shm' in name else 0)))\n"
        "for name in '/dev/tty', '/proc/1/exe', '/proc/1/root/etc', '/proc/sys/kernel/core_pattern':\n"
        "    try: os.open(name, os.O_RDWR if 'sys' in name or 'tty' in name else 0)\n"
        "    except OSError: pass\n"
        "    else: print(name)\n"
        "print([name for name in ('keys', 'timer_list') if open('/proc/' + name).read()])\n"
        "print([line.split()[4] for line in open('/proc/self/mountinfo') if ' /proc/' in line and ' ro,' not in line"
        " and ' /null ' not in line])\n"
        "print(*sorted(name for name in os.listdir('/proc') if name.isdecimal()))"
    )
    devices, told, changeable, processes = inside(folder, outside, code, user=user).splitlines()
    assert devices == "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero ptmx"
    assert (told, changeable, processes) == ("[]", "[]", "1 2")


def test_the_machines_own_root_is_not_mounted_there(folder, outside):
    code = "print(*[line.split()[4] for line in open('/proc/self/mountinfo')])"
    points = inside(folder, outside, code).split()
    assert [point for point in points if not point.startswith(("/dev", "/proc"))] == ["/"]


def test_without_the_users_terminal(folder, outside):
    """Who has it could type into the shell that it belongs to."""
    code = "import os\ntry: os.open('/dev/tty', 2)\nexcept OSError as e: print('none', e.errno)\nelse: print('has it')"
    text = json.dumps(words(folder, outside, code)).replace(str(os.getpid()), "PARENT")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", STARTER, text])  # noqa: S606 - no shell is wanted
    said = b""
    with contextlib.suppress(OSError):  # how a terminal says that nobody is there any more
        while piece := os.read(terminal, 1000):
            said += piece
    os.close(terminal)
    os.waitpid(pid, 0)
    assert said.split() == [b"none", b"6"]


def test_the_ranks_of_one_machine_meet_on_localhost(folder, outside):
    code = (
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(server.getsockname()).sendall(b'met')\n"
        "print(server.accept()[0].recv(9), len(socket.if_nameindex()))"
    )
    assert inside(folder, outside, code) == "b'met' 1\n"


@pytest.mark.parametrize(
    ("code", "status"),
    [("raise SystemExit(7)", 7), ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 128 + signal.SIGSEGV)],
)
def test_the_exit_status_is_the_programs(folder, outside, code, status):
    done = subprocess.run(words(folder, outside, code), env=OUTSIDE, capture_output=True, timeout=PATIENCE)
    assert done.returncode == status, done.stderr


def test_what_is_left_to_it_is_reaped_and_ends_with_the_program(folder, outside):
    code = (
        "import os\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork(): os._exit(0)\n"  # now nobody waits for the grandchild but PID 1
        "    while True: pass\n"
        "os.wait()\n"
        "print('ends')"
    )
    assert inside(folder, outside, code) == "ends\n"


def test_no_program(folder):
    root = Root(folder=folder, environment={})
    done = subprocess.run(root.command(["/none"], user=STRANGER), env=OUTSIDE, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        127,
        "verlstack: the image does not start /none: No such file or directory\n",
    )


def test_no_folder(tmp_path):
    root = Root(folder=tmp_path / "none", environment={})
    done = subprocess.run(root.command(["/x"], user=STRANGER), env=OUTSIDE, capture_output=True, text=True)
    assert done.returncode == 125
    assert "cannot be entered: mount " in done.stderr
    assert "Traceback" not in done.stderr


# It forgets who its parent is, heeds no signal, and leaves another process behind.
STUBBORN = """
import ctypes, os, signal
ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
for one in signal.SIGTERM, signal.SIGINT, signal.SIGHUP:
    signal.signal(one, signal.SIG_IGN)
held = os.open("/tmp/alive", os.O_WRONLY)
if os.fork() == 0:
    os.setsid()
os.write(held, b"x")
while True:
    signal.pause()
"""
STARTER = """
import json, os, signal, sys
from pathlib import Path
from verlstack import shell
signal.signal(signal.SIGTERM, signal.default_int_handler)
words = json.loads(sys.argv[1].replace("PARENT", str(os.getpid())))
try:
    shell.follow(words, env={}, cwd=Path("/"), each=print)
except KeyboardInterrupt:
    pass
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name)
def test_all_of_it_ends_when_verlstack_does_however_it_does(folder, outside, how):
    alive = folder / "tmp" / "alive"
    alive.unlink(missing_ok=True)
    os.mkfifo(alive, 0o666)
    alive.chmod(0o666)
    text = json.dumps(words(folder, outside, STUBBORN)).replace(str(os.getpid()), "PARENT")
    reader = os.open(alive, os.O_RDONLY | os.O_NONBLOCK)
    with subprocess.Popen([sys.executable, "-c", STARTER, text], start_new_session=True) as verlstack:
        try:
            for _ in range(2):  # both processes are up
                assert select.select([reader], [], [], PATIENCE)[0], "it does not start"
                assert os.read(reader, 1) == b"x"
            verlstack.send_signal(how)
            assert select.select([reader], [], [], PATIENCE)[0], "it runs on"
            assert os.read(reader, 1) == b""  # nobody has the other end any more
        finally:
            verlstack.kill()
            os.close(reader)
