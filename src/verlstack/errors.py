"""What a user may do wrong, or meet: every error says what happened, where, and what to do next."""

from __future__ import annotations


class VerlstackError(Exception):
    """Base of every expected error; the CLI prints it without a traceback and exits with `exit_code`.

    Attributes:
        what: what happened, one sentence.
        where: file, file:line or address (credentials already removed), or None.
        todo: the next thing to do, an imperative sentence, or None.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, todo: str | None = None) -> None:
        super().__init__(what, where, todo)  # all of it, so that the error survives a process boundary
        self.what = what
        self.where = where
        self.todo = todo

    def __reduce__(self) -> tuple[object, tuple[type[VerlstackError], str, str | None, str | None]]:
        return _rebuild, (type(self), self.what, self.where, self.todo)

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.todo:
            lines.append(f"  do:    {self.todo}")
        return "\n".join(lines)


def _rebuild(kind: type[VerlstackError], what: str, where: str | None, todo: str | None) -> VerlstackError:
    return kind(what, where=where, todo=todo)


class UsageError(VerlstackError):
    """The command line asks for something that does not exist."""

    exit_code = 2


class PinsError(VerlstackError):
    """`constraints/stacks.toml` is wrong, or its pins do not resolve."""

    exit_code = 3


class LockError(VerlstackError):
    """The lock is missing, stale, damaged or contradicted by what was built."""

    exit_code = 4


class FetchError(VerlstackError):
    """An artifact cannot be had: not on the index, index unreachable, offline and not cached."""

    exit_code = 5


class HashMismatchError(FetchError):
    """Bytes arrived, but not the ones the lock names."""

    exit_code = 6


class WheelError(VerlstackError):
    """A wheel is malformed, hostile, for another interpreter, or in conflict with another wheel."""

    exit_code = 7


class BuildError(VerlstackError):
    """A wheel could not be built from source."""

    exit_code = 8


class BaseImageError(VerlstackError):
    """No base image, or no Python interpreter, can be had or fits the stack."""

    exit_code = 9


class StorageError(VerlstackError):
    """The disk is full, read-only, or refuses us."""

    exit_code = 10


class EngineError(VerlstackError):
    """A container engine is absent, too old or refuses us."""

    exit_code = 11


class ProofError(VerlstackError):
    """The composed image does not start or does not import."""

    exit_code = 12


class PublishError(VerlstackError):
    """An image must not be published as it is, or a tag must not be moved."""

    exit_code = 14


class UnwellError(FetchError):
    """A registry, or the way to it, is in trouble that may pass: run again later."""

    exit_code = 15


class SignatureError(VerlstackError):
    """A signature or attestation is missing or wrong, or a key cannot be used."""

    exit_code = 16
