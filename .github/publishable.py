"""Print the stacks that may be published as a matrix: `.github/publishable.py STACKS`, the JSON of `verlstack stacks`.

`verlstack publish` has the last word; this keeps the others from being built for an hour first. Why a stack is left out
is said on stderr. Exit status 1: no stack is left.
"""

import json
import sys
from pathlib import Path
from typing import Any


def refusal(row: dict[str, Any]) -> str | None:
    """Why an image of this stack could not be published; None where it can."""
    stack, lacks = row["stack"], row["tag"].removeprefix(row["stack"]).removeprefix("-")
    if row["lock"] is None:
        return f"{stack}: no lock of the present pins; run `verlstack lock {stack}`"
    if pinned(row) is None:
        return f"{stack}: no base by digest is pinned; docs/bases.md says how"
    if lacks and lacks not in stack.split("-"):
        return (
            f"{stack}: its image would be {row['tag']}, and the name does not say so; docs/publish.md has the ways out"
        )
    return None


def pinned(row: dict[str, Any]) -> str | None:
    """The base by digest, as `verlstack build --base` takes it."""
    return next((base for base in row["bases"] if base.startswith("registry:")), None)


def matrix(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """What one machine needs to know of each stack."""
    return [
        {"stack": row["stack"], "python": row["python"], "base": str(pinned(row))}
        for row in rows
        if refusal(row) is None
    ]


if __name__ == "__main__":
    known = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for why in filter(None, map(refusal, known)):
        print(f"not published: {why}", file=sys.stderr)
    found = matrix(known)
    print(json.dumps(found))
    sys.exit(0 if found else 1)
