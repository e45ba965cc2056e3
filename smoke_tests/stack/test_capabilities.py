"""What this stack can and cannot do, measured; a "cannot" is a result, unless the stack's pins say otherwise."""

import os

import pytest

from smoke import patches, probes

DECLARED = os.environ.get("SMOKE_CANNOT")  # names with commas between; unset where nobody declared anything


@pytest.mark.parametrize("name", probes.PROBES)
def test_capability(name, world, figure, monkeypatch):
    if world.on_gpu:
        pytest.skip("measured on the CPU, so that it is the same question everywhere")
    if world.size > 1:
        pytest.skip("measured in a world of one")
    patches.apply(patches.applicable(on_gpu=world.on_gpu), monkeypatch.setattr)

    def put(place, key, value):
        monkeypatch.setattr(place, key, value, raising=False)

    try:
        probes.PROBES[name](put)
    except Exception as e:  # noqa: BLE001  whatever stops it is the answer
        can, said = False, f"{type(e).__name__}: {e}".splitlines()[0][:200]
    else:
        can, said = True, ""
    figure("can", can)
    figure("said", said)
    if DECLARED is None:
        return
    cannot = name in DECLARED.split(",")
    assert can or cannot, f"[stack.NAME.cannot] does not name {name}, but it does not work: {said}"
    assert not (can and cannot), f"[stack.NAME.cannot] names {name}, but it works: remove it there"
