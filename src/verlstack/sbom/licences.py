"""The licence of a package as its METADATA tells it: an SPDX expression where there is no doubt, else its own words."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from verlstack import told

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_WORDS = 100  # characters; more is the text of a licence, not its name


@dataclass(frozen=True, kw_only=True)
class Licence:
    """What is known of a licence; one of the two, or neither.

    Attributes:
        expression: of SPDX.
        words: as the package has them, on one line.
    """

    expression: str | None = None
    words: str | None = None


@functools.cache
def _known() -> dict[str, dict[str, str]]:
    text = resources.files("verlstack.sbom").joinpath("licences.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def of(fields: Iterable[tuple[str, str]]) -> Licence:
    """The licence behind METADATA's fields; `License-Expression` counts most, then `License`, then classifiers.

    Several classifiers do not say whether all or any of them hold, so they stay words.
    """
    rows = list(fields)
    texts = [value for key in ("License-Expression", "License") for name, value in rows if name == key]
    classifiers = [value for name, value in rows if name == "Classifier" and value != "License :: OSI Approved"]
    for text in texts:
        if found := _expression(text):
            return Licence(expression=found)
    if len(classifiers) == 1 and (found := _known()["classifiers"].get(classifiers[0])):
        return Licence(expression=found)
    named = [text for text in texts if len(text) <= _MOST_WORDS]  # else it is the licence itself, not its name
    words = [*named, " / ".join(x.rpartition(" :: ")[2] for x in classifiers), *texts]
    return Licence(words=next(filter(None, map(_line, words)), None))


def _expression(text: str) -> str | None:
    """The SPDX expression that a text is, or means, or whose licence's text begins so."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    name = " ".join(lines[:2])
    name = _known()["words"].get(name, name)
    try:
        found = str(canonicalize_license_expression(name)) if len(name) <= _MOST_WORDS else None
    except InvalidLicenseExpression:
        return None
    return None if found is None or "LicenseRef-" in found else found


def _line(text: str) -> str:
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return told.escaped(told.plain(first))[:_MOST_WORDS]
