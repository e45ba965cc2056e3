"""Reads Thrift's compact protocol, the encoding of Parquet's footer, without knowing the message: fields by number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_DEEPEST = 40
_MOST_VALUES = 1_000_000  # values take up to some hundred bytes each in Python
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_VARINTS = (4, 5, 6)


class ThriftError(ValueError):
    """The bytes are not a message of this protocol, or too big a one."""


@dataclass
class Reader:
    """A cursor over `data`; structs become dicts of field number to value, integers are signed."""

    data: bytes
    place: int = 0
    values: int = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """The struct at the cursor.

        Raises:
            ThriftError: truncated, unknown type, too deep or too many values.
        """
        if depth > _DEEPEST:
            raise ThriftError("nested too deep")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else _signed(self._varint())
            kind = head & 15
            fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        self.values += 1
        if self.values > _MOST_VALUES:
            raise ThriftError("too many values")
        readers: dict[int, Callable[[], Any]] = {
            _BINARY: lambda: self._take(self._varint()),
            _STRUCT: lambda: self.struct(depth + 1),
            _LIST: lambda: self._list(depth + 1),
            _SET: lambda: self._list(depth + 1),
            _MAP: lambda: self._map(depth + 1),
            _DOUBLE: lambda: self._take(8),
            **dict.fromkeys(_VARINTS, lambda: _signed(self._varint())),
            **dict.fromkeys((_TRUE, _FALSE, _BYTE), self._byte),
        }
        if kind not in readers:
            raise ThriftError(f"type {kind} is unknown")
        return readers[kind]()

    def _list(self, depth: int) -> list[Any]:
        if depth > _DEEPEST:
            raise ThriftError("nested too deep")
        head = self._byte()
        size = head >> 4 if head >> 4 < 15 else self._varint()
        return [self._value(head & 15, depth) for _ in range(size)]

    def _map(self, depth: int) -> list[tuple[Any, Any]]:
        size = self._varint()
        kinds = self._byte() if size else 0
        return [(self._value(kinds >> 4, depth), self._value(kinds & 15, depth)) for _ in range(size)]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ThriftError("a number is too long")

    def _byte(self) -> int:
        if self.place >= len(self.data):
            raise ThriftError("it ends in the middle")
        self.place += 1
        return self.data[self.place - 1]

    def _take(self, size: int) -> bytes:
        if size > len(self.data) - self.place:
            raise ThriftError("it ends in the middle")
        self.place += size
        return self.data[self.place - size : self.place]


def _signed(value: int) -> int:
    return (value >> 1) ^ -(value & 1)
