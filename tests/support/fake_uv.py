"""A resolver for unit tests: it answers questions as uv does, from a table, and starts nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from verlstack import shell


@dataclass(kw_only=True)
class FakeUv:
    """A program runner.

    Attributes:
        answers: the requirement lines, as one frozenset → (name, version, day) of every package chosen.
        conflicts: likewise → the resolver's words.
        warnings: likewise → lines on stderr.
        sdists: names that have no wheel.
        asked: every question, in order.
        commands: its words, likewise.
    """

    answers: dict[frozenset[str], list[tuple[str, str, str]]] = field(default_factory=dict)
    conflicts: dict[frozenset[str], str] = field(default_factory=dict)
    warnings: dict[frozenset[str], str] = field(default_factory=dict)
    sdists: frozenset[str] = frozenset()
    asked: list[tuple[str, ...]] = field(default_factory=list)
    commands: list[tuple[str, ...]] = field(default_factory=list)

    def __call__(self, command, *, env=None, stdin=None, timeout=None):
        words = tuple(str(word) for word in command)
        if "config" in words:  # pip's configuration: none
            return shell.Result(args=words, returncode=0, stdout="", stderr="")
        lines = tuple(stdin.split("\n")[:-1])
        self.asked.append(lines)
        self.commands.append(words)
        key = frozenset(lines)
        if key in self.conflicts:
            return shell.Result(args=words, returncode=1, stdout="", stderr=self.conflicts[key])
        if key not in self.answers:
            raise AssertionError(f"nobody expected to be asked {sorted(key)}")
        text = 'lock-version = "1.0"\n' + "".join(map(self._package, self.answers[key]))
        return shell.Result(args=words, returncode=0, stdout=text, stderr=self.warnings.get(key, ""))

    def _package(self, row):
        name, version, day = row
        sha = "a" * 64
        when = f", upload-time = {day}T12:00:00Z" if day else ""

        def file(filename):
            return f'{{ url = "https://files.invalid/{filename}"{when}, size = 9, hashes = {{ sha256 = "{sha}" }} }}'

        text = f'\n[[packages]]\nname = "{name}"\nversion = "{version}"\n'
        if name in self.sdists:
            return text + f"sdist = {file(f'{name}-{version}.tar.gz')}\n"
        stem = f"{name.replace('-', '_')}-{version}"
        return text + f"wheels = [{file(f'{stem}-py3-none-any.whl')}]\n"
