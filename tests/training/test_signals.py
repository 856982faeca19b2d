from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from hvdgrab import StopSignal
from hvdgrab.errors import UsageError
from hvdgrab.training.job import ignore_requests


@pytest.fixture(autouse=True)
def handlers():
    kept = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("name", ["USR2", "SIGUSR2", "usr2"])
def test_without_horovod_the_process_decides_alone(name):
    stop = StopSignal([name])
    assert not stop.agreed()
    os.kill(os.getpid(), signal.SIGUSR2)
    assert (stop.requested, stop.agreed()) == (True, True)


@pytest.mark.parametrize(("name", "words"), [("USR3", "no signal 'USR3'"), ("KILL", "can catch SIGKILL"), ("", "no signal")])
def test_signals_that_cannot_be_caught_are_refused(name, words):
    with pytest.raises(UsageError, match=words):
        StopSignal(["USR1", name])
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL, "nothing was changed"


def test_another_thread_cannot_hear_signals():
    refused = []

    def make():
        try:
            StopSignal()
        except UsageError as error:
            refused.append(str(error))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert refused == ["StopSignal must be made in the main thread: Python hears signals only there"]


def test_a_forked_helper_still_ends_by_term_and_hears_nothing_else():
    stop = StopSignal()
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGUSR1)
        if not stop.requested:
            os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
    assert not stop.requested


def test_a_signal_while_a_process_ends_does_not_change_its_code():
    late = "import hvdgrab, os, signal, sys; hvdgrab.StopSignal()\n"
    late += "class Late:\n  def __del__(self, kill=os.kill, me=os.getpid(), number=int(signal.SIGUSR1)): kill(me, number)\n"
    late += "sys.late = Late(); sys.exit(4)"
    assert subprocess.run([sys.executable, "-c", late], timeout=60, check=False).returncode == 4


def test_making_it_costs_no_import_of_torch():
    code = "import sys, hvdgrab; hvdgrab.StopSignal(); sys.exit('torch' in sys.modules or 'horovod' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_a_process_that_serves_the_ranks_is_not_ended_by_what_asks_them_to_save():
    ignore_requests()
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        os.kill(os.getpid(), number)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
