"""The data file of published images, and the page made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from verlstack import releases
from verlstack.errors import LockError

ROOT = Path(__file__).parents[2]
ONE = releases.Release(
    release="cu121 20250304", reference="reg.io/verl:tag", digest=f"sha256:{'1' * 64}", lock=f"sha256:{'2' * 64}",
    dockerfile=f"sha256:{'3' * 64}",
)  # fmt: skip


@pytest.fixture
def constraints(tmp_path):
    (tmp_path / "constraints").mkdir()
    (tmp_path / "docs").mkdir()
    return tmp_path / "constraints"


def test_the_page_of_this_repository_is_made_of_its_data():
    rows = releases.load(ROOT / "constraints")
    assert (ROOT / "docs" / "images.md").read_text() == releases.page(rows)


def test_a_release_is_kept_and_shown_once(constraints):
    releases.record(ONE, constraints)
    releases.record(ONE, constraints)
    assert releases.load(constraints) == (ONE,)
    page = (constraints.parent / "docs" / "images.md").read_text()
    row = f"| cu121 20250304 | `reg.io/verl:tag` | `{ONE.digest}` | `{'2' * 12}` | `{'3' * 12}` |"
    assert page.count(row) == 1
    other = releases.Release(**{**ONE.__dict__, "reference": "reg.io/verl:two"})
    releases.record(other, constraints)
    assert releases.load(constraints) == (ONE, other)
    page = (constraints.parent / "docs" / "images.md").read_text()
    assert page.index("verl:two") < page.index("verl:tag"), "newest first"


def test_a_stack_without_a_dockerfile_has_none(constraints):
    text = (ROOT / "constraints" / "stacks.toml").read_text()
    (constraints / "stacks.toml").write_text(text)
    (constraints.parent / "Dockerfile").write_text("FROM scratch\n")
    assert releases.dockerfile(constraints, "cu121").startswith("sha256:")
    assert releases.dockerfile(constraints, "cu121-vllm") == ""
    assert releases.dockerfile(constraints, "unknown") == ""
    page = releases.page((releases.Release(**ONE.__dict__ | {"dockerfile": ""}),))
    assert page.endswith(f"| `{'2' * 12}` | none |\n")


def test_nothing_published_is_said(constraints):
    assert "No image is published yet" in releases.page(releases.load(constraints))


@pytest.mark.parametrize("text", ["[[release]]\nrelease = 1", "release = 1", "not toml", "[[release]]\nx = 1"])
def test_a_damaged_file(constraints, text):
    (constraints / releases.FILE).write_text(text)
    with pytest.raises(LockError, match="not a list of releases"):
        releases.load(constraints)
