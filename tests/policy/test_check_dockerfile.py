"""Our own Dockerfile keeps the rules that `verlstack check` holds others to."""

from pathlib import Path

from verlstack import lockfile, pins
from verlstack.check import against, dockerfile, dockerrules

ROOT = Path(__file__).parents[2]


def test_our_own_dockerfile_is_clean():
    constraints = ROOT / "constraints"
    stack = pins.load(constraints / "stacks.toml", "cu121")
    facts = against.of(stack, lockfile.load(constraints, stack))
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert dockerrules.check(text, "Dockerfile", facts) == []


def test_all_of_it_was_read():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    stages = dockerfile.parse(text, "Dockerfile")
    assert len(stages) == sum(line.startswith("FROM ") for line in text.splitlines())
    assert sum(len(stage.copies) for stage in stages) == sum(line.startswith("COPY ") for line in text.splitlines())
    assert any("wheels.sh" in command.text for stage in stages for command in stage.commands)
