"""Whether what bears our label in an engine is left over from a process that is no more."""

from __future__ import annotations

import pytest

from verlstack.smoke import owner

NO_SUCH = (1 << 22) + 1  # more than the kernel's largest number of a process, proc(5)


def changed(**parts):
    boot, namespace, pid, started = owner.me().split(" ")
    return " ".join(({"boot": boot, "namespace": namespace, "pid": pid, "started": started} | parts).values())


def test_what_this_process_started_is_not_left_over():
    assert not owner.is_left_over(owner.me())


def test_what_a_process_started_that_has_ended_is():
    assert owner.is_left_over(changed(pid=str(NO_SUCH)))


def test_a_later_process_with_the_same_number_is_another():
    assert owner.is_left_over(changed(started="1"))


@pytest.mark.parametrize(
    "parts",
    [{"boot": "0-0"}, {"namespace": "1"}, {"pid": "x"}, {"pid": "9" * 5000}, {"started": "9" * 5000}, {"pid": "-1"}],
    ids=lambda parts: str(parts)[:30],
)
def test_what_cannot_be_judged_stays(parts):
    assert not owner.is_left_over(changed(**{"pid": str(NO_SUCH)} | parts))


@pytest.mark.parametrize("label", ["", "x", "1 2 3", "host 4194305 1"])
def test_what_is_no_label_of_ours_stays(label):
    assert not owner.is_left_over(label)
