"""The parser of the command line: where the verb is missing it lists all, for a mistyped word it names the nearest."""

from __future__ import annotations

import argparse
import difflib
import re
from typing import NoReturn

_WRONG = re.compile(r"argument \S+: invalid choice: '(?P<word>.*?)' \(choose from (?P<known>.*)\)")
_MISSING = re.compile(r"the following arguments are required: (VERB|ACTION)")


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose usage errors lead on; its verbs have such a parser each."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and what could be meant, then exit with status 2."""
        if missing := _MISSING.fullmatch(message):
            word = missing[1]
            todo = f"`{self.prog} {word} --help` tells of one"
            self.exit(2, f"{self.format_help()}\n{self.prog}: error: {word} is missing; {todo}\n")
        if wrong := _WRONG.fullmatch(message):
            near = difflib.get_close_matches(wrong["word"], re.findall(r"[\w.-]+", wrong["known"]), n=1)
            message += f"; did you mean {near[0]!r}?" if near else f"; {self.prog} --help tells more"
        super().error(message)
