"""Bytecode by the real worker under the stack's own kind of interpreter: the same bytes whatever it did before."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from verlstack.base import interpreter
from verlstack.bytecode import Compiler
from verlstack.errors import BaseImageError

WORKER = Path(sys.modules[Compiler.__module__].__file__).with_name("pyc_worker.py")
# With PYTHONHASHSEED=0 some of these names collide, so a set of them changes its order each time it is built anew; and
# nobody else uses such names, so that none is interned before a test wants it to be.
NAMES = [f"vs0_{n}" for n in range(13)]
SOURCE = f"""
KNOWN = {{{str(NAMES)[1:-1]}}}
def f(x):
    return x in {{{str(NAMES[3:9])[1:-1]}}} or x in ('vs0_4', 1.5, b'a')
""".encode()
# Compiles SOURCE in a process that holds the strings interned, or does not, or holds another compilation of it.
CHILD = """
import sys, hashlib
sys.path.insert(0, sys.argv[1])
import pyc_worker
source = sys.stdin.buffer.read()
held = {
    "nothing": lambda: None,
    "strings": lambda: [sys.intern(f"vs0_{n}") for n in range(13)],
    "one string": lambda: sys.intern(f"vs0_{5}"),
    "itself": lambda: compile(source, "/a.py", "exec"),
    "many": lambda: [compile(f"x{n} = {{'a{n}', 'b', 'c', {n}}}", "/b.py", "exec") for n in range(500)],
}[sys.argv[2]]()
print(hashlib.sha256(pyc_worker.compile_source(source, "/a.py")).hexdigest())
"""


def interpreters():
    """This one, and the default stack's where it is found."""
    found = [sys.executable]
    with contextlib.suppress(BaseImageError):
        found.append(str(interpreter.find("3.10", tree=None, env=os.environ).executable))
    return found


@pytest.mark.parametrize("python", interpreters(), ids=lambda p: Path(p).name)
def test_what_the_process_holds_does_not_show(python):
    def digest(state):
        words = [python, "-S", "-s", "-B", "-c", CHILD, str(WORKER.parent), state]
        done = subprocess.run(words, input=SOURCE, env={"PYTHONHASHSEED": "0"}, capture_output=True, check=True)
        return done.stdout

    first = digest("nothing")
    for state in ("strings", "one string", "itself", "many"):
        assert digest(state) == first, state


def test_order_of_the_files_does_not_show():
    sources = {f"/m{n}.py": SOURCE + b"y = {'vs0_1', 'm%d', 'q'}\n" % n for n in range(30)}

    def compiled(names):
        with Compiler(Path(sys.executable), sys.implementation.cache_tag) as compiler:
            return {name: compiler.compile(name, sources[name]) for name in names}

    forwards = compiled(sorted(sources))
    assert compiled(sorted(sources, reverse=True)) == forwards
    assert compiled(["/m7.py"])["/m7.py"] == forwards["/m7.py"]
    assert all(forwards.values())
