"""Credentials for a registry as `docker login` left them: in Docker's config, or with a credential helper."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verlstack import reading, shell
from verlstack.base.reference import DOCKER_HUB
from verlstack.errors import FetchError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_HUB = "https://index.docker.io/v1/"  # how Docker's config calls Docker Hub
_NONE = "credentials not found"  # what every helper says where it knows none; on stdout, with a failing status
_IDENTITY = "<token>"  # the user name that marks a secret as an identity token
_PATIENCE = 60.0  # seconds; a helper may ask a cloud


@dataclass(frozen=True, kw_only=True)
class Login:
    """What to show a registry; none of it is ever printed.

    Attributes:
        basic: `user:password` in base64, or None.
        identity: a token that buys access tokens, or None.
    """

    basic: str | None = field(default=None, repr=False)
    identity: str | None = field(default=None, repr=False)


def stored(host: str, env: Mapping[str, str], run: Callable[..., shell.Result] = shell.run) -> Login:
    """The credentials of a registry's host; an empty Login where there are none.

    Args:
        host: as people write it, `docker.io` or `127.0.0.1:5000`.
        env: HOME or DOCKER_CONFIG tell where the config lies.
        run: starts a credential helper; host and secret pass through its stdin and stdout, never its arguments.

    Raises:
        FetchError: the helper that the config names is missing or fails.
    """
    config = _config(env)
    helpers = config.get("credHelpers")
    helper = (helpers.get(host) if isinstance(helpers, dict) else None) or config.get("credsStore")
    if isinstance(helper, str) and (found := _helped(helper, host, env, run)):
        return found
    auths = config.get("auths")
    for name in (_HUB, host) if host == DOCKER_HUB else (host, f"https://{host}", f"https://{host}/v1/"):
        known = auths.get(name) if isinstance(auths, dict) else None
        if isinstance(known, dict) and (known.get("auth") or known.get("identitytoken")):
            basic, identity = known.get("auth"), known.get("identitytoken")
            return Login(basic=str(basic) if basic else None, identity=str(identity) if identity else None)
    return Login()


def _config(env: Mapping[str, str]) -> dict[str, Any]:
    folder = env.get("DOCKER_CONFIG") or f"{env.get('HOME', '')}/.docker"
    try:
        document = json.loads(reading.text(Path(folder) / "config.json"))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _helped(helper: str, host: str, env: Mapping[str, str], run: Callable[..., shell.Result]) -> Login | None:
    program = f"docker-credential-{helper}"
    todo = f"see what `{program} get` says of {host}, or run `docker login {host}` without a helper"
    try:
        done = run([program, "get"], env=env, stdin=_HUB if host == DOCKER_HUB else host, timeout=_PATIENCE)
    except shell.ProgramMissingError as e:
        raise FetchError(f"Docker's config names a credential helper that cannot be run: {e.what}", todo=todo) from None
    if done.returncode and _NONE in done.stdout + done.stderr:
        return None
    try:
        answer = json.loads(done.stdout)
        user, secret = answer["Username"], answer["Secret"]
    except (ValueError, KeyError, TypeError, RecursionError):
        done_badly = f"the credential helper {program} gives no credentials (status {done.returncode})"
        raise FetchError(done_badly, todo=todo) from None  # its output is not shown: it may hold a secret
    if user == _IDENTITY:
        return Login(identity=str(secret))
    return Login(basic=base64.b64encode(f"{user}:{secret}".encode()).decode())
