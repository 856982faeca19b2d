from __future__ import annotations

import re

import pytest

from hvdgrab.comm.cuda import refusal


def never():
    raise AssertionError("a GPU's address was given to an MPI that cannot take it")


@pytest.mark.parametrize(
    ("gpus", "supports", "message"),
    [
        ([True, False], [True, True], "cuda_aware is set, but rank 1 has no GPU: leave communication.cuda_aware out"),
        ([False, True, False], [True] * 3, "ranks 0, 2 have no GPU"),
        ([True, True], [True, False], "the MPI of rank 1 was built without CUDA support .*ompi_info.*or leave"),
        ([True, True], [False, False], "the MPI of ranks 0, 1 was built without CUDA support"),
    ],
)
def test_without_a_gpu_or_support_nothing_is_tried(gpus, supports, message):
    assert re.search(message, refusal(gpus, supports, never))


def test_what_does_not_arrive_is_refused_though_mpi_says_it_can():
    assert "rank 1 has not received what was sent from a GPU" in refusal([True, True], [True, None], lambda: [True, False])
    assert "UCX_TLS" in refusal([True], [True], lambda: [False])


def test_an_mpi_that_does_not_say_is_believed_when_the_test_passes():
    assert refusal([True, True], [None, True], lambda: [True, True]) == ""


def test_a_large_world_is_named_briefly():
    assert "ranks 0, 1, 2, 3, 4, 5, 6, 7, … have no GPU" in refusal([False] * 1000, [True] * 1000, never)
