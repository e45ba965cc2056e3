"""Bytecode: the same bytes whatever else the process holds, and code that Python loads without its source."""

import importlib.machinery
import importlib.util
import io
import marshal
import random
import struct
import sys
import types
from pathlib import Path

import pytest

from verlstack import bytecode, pyc_worker, tar
from verlstack.content import Inline
from verlstack.errors import BaseImageError
from verlstack.pyc_worker import compile_source

SOURCE = b'''
"""A module with every kind of constant that marshal knows."""
import os, sys as system
from collections import OrderedDict as Ordered

NUMBERS = (1, 300, 2**70, -5, 1.5, 2j, True, None, ..., b"bytes", "text with blanks", "name")
NESTED = ((1, ("a", (b"c", 2.5))), "name")

class Thing:
    """A class."""
    __slots__ = ("alpha", "beta")

    def method(self, alpha, /, beta, *args, gamma=1_000_000, **kwargs):
        cell = alpha
        def inner(delta):
            nonlocal cell
            cell += delta
            return [x for x in args if x in {1, 2, 300}], {"alpha": cell}
        try:
            return inner
        except* (ValueError,) as group:
            raise RuntimeError("alpha beta") from group
        finally:
            system.stdout.write("name")

async def other(name: "str" = "name") -> "int":
    async with name as alpha:
        yield await alpha
    lambda: (name, alpha)
''' if sys.version_info >= (3, 11) else b"x = 1\n"  # fmt: skip
PATH = "/opt/verl/lib/python3.10/site-packages/demo/thing.py"


def library(count):
    """Sources of the standard library: real code, enough of it to intern nearly every common name."""
    folder = Path(importlib.util.__file__).parents[1]
    return [p.read_bytes() for p in sorted(folder.glob("*.py"))[:count]]


def everything(value):
    """All objects below a code object; they live as long as the list. co_lnotab is made afresh and marks nothing."""
    if isinstance(value, types.CodeType):
        value = (value, *(getattr(value, n) for n in sorted(dir(value)) if n.startswith("co_") and n != "co_lnotab"))
        return [value, *(x for item in value[1:] for x in everything(item))]
    return [value, *(x for item in value for x in everything(item))] if isinstance(value, tuple) else [value]


def test_the_source_is_worth_testing():
    assert len(compile_source(SOURCE, PATH)) > 1000


def test_every_object_is_held_while_it_is_marshalled():
    """Then FLAG_REF is set on each, whoever else holds it too; that they differ otherwise shows what it is good for."""
    plain = marshal.dumps(compile(SOURCE, PATH, "exec", dont_inherit=True, optimize=0))
    code = compile(SOURCE, PATH, "exec", dont_inherit=True, optimize=0)
    held = everything(code)
    assert compile_source(SOURCE, PATH)[16:] == marshal.dumps(code) != plain
    assert held


def test_same_bytes_whatever_else_the_process_holds():
    first = compile_source(SOURCE, PATH)
    words = [
        "alpha",
        "beta",
        "gamma",
        "delta",
        "inner",
        "cell",
        "name",
        "Thing",
        "other",
        "system",
        "Ordered",
        "method",
    ]
    held = [
        [sys.intern(word) for word in words],
        everything(compile(SOURCE, PATH, "exec")),
        "text with blanks",
        b"bytes",
    ]
    assert compile_source(SOURCE, PATH) == first
    names = types.SimpleNamespace(**dict.fromkeys(words, PATH))
    assert compile_source(SOURCE, PATH) == first
    del held, names
    assert compile_source(SOURCE, PATH) == first


def test_same_bytes_after_five_hundred_other_files():
    first = compile_source(SOURCE, PATH)
    others = library(60)
    kept = [compile(source, "x", "exec", dont_inherit=True) for source in others[:10]]
    for n in range(500):
        compile_source(b"alpha = beta = 'name'\ndef method%d(gamma): return gamma, 1_000_000" % n, f"/x{n}.py")
    for source in others:
        compile_source(source, "/x.py")
    assert compile_source(SOURCE, PATH) == first
    assert kept


def test_same_bytes_in_any_order():
    sources = library(40)
    first = [compile_source(source, f"/{n}.py") for n, source in enumerate(sources)]
    order = list(range(len(sources)))
    random.Random(1).shuffle(order)  # noqa: S311 - an order, not a secret
    again = {n: compile_source(sources[n], f"/{n}.py") for n in order}
    assert [again[n] for n in range(len(sources))] == first
    assert all(first)


def test_the_path_is_in_the_bytecode_and_nothing_else_of_this_machine():
    pyc = compile_source(SOURCE, PATH)
    assert PATH.encode() in pyc
    assert str(Path.cwd()).encode() not in pyc


def test_header_says_unchecked_hash():
    pyc = compile_source(SOURCE, PATH)
    assert pyc[:4] == importlib.util.MAGIC_NUMBER
    assert pyc[4:8] == b"\x01\0\0\0"  # PEP 552: bit 0 hash-based, bit 1 (check_source) not set
    assert pyc[8:16] == importlib.util.source_hash(SOURCE)


def test_python_loads_it_without_and_beside_its_source(tmp_path):
    source = b"import math\nclass A:\n    'doc'\n"
    source += b"    def f(self, x=3): return [math.floor(x), self.__doc__]\nvalue = A().f(4.5)\n"
    pyc = compile_source(source, str(tmp_path / "gone.py"))
    (tmp_path / "gone.pyc").write_bytes(pyc)
    loader = importlib.machinery.SourcelessFileLoader("gone", str(tmp_path / "gone.pyc"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gone", loader))
    loader.exec_module(module)
    assert module.value == [4, "doc"]
    assert marshal.loads(pyc[16:]).co_filename == str(tmp_path / "gone.py")


def test_the_source_is_not_looked_at_again(tmp_path):
    """Unchecked means: an edited source does not count. That is why layers carry source and bytecode together."""
    path = tmp_path / "mod.py"
    path.write_bytes(b"value = 'edited later'\n")
    cached = Path(importlib.util.cache_from_source(str(path)))
    cached.parent.mkdir()
    cached.write_bytes(compile_source(b"value = 'compiled'\n", str(path)))
    loader = importlib.machinery.SourceFileLoader("mod", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("mod", loader))
    loader.exec_module(module)
    assert module.value == "compiled"


@pytest.mark.parametrize(
    "source",
    [
        b"print 'Python 2'\n",
        b"{{ template }} {% endif %}\n",
        b"def f(:\n",
        b"\xff\xfe",
        b"# coding: no-such-codec\n",
        b"x = 1\0",
        b"(" * 300,
    ],
)
def test_what_does_not_compile_has_no_bytecode(source):
    assert compile_source(source, "/x.py") == b""


@pytest.mark.parametrize(
    "source", [b"", b"# only a comment\n", b"\xef\xbb\xbfx = 1\n", "# coding: latin-1\nx = 'é'\n".encode("latin-1")]
)
def test_what_compiles_has(source):
    assert compile_source(source, "/x.py")


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="hash(None) is constant from Python 3.12 on")
@pytest.mark.parametrize(
    "test", [b"x in {None, 1}", b"x in {..., 1}", b"x in {(1, None), 2}", b"[y for y in x if y in {None, 'a'}]"]
)
def test_sets_ordered_by_address_get_no_bytecode(test):
    source = b"def f(x):\n    return " + test + b"\n"
    assert compile_source(source, "/x.py") == b""
    assert compile_source(b"class A:\n    " + source.replace(b"\n", b"\n    "), "/x.py") == b""  # however deep


@pytest.mark.parametrize(
    "test", [b"x in {1, 2}", b"x in {'a', b'b', (1, 2)}", b"x in (None, 1)", b"x in {None: 1}", b"x == {None}"]
)
def test_other_sets_do(test):
    assert compile_source(b"def f(x):\n    return " + test + b"\n", "/x.py")


def serve(monkeypatch, data):
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(data)))
    monkeypatch.setattr(sys, "stdout", types.SimpleNamespace(buffer=out))
    limit = sys.getrecursionlimit()
    try:
        with pytest.raises(SystemExit) as e:
            pyc_worker.main()
    finally:
        sys.setrecursionlimit(limit)
    assert e.value.code == 0
    return out.getvalue()


def request(path, source):
    return struct.pack("<I", len(path)) + path + struct.pack("<I", len(source)) + source


def test_the_protocol(monkeypatch):
    asked = [(b"/a.py", b"x = 1\n"), (b"/b.py", b"def ("), ("/ü.py".encode(), b"")]
    answers = io.BytesIO(serve(monkeypatch, b"".join(request(*a) for a in asked)))
    for path, source in asked:
        (length,) = struct.unpack("<I", answers.read(4))
        assert answers.read(length) == compile_source(source, path.decode())
    assert answers.read() == b""


@pytest.mark.parametrize("cut", [0, 2, 6, 10, 14])
def test_a_vanished_parent_ends_the_worker(monkeypatch, cut):
    assert serve(monkeypatch, request(b"/a.py", b"x = 1\n")[:cut]) == b""


# -- the side that asks


def test_bytecode_lies_beside_its_source(in_process):
    made = in_process(Path("python"), "cpython-310").entries(
        [
            tar.file("opt/a/mod.py", Inline(data=b"x = 1\n")),
            tar.file("opt/a/bad.py", Inline(data=b"def (")),
            tar.file("opt/a/data.txt", Inline(data=b"x = 1\n")),
            tar.directory("opt/a/folder.py"),
            tar.symlink("opt/a/link.py", "mod.py"),
        ],
        progress=lambda _: None,
    )
    (only,) = made
    assert (only.path, only.mode) == ("opt/a/__pycache__/mod.cpython-310.pyc", 0o644)
    assert only.content.data == compile_source(b"x = 1\n", "/opt/a/mod.py")


def test_progress_of_bytecode_counts_sources(in_process):
    done = []
    in_process(Path("python"), "x").entries([tar.file("a.py", Inline(data=b"x = 1\n"))], progress=done.append)
    assert done == [6]


class Pipe:
    """The worker's answers, and what it was asked; stands for `shell.Pipe`."""

    def __init__(self, answers):
        self.asked, self.answers, self.ended = io.BytesIO(), io.BytesIO(answers), False

    def __call__(self, command, *, env):
        self.command, self.env = [str(word) for word in command], env
        return self

    stdin = property(lambda self: self.asked)
    stdout = property(lambda self: self.answers)

    def __exit__(self, *_):
        self.ended = True


def test_the_other_side_of_the_protocol(monkeypatch):
    pipe = Pipe(struct.pack("<I", 3) + b"pyc" + struct.pack("<I", 0))
    monkeypatch.setattr(bytecode.shell, "Pipe", pipe)
    with bytecode.Compiler(Path("/stack/python3.10"), "cpython-310") as compiler:
        assert compiler.compile("/a.py", b"x = 1\n") == b"pyc"
        assert compiler.compile("/b.py", b"def (") == b""
    assert pipe.ended
    assert pipe.asked.getvalue() == request(b"/a.py", b"x = 1\n") + request(b"/b.py", b"def (")
    assert pipe.command[0] == "/stack/python3.10"
    assert "-I" not in pipe.command  # it would ignore PYTHONHASHSEED
    assert pipe.command[-1] == pyc_worker.__file__
    assert pipe.env["PYTHONHASHSEED"] == "0"
    assert not {"PATH", "HOME", "PYTHONPATH"} & set(pipe.env)


@pytest.mark.parametrize("answer", [b"", b"\1\0"])
def test_a_dead_interpreter_is_named(monkeypatch, answer):
    monkeypatch.setattr(bytecode.shell, "Pipe", Pipe(answer))
    compiler = bytecode.Compiler(Path("/stack/python3.10"), "cpython-310")
    with pytest.raises(BaseImageError, match=r"died while compiling /a\.py") as e:
        compiler.compile("/a.py", b"x = 1\n")
    assert e.value.where == "/stack/python3.10"


def test_an_interpreter_that_dies_in_mid_answer(monkeypatch):
    monkeypatch.setattr(bytecode.shell, "Pipe", Pipe(struct.pack("<I", 100) + b"pyc"))
    compiler = bytecode.Compiler(Path("/stack/python3.10"), "cpython-310")
    with pytest.raises(BaseImageError):
        compiler.compile("/a.py", b"x = 1\n")
