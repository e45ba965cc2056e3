"""Runs under the stack's own interpreter: source in on stdin, deterministic bytecode out on stdout.

Started by path, never imported by verlstack; needs nothing but the standard library of Python 3.10 or later.
PYTHONHASHSEED must be 0 and the environment otherwise empty. Protocol, all numbers little-endian 32 bit: length, path;
length, source → length, pyc. An empty answer means: no bytecode for this file.

A marshalled object carries FLAG_REF when its reference count is above one (CPython, Python/marshal.c, w_ref), so the
same code object gives other bytes depending on what else the process holds. Two remedies are known: a fresh process per
file, or what is done here: hold a reference to every object that marshal will see, so that the flag is always set.

A second leak of state: the compiler rebuilds a constant set, which may change its order, if interning replaced one of
its strings (Objects/codeobject.c, intern_string_constants), that is, if an equal string was interned before. Such a
source is compiled twice, with the first result alive: then every string was.
"""

import importlib.util
import marshal
import struct
import sys
import threading
import warnings
from typing import Any, BinaryIO

_CODE = type(compile("", "", "exec"))
_UNCHECKED_HASH = (1).to_bytes(4, "little")  # PEP 552: hash-based, not checked against the source at import


def _hold(value: Any, held: list[Any]) -> bool:
    """Append every object below a code object to `held`; False if some of it has no stable bytes."""
    held.append(value)
    if isinstance(value, _CODE):
        held += [value.co_code, value.co_filename, value.co_name, value.co_linetable, value.co_consts]
        held += [getattr(value, "co_qualname", None), getattr(value, "co_exceptiontable", None)]  # Python 3.11
        for names in (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars):
            held += [names, *names]
        value = value.co_consts
    if not isinstance(value, (tuple, frozenset)):
        return True
    stable = [_hold(item, held) for item in value]  # a list: every one must be visited
    # Before Python 3.12 hash(None) and hash(Ellipsis) are addresses, so a set holding one has no stable order.
    return all(stable) and not (isinstance(value, frozenset) and any(map(_by_address, value)))


def _by_address(value: Any) -> bool:
    return value is None or value is Ellipsis or (isinstance(value, tuple) and any(map(_by_address, value)))


def compile_source(source: bytes, path: str) -> bytes:
    """Bytes of the .pyc of `source`, or b"" where it does not compile or has no stable bytes."""
    try:
        return _compiled(source, path)
    except Exception:  # noqa: BLE001 - templates, Python 2 and test data are shipped as .py too; import will say why
        return b""


def _compiled(source: bytes, path: str) -> bytes:
    code = compile(source, path, "exec", dont_inherit=True, optimize=0)
    held: list[Any] = []
    stable = _hold(code, held)
    if any(isinstance(value, frozenset) for value in held):
        code = compile(source, path, "exec", dont_inherit=True, optimize=0)
        stable = _hold(code, held)
    if not stable:
        return b""
    return importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + importlib.util.source_hash(source) + marshal.dumps(code)


def _read(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise SystemExit(0)  # the other side is gone
    return data


def main() -> None:
    """Serve until stdin ends."""
    warnings.simplefilter("ignore")  # SyntaxWarnings about other people's code
    sys.setrecursionlimit(10_000)
    number = struct.Struct("<I")
    source_in, pyc_out = sys.stdin.buffer, sys.stdout.buffer
    while True:
        path = _read(source_in, number.unpack(_read(source_in, 4))[0]).decode()
        source = _read(source_in, number.unpack(_read(source_in, 4))[0])
        pyc = compile_source(source, path)
        pyc_out.write(number.pack(len(pyc)) + pyc)
        pyc_out.flush()


if __name__ == "__main__":
    # A stack of our own: with the user's `ulimit -s`, deeply nested source would decide whether there is bytecode.
    threading.stack_size(512 << 20)
    server = threading.Thread(target=main)
    server.start()
    server.join()
