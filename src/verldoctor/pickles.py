"""Reads what a pickle would import and which tensor storages it names by walking its opcodes; it is never executed."""

from __future__ import annotations

import pickletools
import struct
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_MOST_STEPS = 3_000_000  # opcodes, some 40 000 tensors; each may leave an object on the stack and in the memo
_STRINGS = {"BINUNICODE", "SHORT_BINUNICODE", "UNICODE", "BINUNICODE8", "BINSTRING", "SHORT_BINSTRING", "STRING"}
_TEXTS = _STRINGS | {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"}
_INTS = {"BININT": "<i", "BININT1": "<B", "BININT2": "<H"}
_GETS = {"GET": "", "BINGET": "<B", "LONG_BINGET": "<I"}
_PUTS = {"PUT": "", "BINPUT": "<B", "LONG_BINPUT": "<I"}
_LINES = {"GLOBAL": 2, "INST": 2}
_COUNTED = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    getattr(pickletools, "TAKEN_FROM_ARGUMENT8U", -5): 8,
}


class Name(NamedTuple):
    """Something that a pickle imports: what unpickling would get as `module.name`."""

    module: str
    name: str


_GETATTR = {Name("builtins", "getattr"), Name("__builtin__", "getattr")}
_DILL_IMPORT = Name("dill._dill", "_import_module")


class PickleError(ValueError):
    """Not a whole pickle; the message says how, `found` what comes before: a reader would have executed that."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.found = Summary()


class TooLongError(PickleError):
    """A pickle of more opcodes than are looked at here."""


class Storage(NamedTuple):
    """A tensor storage that a pickle of torch refers to: its type's name, its key (a file), its number of elements."""

    kind: str
    key: str
    elements: int


@dataclass
class Summary:
    """What a pickle would do.

    Attributes:
        names: imports, with repeats taken out.
        storages: tensor storages referred to.
        hidden: opcodes whose import cannot be told without executing it.
        end: offset behind its STOP.
    """

    names: dict[Name, None] = field(default_factory=dict)
    storages: dict[Storage, None] = field(default_factory=dict)
    hidden: list[str] = field(default_factory=list)
    end: int = 0


class _Op(NamedTuple):
    name: str
    fixed: int  # bytes of its argument, where always as many
    counted: int  # bytes of the length before it, where it has one
    lines: int  # lines of text that it has
    pops: int  # stack items taken; -1: down to the mark, -2: down to the mark and one more
    pushes: int


def _op(code: pickletools.OpcodeInfo) -> _Op:
    size = code.arg.n if code.arg else 0
    before, marked = code.stack_before, pickletools.markobject in code.stack_before
    pops = len(before) if not marked else (-1 if before[0] is pickletools.markobject else -2)
    lines = _LINES.get(code.name, 1) if size == pickletools.UP_TO_NEWLINE else 0
    return _Op(code.name, max(size, 0), _COUNTED.get(size, 0) if size < 0 else 0, lines, pops, len(code.stack_after))


_OPS = {ord(code.code): _op(code) for code in pickletools.opcodes}


def summary(data: bytes, start: int = 0) -> Summary:
    """What the pickle at `start` of `data` would import and refer to.

    Raises:
        PickleError: cut off, no pickle, or out of order.
        TooLongError: more opcodes than are looked at.
    """
    walk = _Walk(data, start)
    try:
        return walk.run()
    except PickleError as error:
        error.found = walk.found
        raise


class _Walk:
    """The stack machine of pickle without its actions: values are strings, small integers, names, tuples or None."""

    def __init__(self, data: bytes, place: int) -> None:
        self.data, self.place = data, place
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.found = Summary()

    def run(self) -> Summary:
        for _ in range(_MOST_STEPS):
            if self.place >= len(self.data):
                raise PickleError("it ends without STOP: cut off")
            op = _OPS.get(self.data[self.place])
            if op is None:
                raise PickleError(f"no opcode {self.data[self.place]:#04x}")
            self.place += 1
            argument = self._argument(op)
            if op.name == "STOP":
                self._getattr(op.name, self.stack[-1:])
                self.found.end = self.place
                return self.found
            self._step(op, argument)
        raise TooLongError(f"it has more than {_MOST_STEPS} opcodes")

    def _argument(self, op: _Op) -> bytes:
        if op.lines:
            return self._lines(op.lines)
        size = op.fixed
        if op.counted:
            size = int.from_bytes(self._take(op.counted), "little")
        return self._take(size)

    def _take(self, size: int) -> bytes:
        if size > len(self.data) - self.place:
            raise PickleError("it ends in the middle: cut off")
        self.place += size
        return self.data[self.place - size : self.place]

    def _lines(self, count: int) -> bytes:
        start = self.place
        for _ in range(count):
            end = self.data.find(b"\n", self.place)
            if end < 0:
                raise PickleError("it ends in the middle: cut off")
            self.place = end + 1
        return self.data[start : self.place - 1]

    def _step(self, op: _Op, argument: bytes) -> None:
        name = op.name
        if name == "MARK":
            self.marks.append(len(self.stack))
        elif name in _GETS:
            self.stack.append(self.memo.get(_number(argument, _GETS[name])))
        elif name in _PUTS or name == "MEMOIZE":
            key = len(self.memo) if name == "MEMOIZE" else _number(argument, _PUTS[name])
            self.memo[key] = self.stack[-1] if self.stack else None
        elif name == "DUP":
            self.stack.append(self.stack[-1] if self.stack else None)
        elif name == "POP" and self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()  # POP on a mark takes the mark
        else:
            taken = self._pop(op.pops)
            self._getattr(name, taken)
            for _ in range(op.pushes):
                self.stack.append(self._value(name, argument, taken))

    def _pop(self, count: int) -> list[Any]:
        if count < 0:
            if not self.marks:
                raise PickleError("no mark where one is needed")
            count = len(self.stack) - self.marks.pop() + (count == -2)
        if count > len(self.stack):
            raise PickleError("its stack runs empty")
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def _getattr(self, name: str, taken: list[Any]) -> None:
        """Notes getattr as an import where it is more than protocol 2's way to write a class inside of a class."""
        if name not in ("POP", "POP_MARK") and not (name == "REDUCE" and _inner(*taken)):
            self.found.names.update({item: None for item in taken if _is_getattr(item)})

    def _value(self, name: str, argument: bytes, taken: list[Any]) -> Any:
        if name in _TEXTS:
            return argument.decode("utf-8", "replace") if name in _STRINGS else None
        if name in _INTS:
            return struct.unpack(_INTS[name], argument)[0]
        if name in ("LONG1", "LONG4"):
            return int.from_bytes(argument[:16], "little", signed=True)
        if name.startswith("TUPLE"):
            return tuple(taken[:8])
        return self._effect(name, argument, taken)

    def _effect(self, name: str, argument: bytes, taken: list[Any]) -> Any:
        if name in ("GLOBAL", "INST"):
            result = self._import(*argument.decode("utf-8", "replace").split("\n", 1))
            return self._noted(result) if name == "INST" else result  # INST calls it at once
        if name == "STACK_GLOBAL":
            return self._import(*taken)
        if name == "REDUCE":
            return self._call(*taken)
        if name == "BINPERSID":
            self._storage(taken[0])
        elif name.startswith("EXT"):
            self.found.hidden.append(f"{name} {int.from_bytes(argument, 'little')}")
        return None

    def _import(self, module: Any, name: Any) -> Name | None:
        if not isinstance(module, str) or not isinstance(name, str):
            self.found.hidden.append("STACK_GLOBAL with a computed name")
            return None
        result = Name(module, name)
        return result if _is_getattr(result) else self._noted(result)

    def _noted(self, name: Name | None) -> Name | None:
        if name is not None:
            self.found.names[name] = None
        return name

    def _call(self, function: Any, arguments: Any) -> Name | None:
        """What a call gives, where that is an import: the class in a class, or the module that dill looks up."""
        if function == _DILL_IMPORT:
            match arguments:
                case (str() as module,):
                    return self._noted(Name(module, "*"))
            self.found.hidden.append("dill's _import_module with a computed name")
        return self._noted(_inner(function, arguments))

    def _storage(self, value: Any) -> None:
        match value:
            case ("storage", kind, str() as key, _, int() as elements, *_):
                self.found.storages[Storage(getattr(kind, "name", "") or "", key, elements)] = None


def _is_getattr(value: Any) -> bool:
    return isinstance(value, Name) and value in _GETATTR


def _inner(function: Any, arguments: Any) -> Name | None:
    """The name that the call `getattr(a class, a public name)` means; None for any other call."""
    match arguments:
        case (Name(module, outer), str() as inner) if _is_getattr(function) and not inner.startswith("_"):
            return Name(module, f"{outer}.{inner}")
    return None


def _number(argument: bytes, layout: str) -> int:
    if layout:
        return int(struct.unpack(layout, argument)[0])
    try:
        return int(argument[:20])
    except ValueError:
        raise PickleError("a memo number is none") from None
