"""Whether what bears our label in an engine is left over from a process that is no more."""

from __future__ import annotations

import os
import socket

import pytest

from verlstack.smoke import owner


def test_what_this_process_started_is_not_left_over():
    assert not owner.is_left_over(owner.me())


def test_what_a_process_started_that_has_ended_is():
    no_such = (1 << 22) + 1  # more than the kernel's largest number of a process, proc(5)
    assert owner.is_left_over(f"{socket.gethostname()} {no_such} 1")


def test_a_later_process_with_the_same_number_is_another():
    host, pid, _ = owner.me().split(" ")
    assert owner.is_left_over(f"{host} {pid} 1")


@pytest.mark.parametrize("label", ["", "x", f"elsewhere {os.getpid()} 1", f"{socket.gethostname()} x 1"])
def test_what_cannot_be_judged_stays(label):
    assert not owner.is_left_over(label)
