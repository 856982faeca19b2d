from __future__ import annotations

import threading

import pytest

from hvdgrab.comm import worker
from hvdgrab.comm.communicator import SerialCommunicator
from hvdgrab.comm.worker import CommunicationThread
from hvdgrab.errors import CommunicationError, CommunicatorClosed


def ignore(error: BaseException) -> None:
    """The training loop is expected to hear of it."""


def started_thread(connect=SerialCommunicator, unheard=ignore, idle=None, **settings):
    waits = {"describe": lambda: "rank 0", "warn_every": 1.0, "give_up": 5.0}
    return CommunicationThread(connect, unheard, idle, **waits, **settings)


@pytest.fixture
def thread():
    started = started_thread(capacity=4)
    yield started
    started.close(timeout=5.0)


def fail(communicator):
    raise ValueError("broken message")


def test_jobs_run_in_order_and_bring_results(thread):
    assert [future.result(5) for future in [thread.submit(lambda comm, i=i: i) for i in range(20)]] == list(range(20))


def test_an_error_reaches_the_future_check_and_submit(thread):
    future = thread.submit(fail)
    with pytest.raises(ValueError, match="broken message"):
        future.result(5)
    with pytest.raises(ValueError, match="broken message"):
        thread.wait(thread.submit(lambda comm: None), "test")
    with pytest.raises(ValueError, match="broken message"):
        thread.check()


def test_jobs_behind_a_failed_one_get_its_error(thread):
    gate = threading.Event()
    thread.submit(lambda comm: gate.wait(5))
    futures = [thread.submit(fail), thread.submit(lambda comm: None), thread.submit(lambda comm: None)]
    gate.set()
    for future in futures:
        with pytest.raises(ValueError, match="broken message"):
            future.result(5)


def test_a_failing_connection_is_an_error_of_the_first_job():
    def connect():
        raise CommunicationError("no route")

    thread = started_thread(connect)
    with pytest.raises(CommunicationError, match="no route"):
        thread.wait(thread.submit(lambda comm: None), "test")
    thread.close(timeout=5.0)


def test_an_error_that_nobody_hears_ends_the_process(monkeypatch):
    monkeypatch.setattr(worker, "UNHEARD_SECONDS", 0.1)
    unheard, told = [], threading.Event()

    def end(error):
        unheard.append(error)
        told.set()

    thread = started_thread(unheard=end)
    thread.submit(fail)
    assert told.wait(5)
    assert str(unheard[0]) == "broken message"
    thread.close(timeout=5.0)


def test_a_full_queue_holds_the_training_loop_back(thread):
    gate = threading.Event()
    thread.submit(lambda comm: gate.wait(10))
    submitted = threading.Semaphore(0)

    def submit_many():
        for _ in range(8):
            thread.submit(lambda comm: None)
            submitted.release()

    producer = threading.Thread(target=submit_many)
    producer.start()
    assert all(submitted.acquire(timeout=5) for _ in range(4))
    assert not submitted.acquire(timeout=0.3), "the queue holds four jobs"
    gate.set()
    producer.join(5)
    assert not producer.is_alive()


def test_close_finishes_what_is_queued_and_is_idempotent(thread):
    done = []
    for number in range(3):
        thread.submit(lambda comm, number=number: done.append(number))
    assert thread.close(timeout=5.0)
    assert thread.close(timeout=5.0)
    assert done == [0, 1, 2]
    with pytest.raises(CommunicationError, match="closed"):
        thread.submit(lambda comm: None)


def test_close_never_hangs():
    gate = threading.Event()
    thread = started_thread()
    thread.submit(lambda comm: gate.wait(30))
    assert not thread.close(timeout=0.2)
    gate.set()


@pytest.fixture
def idle(monkeypatch):
    """Starts threads that look around often, with what is to be called then; closes them."""
    monkeypatch.setattr(worker, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(worker, "UNHEARD_SECONDS", 0.1)
    threads = []

    def start(callback, unheard=ignore):
        threads.append(started_thread(unheard=unheard, idle=callback))
        return threads[-1]

    yield start
    for thread in threads:
        thread.close(timeout=5.0)


def test_an_idle_thread_looks_around_with_its_communicator_and_never_during_a_job(idle):
    looks, busy, among = threading.Semaphore(0), threading.Event(), []

    def look(communicator):
        assert isinstance(communicator, SerialCommunicator)
        among.append((threading.current_thread().name, busy.is_set()))
        looks.release()

    thread = idle(look)
    assert all(looks.acquire(timeout=5) for _ in range(2))

    def job(communicator):
        busy.set()
        threading.Event().wait(0.1)
        busy.clear()
        return "done"

    assert thread.submit(job).result(5) == "done"
    before = len(among)
    assert all(looks.acquire(timeout=5) for _ in range(before))
    assert set(among) == {("hvdgrab-communication", False)}
    assert thread.close(timeout=5.0)
    after = len(among)
    assert not thread._thread.is_alive()
    assert len(among) == after


def test_what_an_idle_look_raises_ends_the_thread_and_the_process(idle):
    unheard, told = [], threading.Event()

    def end(error):
        unheard.append(error)
        told.set()

    looks = []

    def look(communicator):
        looks.append(1)
        raise ValueError("a rank is gone")

    thread = idle(look, end)
    assert told.wait(5), "though nothing was ever submitted"
    assert str(unheard[0]) == "a rank is gone"
    assert unheard[0].__context__ is None, "what is printed at the end is about this error alone"
    with pytest.raises(ValueError, match="a rank is gone"):
        thread.submit(lambda communicator: None)
    assert not thread.close(timeout=5.0)
    assert len(looks) == 1


def test_a_closed_communicator_is_not_an_error_of_an_idle_look(idle):
    looks = threading.Semaphore(0)

    def look(communicator):
        looks.release()
        raise CommunicatorClosed("MPI has ended")

    thread = idle(look)
    assert all(looks.acquire(timeout=5) for _ in range(3))
    assert thread.submit(lambda communicator: 1).result(5) == 1
    assert thread.close(timeout=5.0)
