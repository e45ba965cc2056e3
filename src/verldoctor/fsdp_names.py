"""Finds names in configurations and scripts that guides print and that never existed in verl or torch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from verldoctor.saying import say
from verldoctor.versions import table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verldoctor.finding import Finding
    from verldoctor.fsdp_load import Config

_LINE = 2000  # characters of a line that are searched


def judge(config: Config) -> Iterator[Finding]:
    """One finding for each invented name in the text of `config`, at its first line."""
    lines = [line[:_LINE] for line in config.text.splitlines()]
    for name, real in table("names")["invented"].items():
        pattern = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
        for number, line in enumerate(lines, 1):
            if pattern.search(line.partition("#")[0]):
                yield say("fsdp", "FSDP-NAME", f"{config.name}:{number}", measured=name, right=real)
                break
