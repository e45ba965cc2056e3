"""One line about what a report of the smoke tests says was run: for people who trust whoever signed the report."""

from __future__ import annotations

from typing import Any

_LONGEST = 300  # characters


def line(report: Any) -> str:
    """On what the tests ran, with how many ranks, how many of them, and what verldoctor found before them.

    Counted from the report's runs and not copied from its headline: "passed" is no more than what was run.

    Args:
        report: the content of `smoke.json`, from anywhere.
    """
    try:
        runs = report["runs"]
        on = "GPUs" if runs and all(one["device"] == "cuda" for one in runs) else "CPU"
        ranks = ", ".join(str(int(one["ranks"])) for one in runs) or "none"
        words = ("passed", "failed", "not run")
        counts = [f"{sum(int(one['counts'][word]) for one in runs)} {word}" for word in words]
        said = f"on {on}, ranks {ranks}: {', '.join(counts)}"
        if any(one["selected"] for one in runs):
            said += "; a selection of the tests (--quick or -k)"
        found = [one for node in report["doctor"] for one in node["findings"]]
        if failing := sorted({str(one["code"]) for one in found if one["severity"] == "fail"}):
            said += f"; verldoctor found what fails: {', '.join(failing)}"
    except (KeyError, TypeError, ValueError, AttributeError):
        return "what was run is not told in a form that is known here"
    return said if len(said) <= _LONGEST else f"{said[: _LONGEST - 1]}…"
