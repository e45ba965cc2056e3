"""Preflight checks for verl deployments: standard library, packaging and PyYAML only; runs on Python 3.10 and later."""
