"""Runs `python -m verldoctor`."""

import sys

from verldoctor.cli import main

if __name__ == "__main__":
    sys.exit(main())
