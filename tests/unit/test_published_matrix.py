"""What the workflows make of tables: the weekly proof of the published images, publish of the stacks."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest

GITHUB = Path(__file__).parents[2] / ".github"
sys.path.append(str(GITHUB))

import publishable  # noqa: E402
import releases  # noqa: E402

from verlstack import stacks  # noqa: E402

ROW = """
[[release]]
release = "cu121-2025-03-04"
reference = "registry.example.org:5000/team/verl:cu121-torch2.3.1"
digest = "sha256:{0}"
lock = "sha256:{1}"
dockerfile = "sha256:{1}"
"""


def test_each_digest_is_named_once_by_repository_and_digest():
    one, lock = "1" * 64, "2" * 64
    again = ROW.format(one, lock).replace("cu121-torch2.3.1", "stable")
    assert releases.matrix(ROW.format(one, lock) + again + ROW.format("3" * 64, lock)) == [
        {"reference": f"registry.example.org:5000/team/verl@sha256:{one}", "tag": "stable", "lock": f"sha256:{lock}"},
        {
            "reference": f"registry.example.org:5000/team/verl@sha256:{'3' * 64}",
            "tag": "cu121-torch2.3.1",
            "lock": f"sha256:{lock}",
        },
    ]


@pytest.mark.parametrize("text", ["", "# nothing yet\n"])
def test_nothing_published_is_an_empty_matrix(text):
    assert json.dumps(releases.matrix(text)) == "[]"  # what the workflow compares with


CONSTRAINTS = GITHUB.parent / "constraints"
BASE = f"registry:registry.example.org/base@sha256:{'1' * 64}"


def row(**changes):
    """As `verlstack stacks --json` has it."""
    real = json.loads(json.dumps(dataclasses.asdict(stacks.rows(CONSTRAINTS)[0])))
    return (
        real | {"stack": "one", "tag": "one", "bases": ["debian", BASE], "python": "3.10", "lock": "sha256:2"} | changes
    )


def test_a_stack_that_may_be_published_is_built_on_its_pinned_base():
    assert publishable.matrix([row()]) == [{"stack": "one", "python": "3.10", "base": BASE}]
    assert publishable.refusal(row(stack="one-sdpa", tag="one-sdpa")) is None
    assert publishable.refusal(row(stack="one-sdpa", tag="one-sdpa-sdpa")) is None, "the name says so"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"lock": None}, "one: no lock of the present pins"),
        ({"bases": ["debian"]}, "one: no base by digest is pinned"),
        ({"tag": "one-sdpa"}, "one: its image would be one-sdpa"),
    ],
)
def test_what_verlstack_publish_would_refuse_is_not_built(changes, why):
    assert publishable.refusal(row(**changes)).startswith(why)
    assert publishable.matrix([row(**changes), row(stack="two", tag="two")]) == [
        {"stack": "two", "python": "3.10", "base": BASE}
    ]
