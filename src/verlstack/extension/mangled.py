"""What a mangled C++ name tells without a demangler: whose it is, how to say it, and which std::string it has.

Source: Itanium C++ ABI, "Mangling"; GCC manual, "Dual ABI": the new std::string and std::list live in `std::__cxx11`.
"""

from __future__ import annotations

import re

OLD, NEW = "old", "C++11"

_TORCH = re.compile(r"_Z.*N[KVr]*(?:3c10|2at|5torch|6caffe2)|THP[A-Z]|_Z\d+THP[A-Z]")
_CUDA_RUNTIME = re.compile(r"(?:__)?cuda[A-Z]")
_NESTED = re.compile(r"_ZN[KVrRO]*")
# One step through a mangled name: a substitution, a literal, a template parameter, a length, or anything else.
_TOKEN = re.compile(r"S[0-9A-Z]*_|L[a-z]n?\d+E|T\d*_|(?P<length>\d+)|St|S[abdiso]|.", re.DOTALL)
_LONGEST = 4096  # characters looked at; a name that is longer tells enough by then
_SHOWN = 120


def of_torch(name: str) -> bool:
    """Whether only torch's own libraries can define it: namespaces c10, at, torch, caffe2, and their C names."""
    return bool(_TORCH.match(name[:_LONGEST]))


def of_cuda_runtime(name: str) -> bool:
    """Whether it is one of libcudart's."""
    return bool(_CUDA_RUNTIME.match(name))


def of_python(name: str) -> bool:
    """Whether the interpreter defines it (stable naming: PEP 7, C API manual, "Naming")."""
    return name.startswith(("Py", "_Py"))


def strings(name: str) -> str | None:
    """The ABI of the std::string or std::list in a function's parameters: `OLD`, `NEW`, or None if there is neither."""
    at, text, std = 0, name[:_LONGEST], False
    while match := _TOKEN.match(text, at):
        at = match.end()
        if length := match["length"]:
            word = text[at : at + int(length[:5])]
            at += int(length[:5])
            if word == "__cxx11":
                return NEW
            if std and word == "list":
                return OLD
        elif match[0] == "Ss":
            return OLD
        std = match[0] == "St"
    return None


def readable(name: str) -> str:
    """The qualified name without its parameters where it is simple, `c10::Error::Error`; else "" ."""
    text = name[:_LONGEST]
    match = _NESTED.match(text)
    at = match.end() if match else 2
    if not text.startswith("_Z"):
        return ""
    words: list[str] = []
    while length := re.compile(r"\d{1,4}").match(text, at):
        at = length.end() + int(length[0])
        words.append(text[length.end() : at])
        if not match:
            break
    if match and words and re.compile(r"C[123]E").match(text, at):
        words.append(words[-1])
    return "::".join(words)


def shown(name: str) -> str:
    """A name for a message: mangled, cut if very long, and how to say it."""
    cut = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"
    said = readable(name)[:_SHOWN]
    return f"{cut} ({said})" if said else cut
