"""docs/reference.md, made of the parsers of both programs; run as a script, this file writes the page again."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import verldoctor.cli
from verlstack import cli, errors

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

FILE = Path(__file__).parents[2] / "docs" / "reference.md"
HEAD = """\
# Reference: the command lines

Made by `.venv/bin/python tests/support/cli_reference.py` from the parsers of both programs; do not edit.
`verlstack VERB --help` says the same.

"""
STATUSES = """\
## Exit statuses of verlstack

An error says what happened, where, and what to do; `--debug` shows where in the code.

| | |
|---|---|
| 0 | done; of verbs that compare or test: the same, passed, nothing known to break |
| 1 | of verbs that compare or test: different, failed, something breaks |
"""
INTERRUPTED = "| 130 | Stopped by Ctrl-C; the same command again goes on. |\n"
# Where a verb is explained; a verb without a page is an error here.
PAGES = {
    **dict.fromkeys(("lock", "fetch", "build", "prove"), "tutorial-rebuild.md"),
    "base": "bases.md",
    "bundle": "reproduce.md#without-any-upstream-bundles",
    "reproduce": "reproduce.md",
    "check": "check.md",
    "flash-attn": "compiled-wheels.md",
    "pin": "pin.md",
    "diff": "pin.md#verlstack-diff-old-new",
    **dict.fromkeys(("publish", "mirror", "export", "promote"), "publish.md"),
    **dict.fromkeys(("sbom", "attest", "sign", "verify"), "attest.md"),
    "smoke": "smoke.md",
    "stacks": "stacks.md",
}


def page() -> str:
    """The whole page."""
    parser = cli._parser()
    verbs = list(_verbs(parser))
    common = _shared(verbs)
    known = {_key(x) for x in common}
    parts = [HEAD, f"## verlstack\n\n{parser.description}\n\n", "Options of every verb:\n\n", _table(common)]
    for words, help_, verb in verbs:
        parts.append(_section(words, help_, verb, own=[x for x in _actions(verb) if _key(x) not in known]))
    parts += [STATUSES, *_statuses(), INTERRUPTED, "\n", _doctor()]
    return "".join(parts)


def _verbs(parser: argparse.ArgumentParser, above: str = "") -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """(words, help, parser) of each verb; of one with verbs of its own, those."""
    for group in (x for x in parser._actions if isinstance(x, argparse._SubParsersAction)):
        helps = {choice.dest: choice.help or "" for choice in group._choices_actions}
        for name, verb in group.choices.items():
            inner = list(_verbs(verb, f"{above}{name} "))
            yield from inner or [(f"{above}{name}", helps[name], verb)]


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [x for x in parser._actions if not isinstance(x, argparse._HelpAction)]


def _shared(verbs: list[tuple[str, str, argparse.ArgumentParser]]) -> list[argparse.Action]:
    """Options that most verbs have, alike."""
    first, *others = [_actions(verb) for _, _, verb in verbs]
    keys = [{_key(x) for x in other} for other in others]
    return [x for x in first if sum(_key(x) in other for other in keys) > len(others) // 2]


def _key(action: argparse.Action) -> tuple[str, str | None]:
    return _name(action), action.help


def _section(words: str, help_: str, verb: argparse.ArgumentParser, *, own: list[argparse.Action]) -> str:
    positional = [f"[{_name(x)}]" if x.nargs == "?" else _name(x) for x in own if not x.option_strings]
    demanded = [_name(x) for x in own if x.option_strings and x.required]
    synopsis = " ".join(["verlstack", words, *positional, *demanded])
    title = f"### verlstack {words}\n\n`{synopsis}`: {help_}. [More]({PAGES[words.partition(' ')[0]]}).\n\n"
    return title + (_table(own, not_with=_exclusive(verb), demanded=_one_of(verb)) if own else "")


def _exclusive(verb: argparse.ArgumentParser) -> dict[argparse.Action, str]:
    """What each argument excludes."""
    groups = [group._group_actions for group in verb._mutually_exclusive_groups]
    return {x: ", ".join(f"`{_name(y)}`" for y in group if y is not x) for group in groups for x in group}


def _one_of(verb: argparse.ArgumentParser) -> list[argparse.Action]:
    """Arguments of groups of which one must be given."""
    return [x for group in verb._mutually_exclusive_groups if group.required for x in group._group_actions]


def _table(
    actions: Iterable[argparse.Action],
    not_with: dict[argparse.Action, str] | None = None,
    demanded: Container[argparse.Action] = (),
) -> str:
    rows = []
    for action in actions:
        notes = []
        if action.option_strings and action.required:
            notes.append("required")
        if isinstance(action, argparse._AppendAction) and "repeatable" not in str(action.help):
            notes.append("repeatable")
        if other := (not_with or {}).get(action):
            notes.append(f"not with {other}")
            if action in demanded:
                notes.append("one of them is required")
        text = "; ".join([str(action.help), *notes])
        rows.append(f"| `{_escaped(_name(action))}` | {_escaped(text)} |\n")
    return "| | |\n|---|---|\n" + "".join(rows) + "\n"


def _name(action: argparse.Action) -> str:
    """An argument as one writes it: `--gpus N|all`, `STACK`, `NAME…`."""
    value = str(action.metavar or ("|".join(action.choices) if action.choices else action.dest.upper()))
    value += "…" if action.nargs in {"+", "*"} else ""
    if not action.option_strings:
        return value
    value = f"[{value}]" if action.nargs == "?" else value
    return " ".join([action.option_strings[-1], *([value] if action.nargs != 0 else [])])


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _statuses() -> Iterator[str]:
    """A row for each kind of error, from its docstring."""
    kinds = [x for x in vars(errors).values() if isinstance(x, type) and issubclass(x, errors.VerlstackError)]
    for kind in sorted(kinds, key=lambda x: x.exit_code):
        if kind is not errors.VerlstackError:
            yield f"| {kind.exit_code} | {(kind.__doc__ or '').strip()} |\n"


def _doctor() -> str:
    parser = verldoctor.cli._parser()
    head = f"## verldoctor\n\n{parser.description} [More](verldoctor.md).\n\n"
    return head + _table(_actions(parser)) + f"```\n{parser.epilog}\n```\n"


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
