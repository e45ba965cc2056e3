"""Which tags verl really has: a wrong one is answered with its nearest neighbours."""

from __future__ import annotations

import tomllib
from importlib import resources

from packaging.version import InvalidVersion, Version


def known() -> tuple[str, ...]:
    """All tags, oldest first, from data/verl_tags.toml."""
    text = resources.files("verlstack").joinpath("data/verl_tags.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)["tags"])


def nearest(tag: str) -> tuple[str, ...]:
    """The real tags around a wrong one: the last before it and the first after it; all of them if it is no version."""
    tags = known()
    try:
        wanted = Version(tag)
    except InvalidVersion:
        return tags
    before = [t for t in tags if Version(t) < wanted]
    after = [t for t in tags if Version(t) > wanted]
    return (*before[-1:], *after[:1])
