#!/opt/verl/bin/python
"""The command `verldoctor` of an image: a copy of this file is on PATH, for the image's venv has no such package."""

import sys

if __name__ == "__main__":
    sys.path.insert(0, "/opt/verlstack")  # in front, so that no PYTHONPATH decides which verldoctor runs
    from verldoctor.cli import main

    sys.exit(main())
