from __future__ import annotations

import threading

import numpy as np
import pytest

from hvdgrab.comm import calibration as module
from hvdgrab.comm.calibration import Calibration, ChoosingCommunicator, calibrate
from hvdgrab.comm.simulated import ThreadNodes, run_all
from tests.comm.checks import CHECKS


def test_a_payload_takes_what_was_faster_at_the_next_measured_size():
    choice = Calibration({"gather": {1024: True, 8192: False, 65536: True}, "broadcast": {1024: False}})
    flat = {size: choice.is_flat("gather", size) for size in (0, 1024, 1025, 8192, 8193, 10**9)}
    assert flat == {0: True, 1024: True, 1025: False, 8192: False, 8193: True, 10**9: True}
    assert not choice.is_flat("broadcast", 10**9)
    assert not choice.is_flat("allgather", 1), "what was not measured is hierarchical"


def test_the_choice_is_told_in_words():
    table = {"gather": {1024: True, 8192: False}, "allgather": {1024: False, 8192: False}, "broadcast": {1024: True}}
    text = "gather flat to 1 KiB, hierarchical above; allgather hierarchical; broadcast flat (measured)"
    assert Calibration(table).text() == text
    steps = Calibration({"gather": {1024: True, 8192: True, 65536: False}, "broadcast": {1024: False, 8192: True, 65536: False}})
    assert steps.text().startswith("gather flat to 8 KiB, hierarchical above;")
    assert "broadcast hierarchical to 1 KiB, flat to 8 KiB, hierarchical above" in steps.text()
    assert Calibration({}, measured=False).text().endswith("broadcast hierarchical (not measured with more than 64 ranks)")


class Slow:
    """A communicator that is slow at chosen operations and sizes."""

    def __init__(self, inner, slow):
        self._inner, self._slow = inner, slow

    def __getattr__(self, name):
        call = getattr(self._inner, name)
        if name not in module.OPERATIONS:
            return call

        def slowed(send, *more):
            if (name, send.nbytes) in self._slow:
                threading.Event().wait(0.02)
            call(send, *more)

        return slowed


def calibrated(flat_slow, hierarchical_slow, nodes=((0, 1), (2, 3))):
    made = ThreadNodes(nodes)

    def work(comm):
        return calibrate(Slow(comm.inner, flat_slow), Slow(comm, hierarchical_slow))

    return run_all(made.communicators, work)


def test_what_is_slower_is_not_chosen_and_all_ranks_choose_the_same(monkeypatch):
    monkeypatch.setattr(module, "SIZES", (64, 512))
    monkeypatch.setattr(module, "BUDGET", 60.0)
    slow = {("gather", 64), ("allgather", 512), ("broadcast", 512)}
    choices = calibrated(slow, {(name, size) for name in module.OPERATIONS for size in (64, 512)} - slow)
    assert all(choice == choices[0] for choice in choices)
    assert choices[0].flat == {name: {size: (name, size) not in slow for size in (64, 512)} for name in module.OPERATIONS}


def test_a_slow_network_is_not_measured_to_the_end(monkeypatch):
    monkeypatch.setattr(module, "BUDGET", 0.0)
    choices = calibrated(set(), set())
    assert all(list(choice.flat["gather"]) == [module.SIZES[0]] for choice in choices)


def test_a_large_world_is_not_measured():
    comm = ThreadNodes([[0]]).communicators[0]
    comm.size = 65
    assert not calibrate(comm, comm).measured


@pytest.mark.parametrize("check", CHECKS)
def test_ranks_that_change_between_both_keep_every_contract(check):
    table = {name: {8: True, 30: False, 100: True} for name in module.OPERATIONS}
    made = ThreadNodes([[0, 2], [1, 3]], slot_bytes=64)
    communicators = [ChoosingCommunicator(comm.inner, comm, Calibration(table)) for comm in made.communicators]
    run_all(communicators, check)


def test_each_call_goes_where_its_size_says():
    made = ThreadNodes([[0], [1]])
    table = {name: {100: True, 10_000: False} for name in module.OPERATIONS}

    def work(comm):
        chosen = ChoosingCommunicator(comm.inner, comm, Calibration(table))
        chosen.broadcast(np.zeros(100, dtype=np.uint8), 0)
        before = made.carried(1)
        comm.inner.broadcast(np.zeros(1), 0)
        chosen.broadcast(np.zeros(101, dtype=np.uint8), 0)
        return before

    assert run_all(made.communicators, work) == [0, 0]
    assert made.carried(1) == 101
