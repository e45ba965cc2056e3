"""Loaded by every Python below a folder on PYTHONPATH: patches and seeds what verl uses, the moment verl is imported.

Ray starts its workers itself, so this is the only way into them. Nothing is imported before verl is: Ray's helper
processes and idle workers stay as light as they are.
"""

import sys
from importlib.abc import MetaPathFinder


class _BeforeVerl(MetaPathFinder):
    """Finds nothing; on the first import of verl it applies the patches and steps aside."""

    def find_spec(self, fullname, path, target=None):  # noqa: ARG002
        """Called by the import system for each module that is not loaded yet."""
        if fullname == "verl":
            sys.meta_path.remove(self)
            import os

            import torch

            from smoke import patches

            on_gpu = torch.cuda.is_available() and os.environ.get("SMOKE_DEVICE") != "cpu"
            patches.apply(patches.applicable(on_gpu=on_gpu))
            if "SMOKE_SEED" in os.environ:  # two runs shall sample the same
                torch.manual_seed(int(os.environ["SMOKE_SEED"]))


sys.meta_path.insert(0, _BeforeVerl())
