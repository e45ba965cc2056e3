"""What a smoke run becomes: the command of each node, what each gets, and what is refused before anything starts."""

from __future__ import annotations

import pytest

from verlstack.errors import UsageError
from verlstack.smoke.request import ALL_GPUS, Request

RUN = ("/opt/verl/bin/python", "/opt/verlstack/smoke_tests/run.py", "--report", "/tmp/smoke-report")


def test_the_plain_command_leaves_the_ranks_to_the_tests():
    assert Request().command() == RUN


def test_every_wish_is_in_the_command():
    request = Request(ranks=(1, 4), quick=True, only="gradients and not slow")
    assert request.command() == (*RUN, "--ranks", "1,4", "--quick", "-kgradients and not slow")


def test_each_node_says_which_it_is_and_where_the_first_one_is():
    command = Request(nodes=2).command(1, host="node-0")
    assert command[len(RUN) :] == ("--nodes", "2", "--node", "1", "--rendezvous", "node-0:29400")


def test_the_tests_are_told_not_to_look_for_gpus_that_nobody_asked_for():
    assert Request().environment("x@sha256:1") == {"VERLSTACK_IMAGE": "x@sha256:1", "SMOKE_DEVICE": "cpu"}
    assert Request(gpus=1).environment("x") == {"VERLSTACK_IMAGE": "x"}


def test_nodes_share_out_the_gpus_of_the_machine():
    assert [Request(gpus=4, nodes=2).gpus_of(node) for node in (0, 1)] == [(0, 1), (2, 3)]
    assert [Request(nodes=2).gpus_of(node) for node in (0, 1)] == [0, 0]
    assert Request(gpus=ALL_GPUS).gpus_of(0) == ALL_GPUS


def test_gpus_get_more_shared_memory():
    assert Request(gpus=1).shm_bytes > Request().shm_bytes >= 1 << 30


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (Request(ranks=(1, 4), gpus=2), "4 ranks on 2 GPUs"),
        (Request(ranks=(2,), gpus=1), "2 ranks on 1 GPU:"),
        (Request(gpus=ALL_GPUS, nodes=2), "several nodes is for --launcher slurm"),
        (Request(gpus=3, nodes=2), "do not spread over 2 nodes"),
        (Request(ranks=(1, 3), nodes=2), "no number of ranks is a multiple of 2"),
    ],
)
def test_what_cannot_work_is_refused(request_, says):
    with pytest.raises(UsageError, match=says) as caught:
        request_.check()
    assert caught.value.todo


@pytest.mark.parametrize(
    "request_",
    [
        Request(),
        Request(ranks=(1, 2, 4)),
        Request(ranks=(1, 2), gpus=2),
        Request(ranks=(64,), gpus=ALL_GPUS),
        Request(ranks=(1, 2), nodes=2),
        Request(nodes=2, gpus=4),
    ],
)
def test_what_can_work_is_not(request_):
    request_.check()


def test_the_tests_are_told_what_the_image_is_said_to_lack():
    assert "SMOKE_CANNOT" not in Request().environment("i")
    assert Request(cannot=()).environment("i")["SMOKE_CANNOT"] == ""
    assert Request(cannot=("a", "b")).environment("i")["SMOKE_CANNOT"] == "a,b"


def test_names_of_tests_are_no_options():
    assert Request(only="--ranks=1024").more == ("-k--ranks=1024",)


def test_slurms_nodes_have_gpus_of_their_own():
    Request(gpus=ALL_GPUS, nodes=2).check(scheduled=True)
    Request(gpus=16, nodes=2, ranks=(16,)).check(scheduled=True)
    with pytest.raises(UsageError, match="do not spread over 2 nodes"):
        Request(gpus=3, nodes=2).check(scheduled=True)
