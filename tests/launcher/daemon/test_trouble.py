"""What goes wrong with one job again and again."""

from __future__ import annotations

import errno
import logging

import pytest

from launcher.daemon import main
from launcher.daemon.record import RecordError
from launcher.daemon.spool import Spool
from tests.launcher.daemon.kit import World


def said(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if word in record.getMessage()]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "hvdgrab.daemon")
    return caplog


def test_a_fault_of_a_job_is_said_once_again_when_it_changes_and_when_it_is_over(
    world: World, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, other = world.submit(), world.submit("other")
    world.tick()
    world.end(job)
    world.end(other, 3)
    code = errno.EIO

    def sick(self: object, given: object, gone: object = None) -> None:
        if given.id == job:  # type: ignore[attr-defined]
            raise OSError(code, "Input/output error" if code == errno.EIO else "Stale file handle", "/jobs/end.json")
        ended(self, given, gone)  # type: ignore[arg-type]

    ended = type(world.engine._ending).ended
    with monkeypatch.context() as patch:
        patch.setattr(type(world.engine._ending), "ended", sick)
        world.tick(times=5)
        assert len(said(log, "/jobs/end.json: Input/output error")) == 1
        assert world.view(other).state == "failed", "the others are looked after"
        assert world.view(job).state == "starting"
        assert world.view(job).reason == "it cannot be looked at now: /jobs/end.json: Input/output error"
        code = errno.ESTALE
        world.tick(times=5)
        assert len(said(log, "/jobs/end.json: Stale file handle")) == 1
    world.tick(times=3)
    assert (world.view(job).state, world.view(job).reason) == ("succeeded", None)
    assert len(said(log, "can be looked at again")) == 1
    assert [event for event in world.events(job) if event.startswith("trouble")] == ["trouble", "trouble", "trouble-over"]


def test_a_fault_ends_with_its_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = world.submit(restart={"failure": 1, "backoff": "10s"})
    world.tick()

    def sick(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    world.requests.cancel(job)
    with monkeypatch.context() as patch:
        patch.setattr(world.starter, "stop", sick)
        world.tick()
        assert "it cannot be stopped now: Operation not permitted" in str(world.view(job).reason)
        world.end(job, 130, cause="cancelled", state="cancelled", reason="cancelled")
        world.tick(times=2)
    assert (world.view(job).state, world.view(job).reason) == ("cancelled", "cancelled")
    assert world.context.troubles == {}


def test_a_starter_that_cannot_be_asked_keeps_no_other_jobs_from_their_turn(
    world: World, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.submit()
    world.tick()

    def sick(*_: object) -> None:
        raise ValueError("half a line")

    monkeypatch.setattr(world.starter, "look", sick)
    later = world.submit("later")
    world.tick(times=3)
    assert world.view(job).state == world.view(later).state == "starting"
    assert len(said(log, "ValueError: half a line")) == 1


def test_what_keeps_the_daemon_from_its_work_is_said_once_and_its_end_too(
    world: World, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = iter(["the disk is full"] * 3 + ["it is locked"] * 2)

    def tick(now: float) -> float:
        text = next(texts, None)
        if text is not None:
            raise RecordError(text)
        world.context.stopping.set()
        return 0.0

    monkeypatch.setattr(main, "PROBLEM_PAUSE", 0.001)
    monkeypatch.setattr(world.engine, "tick", tick)
    main.work(world.context, world.engine, Spool(world.context, world.requests), main.Waker())
    assert [len(said(log, text)) for text in ("the disk is full", "it is locked", "the work goes on")] == [1, 1, 1]
    assert world.context.problem is None
