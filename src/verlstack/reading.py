"""Files that somebody else names or wrote: opened without waiting for a writer, and none that has no end."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

_MOST = 1 << 24  # bytes of a text; the largest of ours, tools.txt, has 130 kB


def opened(path: Path) -> io.BufferedReader:
    """A file to be read, or a pipe that is open already, such as a shell's `<(command)`.

    Raises:
        OSError: it cannot be read, or is a folder, a device, a socket, or a pipe with a name: that waits for a writer.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(handle).st_mode
    nameless = stat.S_ISFIFO(mode) and not Path(os.path.realpath(path)).exists()  # as /dev/fd/63 leads to
    if not stat.S_ISREG(mode) and not nameless:
        os.close(handle)
        number, what = (errno.EISDIR, "it is a folder") if stat.S_ISDIR(mode) else (errno.EINVAL, "no regular file")
        raise OSError(number, what, str(path))
    os.set_blocking(handle, True)
    return os.fdopen(handle, "rb")


def data(path: Path, most: int = _MOST) -> bytes:
    """All of it.

    Raises:
        OSError: as of `opened`, or it has more than `most` bytes.
    """
    with opened(path) as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes", str(path))
    return found


def text(path: Path, *, errors: str = "strict") -> str:
    """All of it as UTF-8, with the line endings of Unix.

    Raises:
        OSError: as of `data`.
        UnicodeDecodeError: it is something else, and `errors` does not say what to do then.
    """
    return io.TextIOWrapper(io.BytesIO(data(path)), encoding="utf-8", errors=errors).read()
