"""What other programs and images tell us, made fit to be shown: nothing that speaks to a terminal, no credentials."""

from __future__ import annotations

import re

# Whole sequences first, so that no half of one stays as text (ECMA-48: CSI; then OSC, DCS and the like with their end).
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"
)
# Single controls but for tab and line end; and the marks that make a terminal show text in another order than it has.
_CONTROL = re.compile(r"\x1b[ -/]*[0-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# A login in an address goes up to the last @, for a password may hold / and @. An image's @sha256:… is no login's end.
_LOGIN = re.compile(r"//(?:[^\s/@:]+:[^\s'\"]*|[^\s/@'\"]*)@(?!sha256:)")
_PROXY_LOGIN = re.compile(r"(_proxy[\"']?\s*[=:]\s*[\"']?)[^\s/@:'\"]+:[^\s'\"]*@", re.IGNORECASE)  # without `//`
_HEADER = re.compile(r"(authorization[\"']?\s*[=:]\s*[\"']?(?:basic|bearer|token)\s+)[^\s'\",]+", re.IGNORECASE)
_QUERY = re.compile(r"(https?://[^\s?#'\"]+)\?[^\s#'\"]*")  # registries and stores sign addresses there


def plain(text: str) -> str:
    """Output of another program without control characters, logins in addresses, and authorization headers."""
    text = _CONTROL.sub("", _SEQUENCE.sub("", text))
    text = _QUERY.sub(r"\1", _LOGIN.sub("//", text))
    return _HEADER.sub(r"\1…", _PROXY_LOGIN.sub(r"\1", text))


def escaped(text: str) -> str:
    r"""A path or label out of an image, what cannot be printed as `\x1b`: it must stay the name that it is."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
