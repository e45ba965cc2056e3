"""Add what was published to `constraints/releases.toml` and `docs/images.md`: `.github/record.py FILE…`.

Each FILE is what `verlstack publish --record --json` printed, on whatever machine.
"""

import json
import sys
from pathlib import Path

from verlstack import releases

CONSTRAINTS = Path("constraints")

if __name__ == "__main__":
    for name in sys.argv[1:]:
        row = json.loads(Path(name).read_text(encoding="utf-8"))["release"]
        releases.record(releases.Release(**row), CONSTRAINTS)
