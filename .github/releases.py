"""Print the published images as a matrix for the weekly proof: `.github/releases.py constraints/releases.toml`."""

import json
import sys
import tomllib
from pathlib import Path


def matrix(text: str) -> list[dict[str, str]]:
    """One entry for each digest, named by repository and digest, for a tag may have moved since."""
    found = {}
    for row in tomllib.loads(text).get("release", []):
        name, _, tag = row["reference"].rpartition(":")
        found[row["digest"]] = {"reference": f"{name}@{row['digest']}", "tag": tag, "lock": row["lock"]}
    return list(found.values())


if __name__ == "__main__":
    path = Path(sys.argv[1])
    print(json.dumps(matrix(path.read_text(encoding="utf-8") if path.exists() else "")))
