"""How torch's own libraries pass C++ strings, in its own words.

The gate does not ask here but reads it off the symbols of `libc10.so` (`rules.torch_facts`), on purpose: this is the
word by which torch's builders compile, so it belongs into the lock; that is what a compiled wheel really meets. One
mistake must not pass both.
"""

from __future__ import annotations

import re
import zipfile
from typing import TYPE_CHECKING

from verlstack import zips
from verlstack.content import Reader

if TYPE_CHECKING:
    from pathlib import Path

_CONFIG = "torch/share/cmake/Torch/TorchConfig.cmake"
_FLAG = re.compile(rb"^\s*set\(TORCH_CXX_FLAGS \"-D_GLIBCXX_USE_CXX11_ABI=([01])\"\)", re.MULTILINE)
_MOST = 1 << 20  # bytes; torch 2.3.1's has 7 thousand


def cxx11(wheel: Path) -> bool:
    """Whether torch was compiled with the C++11 ABI, which what links to it must share.

    Args:
        wheel: torch's wheel, verified.

    Raises:
        WheelError: it does not say.
    """
    with zipfile.ZipFile(wheel) as archive:
        member = next((m for m in zips.members(wheel, archive) if m.name == _CONFIG), None)
    if member is None or member.size > _MOST:
        raise zips.error(wheel, f"has no {_CONFIG} that tells the C++ ABI")
    with Reader() as reader:
        match = _FLAG.search(reader.read(member))
    if match is None:
        raise zips.error(wheel, f"does not tell its C++ ABI in {_CONFIG}")
    return match[1] == b"1"
