"""The signatures as data: true examples, near misses, sources, and patterns that no line can make slow."""

from __future__ import annotations

import re
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from verldoctor.explain import explain
from verldoctor.signatures import Signature, signatures

try:
    from re import _constants as sre  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_constants as sre
    import sre_parse as parser

ALL = signatures()
EACH = pytest.mark.parametrize("signature", ALL, ids=[signature.id for signature in ALL])
NOISE = [f"step:{step} - actor/loss:{1 / (step + 1):.4f} - timing/step:{step % 7}" for step in range(600)]


def test_there_are_more_than_asked_for() -> None:
    assert len(ALL) >= 60
    assert len({signature.id for signature in ALL}) == len(ALL)


@EACH
def test_fields_are_filled_and_fit_to_print(signature: Signature) -> None:
    for text in (signature.id, signature.cause, signature.fix, signature.source):
        assert text == text.strip()
        assert text
        assert "\n" not in text
    assert re.fullmatch(r"[a-z0-9-]+", signature.id)
    assert signature.kind in ("cause", "effect", "note")
    assert signature.priority in (0, 1, 2, 3)
    for specifier in signature.versions.values():
        SpecifierSet(specifier)


@EACH
def test_example_is_explained_first(signature: Signature) -> None:
    assert explain(signature.example.split("\n"))[0].id == signature.id


@EACH
def test_near_miss_is_not_taken_for_it(signature: Signature) -> None:
    assert signature.id not in [item.id for item in explain(signature.counterexample.split("\n"))]


@EACH
def test_example_is_found_in_a_thousand_lines_of_noise(signature: Signature) -> None:
    example = signature.example.split("\n")
    first = explain([*NOISE, *example, *NOISE])[0]
    assert first.id == signature.id
    assert first.line == len(NOISE) + len(example)


@EACH
def test_example_is_found_behind_a_rank_prefix(signature: Signature) -> None:
    for prefix, rank in (
        ("[rank3]: ", "rank 3"),
        ("(WorkerDict pid=17, ip=10.0.0.1) ", "WorkerDict pid=17, ip=10.0.0.1"),
    ):
        first = explain([prefix + line for line in signature.example.split("\n")])[0]
        assert first.id == signature.id
        assert rank == first.rank or first.rank  # an example's own prefix, [Rank 3], may come after


def repeats(tree: Any, inside: int = 1) -> int:
    """The most characters that the repeats of a pattern can try together; refuses unbounded and nested ones."""
    cost = 1
    for operation, argument in tree:
        assert operation not in (sre.GROUPREF, sre.GROUPREF_EXISTS), "back-reference"
        if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            _, most, body = argument
            assert most != sre.MAXREPEAT, "unbounded repeat"
            assert inside == 1 or most == 1, "nested repeat"
            cost *= max(int(most), 1) * repeats(body, max(inside, int(most)))
        elif operation is sre.BRANCH:
            cost *= max(repeats(branch, inside) for branch in argument[1])
        elif operation is sre.SUBPATTERN:
            cost *= repeats(argument[-1], inside)
        elif operation in (sre.ASSERT, sre.ASSERT_NOT):
            cost *= repeats(argument[1], inside)
    return cost


@EACH
def test_pattern_has_only_short_unnested_repeats(signature: Signature) -> None:
    # 8192 starting points in the longest line times this bound: at most 80 million steps even in theory
    assert repeats(parser.parse(signature.pattern.pattern)) <= 10_000


@pytest.mark.parametrize("pattern", ["(a+)+b", "(?:a{1,9}){1,9}", "a*", r"(x)\1", ".{0,200}.{0,200}"])
def test_the_guard_itself_refuses(pattern: str) -> None:
    with pytest.raises(AssertionError):
        assert repeats(parser.parse(pattern)) <= 10_000


def alternatives(tree: Any) -> list[str]:
    """What every match looks like, one text for each choice of branches, with NUL where anything may stand."""
    texts = [""]
    for operation, argument in tree:
        if operation is sre.LITERAL:
            parts = [chr(argument)]
        elif operation is sre.BRANCH:
            parts = [text for branch in argument[1] for text in alternatives(branch)]
        elif operation is sre.SUBPATTERN:
            parts = alternatives(argument[-1])
        else:
            parts = ["\0"]
        texts = [text + part for text in texts for part in parts]
    return texts


@EACH
def test_every_match_holds_a_needle(signature: Signature) -> None:
    for text in alternatives(parser.parse(signature.pattern.pattern)):
        assert any(needle in text for needle in signature.needles), text


@EACH
def test_long_lines_of_the_pattern_s_own_words_are_survived(signature: Signature) -> None:
    words = signature.needles[0]
    for line in (words * 200_000, (words + "a" * 300) * 5000, signature.example.split("\n")[-1] * 500, " " * 1_000_000):
        explain([line[:3_000_000]])
