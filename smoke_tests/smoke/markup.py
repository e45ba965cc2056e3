"""HTML escaped by construction, and text from tests made fit for a page, for XML and for a terminal."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# Colours of a terminal, as pytest and NCCL write them; taken out whole, or their digits would stay behind.
_COLOURS = re.compile("\x1b\\[[0-9;?]*[ -/]*[@-~]")
# What XML 1.0 forbids, the C1 controls that a terminal obeys, and the marks that turn the direction of text round.
_UNFIT = re.compile("[^\t\n\x20-\x7e\xa0-\u2029\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_VOID = {"meta"}


class Html(str):
    """Text that is HTML already; any other string is escaped where it is put into a page."""

    __slots__ = ()


def fit(text: object, limit: int = 300) -> str:
    """`text` without control characters and at most `limit` characters of it; what was cut off is said.

    U+FFFD stands for each character that XML forbids, that a terminal obeys, or that UTF-8 cannot write.
    """
    whole = str(text)
    shown = _UNFIT.sub("\ufffd", _COLOURS.sub("", whole[:limit].replace("\r\n", "\n")))
    return shown if len(whole) <= limit else f"{shown} … (cut; {len(whole)} characters in all, see smoke.json)"


def first_line(text: object, limit: int = 300) -> str:
    """The first line that is not empty, made fit."""
    return next((line for line in fit(text, limit).splitlines() if line.strip()), "")


def el(name: str, /, *children: object, **attributes: object) -> Html:
    """One element; children that are not Html are escaped, `class_` stands for class and `text_anchor` for text-anchor.

    An attribute that is None is left out, one that is True has no value.
    """
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    written = "".join(f" {key}" if value is True else f' {key}="{_escaped(value)}"' for key, value in given.items())
    if name in _VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def join(parts: Iterable[object]) -> Html:
    """Html and text in a row."""
    return Html("".join(part if isinstance(part, Html) else _escaped(part) for part in parts))


def _escaped(text: object) -> str:
    return html.escape(fit(text, limit=30_000))
