"""Skip what tests a part of verl that the verl of this image does not have, and say so."""

import importlib.util
from importlib import metadata

import pytest


def needs(module: str) -> None:
    """Skip the test unless verl has a module."""
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # of a package above it
        found = None
    if found is None:
        pytest.skip(f"verl {metadata.version('verl')} has no {module}")
