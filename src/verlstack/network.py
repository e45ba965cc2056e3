"""What of a user's environment reaches the network: proxies and certificate bundles, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
_BUNDLES = ("ssl_cert_file", "git_ssl_cainfo")


def settings(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that a program needs to reach the network as the user does."""
    return {name: value for name, value in env.items() if name.lower() in (*_PROXIES, *_BUNDLES)}


def proxies(env: Mapping[str, str]) -> dict[str, str]:
    """The user's proxies by their upper-case names; of both spellings the lower-case one counts, as in curl."""
    found = {name.upper(): value for name, value in env.items() if name.lower() in _PROXIES and name.isupper()}
    found |= {name.upper(): value for name, value in env.items() if name in _PROXIES}
    return {name: value for name, value in found.items() if value}
