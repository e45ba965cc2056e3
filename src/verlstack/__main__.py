"""`python -m verlstack` is the same program as `verlstack`."""

from verlstack.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
