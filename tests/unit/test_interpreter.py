"""The search for Python 3.10, and the tree it becomes."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from verlstack import shell
from verlstack.base import elf, interpreter, python_tree
from verlstack.content import Reader
from verlstack.errors import BaseImageError


def answer(stdout="", code=0):
    return shell.Result(args=(), returncode=code, stdout=stdout, stderr="")


def facts(prefix, version="3.10.13", **more):
    base = {
        "implementation": "cpython", "release": "final", "version": [int(n) for n in version.split(".")],
        "prefix": str(prefix), "lacks": [], "shared": True, "build_dir": "/tmp/python-build.1/Python-3.10.13",
    }  # fmt: skip
    return answer(json.dumps(base | more))


def make_prefix(folder: Path) -> Path:
    for name in ("bin/python3.10", "include/python3.10/Python.h", "lib/python3.10/os.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    return folder


class Machine:
    """Stands in for shell.run: programs by path."""

    def __init__(self, programs):
        self.programs = programs
        self.calls = []

    def __call__(self, words, *, env=None, timeout=None):
        self.calls.append((tuple(map(str, words)), dict(env)))
        program = str(words[0])
        name = program if program in self.programs else Path(program).name
        if name not in self.programs:
            raise shell.ProgramMissingError("missing")
        return self.programs[name]


def test_the_newest_patch_release_wins(tmp_path):
    old, new = make_prefix(tmp_path / "versions" / "3.10.9"), make_prefix(tmp_path / "versions" / "3.10.13")
    machine = Machine({
        f"{old}/bin/python3.10": facts(old, "3.10.9"),
        f"{new}/bin/python3.10": facts(new, "3.10.13"),
        "uv": answer(f"{old}/bin/python3.10\n"),
    })  # fmt: skip
    found = interpreter.find("3.10", tree=None, env={"PYENV_ROOT": str(tmp_path)}, run=machine)
    assert (found.version, found.prefix, found.shared) == ("3.10.13", new, True)
    assert found.executable == new / "bin/python3.10"


def test_an_explicit_tree_is_the_only_place_looked_at(tmp_path):
    tree = make_prefix(tmp_path / "tree")
    machine = Machine({f"{tree}/bin/python3.10": facts(tree, "3.10.1")})
    assert interpreter.find("3.10", tree=tree, env={}, run=machine).version == "3.10.1"
    assert len(machine.calls) == 1


def test_a_tree_that_is_none_is_named(tmp_path):
    with pytest.raises(BaseImageError, match="does not run") as caught:
        interpreter.find("3.10", tree=tmp_path, env={}, run=Machine({}))
    assert caught.value.where == str(tmp_path)


def test_uv_is_asked_without_pyenvs_shims_and_virtual_environments():
    machine = Machine({"uv": answer(code=2)})
    env = {"PATH": "/x/shims:/nowhere", "VIRTUAL_ENV": "/venv"}
    with pytest.raises(BaseImageError):
        interpreter.find("3.10", tree=None, env=env, run=machine)
    words, uv_env = machine.calls[0]
    assert words[0].endswith("/uv")
    assert "--no-python-downloads" in words
    assert uv_env == {"PATH": "/nowhere"}


def test_pyenv_is_asked_for_its_root(tmp_path):
    prefix = make_prefix(tmp_path / "versions" / "3.10.4")
    machine = Machine({"pyenv": answer(f"{tmp_path}\n"), f"{prefix}/bin/python3.10": facts(prefix, "3.10.4")})
    assert interpreter.find("3.10", tree=None, env={"PATH": ""}, run=machine).version == "3.10.4"


def test_a_virtual_environments_python_leads_to_the_real_one(tmp_path):
    real, venv = make_prefix(tmp_path / "real"), make_prefix(tmp_path / "venv")
    machine = Machine({f"{venv}/bin/python3.10": facts(real), f"{real}/bin/python3.10": facts(real)})
    env = {"PATH": f"{venv}/bin:{real}/bin"}
    assert interpreter.find("3.10", tree=None, env=env, run=machine).executable == real / "bin/python3.10"


@pytest.mark.parametrize(
    ("probe", "reason"),
    [
        ({"lacks": ["lzma", "ssl"]}, "lacks the modules lzma, ssl"),
        ({"version": [3, 11, 2]}, "is 3.11.2"),
        ({"release": "candidate"}, "candidate"),
        ({"implementation": "pypy"}, "pypy"),
        ({"prefix": "/nowhere"}, "Python.h"),
    ],
)
def test_an_unfit_python_is_passed_over_with_its_reason(tmp_path, probe, reason):
    prefix = make_prefix(tmp_path / "p")
    said = answer(json.dumps(json.loads(facts(prefix).stdout) | probe))
    machine = Machine({f"{prefix}/bin/python3.10": said})
    with pytest.raises(BaseImageError) as caught:
        interpreter.find("3.10", tree=None, env={"PATH": f"{prefix}/bin"}, run=machine)
    assert reason in caught.value.where
    assert "--python-tree" in caught.value.todo


def test_a_shim_that_fails_or_talks_nonsense_is_passed_over(tmp_path):
    prefix = make_prefix(tmp_path)
    for said in (answer(code=127), answer("hello")):
        machine = Machine({f"{prefix}/bin/python3.10": said})
        with pytest.raises(BaseImageError, match=r"no usable Python 3\.10"):
            interpreter.find("3.10", tree=None, env={"PATH": f"{prefix}/bin"}, run=machine)


def make_elf(*, needed=(), soname="", runpath="", tail=b""):
    """A file with one LOAD and one DYNAMIC segment; `tail` stands behind the string table."""
    table, entries = bytearray(b"\0"), []
    for tag, text in (
        [(1, n) for n in needed] + ([(14, soname)] if soname else []) + ([(29, runpath)] if runpath else [])
    ):
        entries.append((tag, len(table)))
        table += text.encode() + b"\0"
    start, size = 64 + 2 * 56, (len(entries) + 2) * 16
    dynamic = b"".join(struct.pack("<qQ", *one) for one in [*entries, (5, start + size), (0, 0)])
    data = dynamic + bytes(table) + tail
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, start + len(data), start + len(data), 4096)
    dyn = struct.pack("<IIQQQQQQ", 2, 6, start, start, start, size, size, 8)
    return header + load + dyn + data


def test_elf_facts_are_read_without_binutils():
    data = make_elf(needed=("libc.so.6", "libz.so.1"), soname="libme.so.1", runpath="/a/lib")
    assert elf.needed(data) == ("libc.so.6", "libz.so.1")
    assert elf.soname(data) == "libme.so.1"
    assert [text for _, text in elf.run_paths(data)] == [b"/a/lib"]
    for nothing in (b"", b"text", data[:100], b"\x7fELF\x01\x01" + data[6:]):
        assert elf.needed(nothing) == ()
    assert elf.soname(b"#!/bin/sh") is None


@pytest.fixture
def tree(tmp_path):
    prefix = make_prefix(tmp_path / "some" / "where" / "versions" / "3.10.13")
    files = {
        "bin/python3.10": make_elf(runpath=f"{prefix}/lib", tail=f"\0{prefix}\0".encode()),
        "bin/python3.10-config": f"#!/bin/sh\nprefix={prefix}\n".encode(),
        "bin/pip": b"#!" + str(prefix).encode(),
        "lib/libpython3.10.so.1.0": make_elf(needed=("libz.so.1", "libm.so.6"), soname="libpython3.10.so.1.0"),
        "lib/python3.10/_sysconfigdata__x.py": f"D = ['{prefix}/lib', '/tmp/python-build.1/Python-3.10.13']\n".encode(),
        "lib/python3.10/json/__init__.py": b"pass\n",
        "lib/python3.10/test/test_x.py": b"",
        "lib/python3.10/unittest/test/x.py": b"",
        "lib/python3.10/unittest/mock.py": b"",
        "lib/python3.10/tkinter/__init__.py": b"",
        "lib/python3.10/turtle.py": b"",
        "lib/python3.10/ensurepip/__init__.py": b"",
        "lib/python3.10/site-packages/numpy/__init__.py": b"",
        "lib/python3.10/__pycache__/os.cpython-310.pyc": b"",
        "lib/python3.10/config-3.10-x86_64-linux-gnu/Makefile": b"",
        "lib/python3.10/lib-dynload/_ssl.cpython-310-x86_64-linux-gnu.so": make_elf(
            needed=("libssl.so.3", "libpython3.10.so.1.0", "ld-linux-x86-64.so.2")
        ),
        "lib/python3.10/lib-dynload/_tkinter.cpython-310-x86_64-linux-gnu.so": make_elf(needed=("libtk8.6.so",)),
        "lib/python3.10/lib-dynload/nis.cpython-310-x86_64-linux-gnu.so": make_elf(needed=("libnsl.so.2",)),
    }
    for name, data in files.items():
        (prefix / name).parent.mkdir(parents=True, exist_ok=True)
        (prefix / name).write_bytes(data)
    (prefix / "lib/libpython3.10.so").symlink_to("libpython3.10.so.1.0")
    (prefix / "bin/python3.10").chmod(0o700)
    return interpreter.Interpreter(
        executable=prefix / "bin/python3.10",
        prefix=prefix,
        version="3.10.13",
        shared=True,
        build_dir="/tmp/python-build.1/Python-3.10.13",
    )


def read(entry):
    with Reader() as reader:
        return reader.read(entry.content)


def test_the_layer_holds_what_runs_and_nothing_else(tree):
    entries = {entry.path: entry for entry in python_tree.layer_entries(tree, "3.10")}
    lib = "usr/local/lib/python3.10"
    assert sorted(entries) == sorted([
        "usr/local/bin/python", "usr/local/bin/python3", "usr/local/bin/python3.10", "usr/local/bin/python3.10-config",
        "usr/local/include/python3.10/Python.h", "usr/local/lib/libpython3.10.so", "usr/local/lib/libpython3.10.so.1.0",
        f"{lib}/_sysconfigdata__x.py", f"{lib}/json/__init__.py", f"{lib}/os.py", f"{lib}/site-packages",
        f"{lib}/unittest/mock.py", f"{lib}/lib-dynload/_ssl.cpython-310-x86_64-linux-gnu.so",
        "usr/lib/x86_64-linux-gnu/libpython3.10.so.1.0",
    ])  # fmt: skip
    assert entries["usr/local/bin/python3.10"].mode == 0o755
    assert entries["usr/local/include/python3.10/Python.h"].mode == 0o644
    assert entries["usr/local/lib/libpython3.10.so"].link == "libpython3.10.so.1.0"
    assert entries["usr/lib/x86_64-linux-gnu/libpython3.10.so.1.0"].link == "/usr/local/lib/libpython3.10.so.1.0"


def test_no_path_of_the_machine_stays(tree):
    contents = {e.path: read(e) for e in python_tree.layer_entries(tree, "3.10") if e.content}
    assert b"prefix=/usr/local\n" in contents["usr/local/bin/python3.10-config"]
    assert contents["usr/local/lib/python3.10/_sysconfigdata__x.py"] == b"D = ['/usr/local/lib', '/usr/src']\n"
    machine = str(tree.prefix.parent).encode()
    assert not [path for path, data in contents.items() if machine in data or b"python-build" in data]


def test_a_binary_keeps_its_length_and_the_tails_of_its_strings(tree):
    before = (tree.prefix / "bin/python3.10").read_bytes()
    entries = {e.path: e for e in python_tree.layer_entries(tree, "3.10")}
    after = read(entries["usr/local/bin/python3.10"])
    assert len(after) == len(before)
    [(_, run_path)] = elf.run_paths(after)
    assert Path(run_path.decode()) == Path("/usr/local/lib")
    # CPython's version is the tail of its prefix: the linker stores it once.
    assert after.endswith(b"/3.10.13\0")
    assert after.index(b"3.10.13\0") == before.index(b"3.10.13\0", before.index(b"\0" + bytes(tree.prefix) + b"\0"))


def at(prefix):
    executable = prefix / "bin/python3.10"
    return interpreter.Interpreter(executable=executable, prefix=prefix, version="3.10.12", shared=False)


def test_a_standard_prefix_is_left_alone():
    plain = at(Path("/usr"))
    assert python_tree._relocated(b"#!/usr/bin/env", plain) == b"#!/usr/bin/env"
    short = at(Path("/p/q"))
    binary = make_elf(runpath="/p/q/lib")
    assert python_tree._relocated(binary, short) == binary
    assert python_tree._relocated(b"#!/p/q/bin", short) == b"#!/usr/local/bin"


def test_a_tree_without_a_standard_library_is_refused(tmp_path):
    with pytest.raises(BaseImageError, match="standard library"):
        python_tree.layer_entries(at(tmp_path), "3.10")


def test_the_venv_skeleton():
    entries = {entry.path: entry for entry in python_tree.venv_entries("/usr/local/bin", "3.10.13")}
    assert read(entries["opt/verl/pyvenv.cfg"]) == (
        b"home = /usr/local/bin\ninclude-system-site-packages = false\nversion = 3.10.13\n"
    )
    links = {path: entry.link for path, entry in entries.items() if entry.kind == "symlink"}
    assert links == {
        "opt/verl/bin/python": "/usr/local/bin/python3.10",
        "opt/verl/bin/python3": "python",
        "opt/verl/bin/python3.10": "python",
        "opt/verl/lib64": "lib",
    }
    assert entries["opt/verl/lib/python3.10/site-packages"].kind == "dir"


def test_libraries_from_outside_the_tree(tree):
    assert python_tree.shared_libraries(tree, "3.10") == {"libz.so.1", "libm.so.6", "libssl.so.3"}


def test_debian_packages_of_libraries():
    said = (
        "libssl3:amd64: /usr/lib/x86_64-linux-gnu/libssl.so.3\n"
        "zlib1g:amd64: /lib/x86_64-linux-gnu/libz.so.1\n"
        "lib32z1: /usr/lib32/libz.so.1\n"
        "diversion by libfoo from: /lib/x86_64-linux-gnu/libz.so.1\n"
    )
    asked = []
    packages = python_tree.debian_packages(
        {"libz.so.1", "libssl.so.3"}, lambda words: asked.append(words) or answer(said)
    )
    assert packages == ["libssl3", "zlib1g"]
    assert asked == [("dpkg-query", "--search", "*/libssl.so.3", "*/libz.so.1")]
    with pytest.raises(BaseImageError, match=r"libffi\.so\.8"):
        python_tree.debian_packages({"libffi.so.8"}, lambda words: answer("", 1))
