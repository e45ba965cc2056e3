"""What the weekly proof makes of the list of published images."""

import json
import sys
from pathlib import Path

import pytest

GITHUB = Path(__file__).parents[2] / ".github"
sys.path.append(str(GITHUB))

import releases  # noqa: E402

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
