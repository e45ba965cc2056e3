"""The documentation agrees with the programs: links lead somewhere, its commands are understood, no page is lost."""

import argparse
import contextlib
import io
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest

import verldoctor.cli
from support import cli_reference
from verlstack import cli

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in ROOT.rglob("*.md") if not {".venv", ".nox"} & set(path.relative_to(ROOT).parts))
IDS = [str(path.relative_to(ROOT)) for path in PAGES]
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def test_the_reference_is_that_of_the_parsers():
    text = cli_reference.FILE.read_text(encoding="utf-8")
    assert text == cli_reference.page(), "run `.venv/bin/python tests/support/cli_reference.py`"


# -- links


def anchors(text):
    """GitHub's anchors of headings: lower case, hyphens for blanks, other signs dropped, a number if it is taken."""
    found = Counter()
    for title in re.findall(r"^#{1,6} (.+)$", _FENCE.sub("", text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        found[re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")] += 1
    return {f"{slug}-{n}" if n else slug for slug, times in found.items() for n in range(times)}


def broken(path):
    """Links of a page that lead nowhere."""
    text = path.read_text(encoding="utf-8")
    wrong = []
    for link in _LINK.findall(_FENCE.sub("", text)):
        place, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", place):
            continue  # another site, which is not asked
        target = (path.parent / place) if place else path
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_links_lead_somewhere(path):
    assert broken(path) == []


def test_a_link_that_leads_nowhere_is_seen(tmp_path):
    (tmp_path / "b.md").write_text("# Two words: `x`\n")
    page = tmp_path / "a.md"
    page.write_text(
        "# A\n[ok](b.md#two-words-x) [ok](#a) [ok](https://x.org) [1](c.md) [2](b.md#three)\n```\n[no](d.md)\n```\n"
    )
    assert broken(page) == ["c.md", "b.md#three"]


def test_every_page_is_in_the_index():
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in _LINK.findall(index)}
    assert {path.name for path in DOCS.glob("*.md") if path.resolve() not in linked} <= {"README.md"}


# -- commands


def commands(text):
    """The command lines of verlstack and verldoctor in fenced blocks, as words; without comments and redirections."""
    for block in _FENCE.findall(text):
        joined = re.sub(r"\\\n\s*", "", block)
        for line in joined.splitlines():
            for part in re.split(r"(?<=\s)(?:&&|\|\|?|2?>|<)|;", line.removeprefix("$ ")):
                words = shlex.split(part, comments=True) if part.count('"') % 2 == part.count("'") % 2 == 0 else []
                words = words[next((n for n, w in enumerate(words) if "=" not in w), 0) :]  # NAME=value in front
                if words and words[0].rpartition("/")[2] in {"verlstack", "verldoctor"} and len(words) > 1:
                    yield [words[0].rpartition("/")[2], *words[1:]]


def understood(words):
    """None, or what the parser says of a command line."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            if words[0] == "verlstack":
                cli._parser().parse_args(words[1:])
            else:
                verldoctor.cli._parser().parse_intermixed_args(words[1:])
        except SystemExit as e:
            return said.getvalue() if e.code else None
        except argparse.ArgumentError as e:
            return str(e)
    return None


@pytest.mark.parametrize("path", PAGES, ids=IDS)
def test_commands_are_understood(path):
    found = list(commands(path.read_text(encoding="utf-8")))
    assert [(words, said) for words in found if (said := understood(words))] == []


def test_a_command_that_is_not_understood_is_seen():
    text = "```\nmake image && verlstack build cu121 --quick   # no such option\nX=1 verlstack sign \\\n    REF\n```\n"
    found = list(commands(text))
    assert found == [["verlstack", "build", "cu121", "--quick"], ["verlstack", "sign", "REF"]]
    assert all(understood(words) for words in found)
