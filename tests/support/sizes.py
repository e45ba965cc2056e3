"""How many bytes of files each layer of an image unpacks to, and what they are: `python tests/support/sizes.py DIR`."""

from __future__ import annotations

import collections
import re
import sys
import tarfile
from pathlib import Path

from verlstack import layer, oci

# The first pattern that a path has decides.
KINDS = {
    "bytecode": r"\.pyc$",
    "tests of packages": r"/tests?/",
    "Python sources": r"\.py$",
    "headers": r"/include/",
    "static libraries": r"\.a$",
    "link-time optimiser of gcc": r"/lto1$|lto-dump",
    "jars": r"\.jar$",
    "shared libraries": r"\.so(\.\d+)*$",
    "the rest": r"",
}


def of_files(layout: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes by layer and by kind; no layer hides another's file, so the sum is the unpacked image's."""
    _, manifest, config = oci.read_layout(layout)
    made = [entry for entry in config["history"] if not entry.get("empty_layer")]
    layers: dict[str, int] = collections.Counter()
    kinds: dict[str, int] = collections.Counter()
    for entry, note in zip(manifest["layers"], made, strict=True):
        path, kind = layout / oci.blob_path(entry["digest"]), entry["mediaType"].rpartition("+")[2]
        with layer.opened(path, kind) as raw, tarfile.open(fileobj=raw, mode="r|") as archive:
            for member in archive:
                if member.isreg():
                    layers[note["created_by"].removeprefix("verlstack: ")] += member.size
                    kinds[next(k for k, p in KINDS.items() if re.search(p, f"/{member.name}"))] += member.size
    return layers, kinds


def main() -> None:
    for rows in of_files(Path(sys.argv[1])):
        lines = [f"{size / 1e6:8.1f} MB  {name}" for name, size in sorted(rows.items(), key=lambda row: -row[1])]
        lines.append(f"{sum(rows.values()) / 1e6:8.1f} MB  together, {sum(rows.values()) / 2**30:.2f} GiB\n")
        sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
