"""A static x86-64 Linux program of some 200 bytes that prints a text: what an image can run without a system in it."""

from __future__ import annotations

import struct

_LOAD_ADDRESS = 0x400000
_HEADERS = 64 + 56  # bytes: ELF header and one program header (elf(5))


def printing(text: bytes) -> bytes:
    """The executable's bytes."""
    code = b"".join(
        (
            b"\xb8\x01\x00\x00\x00",  # mov eax, 1 (write)
            b"\xbf\x01\x00\x00\x00",  # mov edi, 1 (stdout)
            b"\x48\x8d\x35" + struct.pack("<i", 16),  # lea rsi, [rip + 16]: what follows the code
            b"\xba" + struct.pack("<I", len(text)),  # mov edx, length
            b"\x0f\x05",  # syscall
            b"\xb8\x3c\x00\x00\x00",  # mov eax, 60 (exit)
            b"\x31\xff",  # xor edi, edi
            b"\x0f\x05",  # syscall
        )
    )
    size = _HEADERS + len(code) + len(text)
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    elf = ident + struct.pack(
        "<HHIQQQIHHHHHH", 2, 62, 1, _LOAD_ADDRESS + _HEADERS, 64, 0, 0, 64, 56, 1, 64, 0, 0
    )  # ET_EXEC, EM_X86_64, entry point, one program header, no sections
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, _LOAD_ADDRESS, _LOAD_ADDRESS, size, size, 0x1000)  # PT_LOAD, r-x
    return elf + load + code + text
