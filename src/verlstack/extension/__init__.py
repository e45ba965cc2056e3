"""Compiled extensions: what they are, where their wheels are found, and what is asked of them before use."""
