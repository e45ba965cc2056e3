"""One reason why a compiled wheel does not fit a stack, and what can be done about it."""

from __future__ import annotations

from dataclasses import dataclass

# In the order in which they are reported: what explains others comes first.
RULES = ("tag", "member", "needed", "abi", "symbol", "glibc", "glibcxx", "arch")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What is wrong.

    Attributes:
        rule: one of `RULES`.
        member: path of the object in the wheel, "" where it is the wheel as a whole.
        subject: the offending symbol (mangled), version, library, architecture or part of the name.
        what: what is wrong with it, a clause that goes on from the object's name.
        todo: what to do.
    """

    rule: str
    member: str
    subject: str
    what: str
    todo: str

    def __str__(self) -> str:
        return f"[{self.rule}] {self.member or 'the wheel'} {self.what}"
