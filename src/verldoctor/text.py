"""Makes text that came from a file fit to print: one line, no control codes, not too long."""

from __future__ import annotations

_ELLIPSIS = "…"


def safe(text: object, limit: int = 200) -> str:
    r"""`text` on one line with every character that is not printable written as an escape, cut to `limit` characters.

    Terminal escape codes, line breaks, bidirectional overrides and lone surrogates all become visible `\x1b`-like
    escapes, so nothing that a log or a model directory holds can move the cursor or hide a line.

    Args:
        text: any value; bytes are read as UTF-8, bad ones shown as escapes.
        limit: most characters of the result.
    """
    plain = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else str(text)
    shown = "".join(char if char.isprintable() else _escaped(char) for char in plain[: limit + 1])
    return shown if len(shown) <= limit else shown[: max(limit - 1, 0)] + _ELLIPSIS


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
