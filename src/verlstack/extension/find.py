"""A compiled wheel by its hash: from the cache, a registry or an address, each asked for seconds and no longer."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import requests

from verlstack.base import reference, registry
from verlstack.cache import sha256_file, storage_errors
from verlstack.download import Download, subject
from verlstack.errors import FetchError, HashMismatchError
from verlstack.index import Index, session
from verlstack.web import get, patiently, redact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from verlstack.cache import Cache
    from verlstack.download import Artifact
    from verlstack.extension.pin import Extension

PATIENCE_S = 60.0  # for one place: 200 MB at 30 Mbit/s; what has arrived is kept, and the next build goes on from there
_IMPATIENT = (3.0, 5.0)  # seconds to connect, and between two pieces: a build can go on without the wheel


@dataclass(frozen=True, kw_only=True)
class Found:
    """How a look-up ended.

    Attributes:
        path: the wheel in the cache, its hash right; None where no place has it.
        tried: one line for each place asked, and what came of it.
    """

    path: Path | None
    tried: tuple[str, ...]


def find(
    wheel: Artifact,
    places: Extension,
    *,
    cache: Cache,
    env: Mapping[str, str],
    offline: bool,
    patience: float = PATIENCE_S,
) -> Found:
    """Look for a wheel in the cache, the wheelhouse, and at the prebuilt address, in this order.

    Args:
        wheel: what the lock pins.
        places: where to look.
        cache: where it goes; a file there with another hash is deleted.
        env: holds the CA bundle, proxies and the folder of `docker login`.
        offline: ask the cache alone.
        patience: seconds for each place.

    Raises:
        StorageError: the cache cannot be written.
    """
    tried: list[str] = []
    for name, ask in _places(wheel, places, cache, env, offline=offline):
        try:
            path = _within(patience, ask)
        except FetchError as e:
            tried.append(f"{name}: {e.what}")
        else:
            return Found(path=path, tried=(*tried, f"{name}: found"))
    return Found(path=None, tried=tuple(tried))


def _places(
    wheel: Artifact, places: Extension, cache: Cache, env: Mapping[str, str], *, offline: bool
) -> list[tuple[str, Callable[[], Path]]]:
    found: list[tuple[str, Callable[[], Path]]] = [("cache", partial(_cached, wheel, cache))]
    if places.wheelhouse and not offline:
        load = partial(_from_registry, places.wheelhouse, wheel, env)
        found.append((f"wheelhouse {places.wheelhouse}", partial(_into_cache, wheel, cache, "wheelhouse", load)))
    if places.prebuilt and not offline:
        load = partial(_from_address, places.prebuilt, wheel, env)
        found.append((f"prebuilt {redact(places.prebuilt)}", partial(_into_cache, wheel, cache, "prebuilt", load)))
    return found


def _within(seconds: float, ask: Callable[[], Path]) -> Path:
    """The answer if it comes in time; a thread that hangs is a daemon and left behind.

    Raises:
        FetchError: it did not come; otherwise what `ask` raises.
    """
    answers: queue.SimpleQueue[Path | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put(ask())
        except BaseException as e:  # noqa: BLE001 - raised again in the caller's thread
            answers.put(e)

    threading.Thread(target=work, name="find", daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise FetchError(f"no whole answer within {seconds:g} s; what has arrived is kept") from None
    if isinstance(answer, Path):
        return answer
    raise answer


def _cached(wheel: Artifact, cache: Cache) -> Path:
    path = cache.file(wheel.sha256, wheel.filename)
    with storage_errors(path):
        if not path.is_file():
            raise FetchError("not there")
        if (have := sha256_file(path)) != wheel.sha256:
            path.unlink()
            raise HashMismatchError(f"held sha256 {have} where the lock says {wheel.sha256}; deleted")
    return path


def _into_cache(wheel: Artifact, cache: Cache, place: str, load: Callable[[Path], None]) -> Path:
    """Download under a name of the place's own: one that hangs holds its lock, and must not stop the next."""
    target = cache.file(wheel.sha256, wheel.filename)
    part = cache.parts / f"{wheel.sha256}-{place}.part"
    with storage_errors(part), cache.lock(part.name):
        part.parent.mkdir(parents=True, exist_ok=True)
        load(part)
        target.parent.mkdir(parents=True, exist_ok=True)
        part.replace(target)
    return target


def _from_registry(repository: str, wheel: Artifact, env: Mapping[str, str], part: Path) -> None:
    """The wheel is a blob, and a blob's name is its hash: no manifest has to be asked for, or trusted."""
    ref = reference.parse(f"{repository}@sha256:{wheel.sha256}")
    with registry.connect(ref, env, timeout=_IMPATIENT, attempts=2) as client:
        try:
            client.blob(ref.digest, wheel.size or 0, part, lambda _: None)
        # a redirect that leads nowhere, a token that is no JSON
        except (requests.RequestException, ValueError, RecursionError) as e:
            raise FetchError(f"the registry's answer makes no sense ({type(e).__name__})") from None


def _from_address(url: str, wheel: Artifact, env: Mapping[str, str], part: Path) -> None:
    only = Index(primary=url)
    stop = threading.Event()
    with session(only, env) as at:
        ask = partial(get, at, only, url, subject(wheel), stream=True)
        try:
            patiently(Download(wheel, url, part, ask, lambda *_, **__: None, stop).attempt, stop.wait)
        except HashMismatchError:
            part.unlink(missing_ok=True)
            raise
