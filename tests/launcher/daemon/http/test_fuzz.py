"""Requests made from the API's own OpenAPI document: whatever is sent, the daemon answers in time, with no error of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.daemon.http.app import build_app
from launcher.daemon.http.server import ChangeNotifier
from tests.launcher.daemon.kit import World

hypothesis = pytest.importorskip("hypothesis")
schemathesis = pytest.importorskip("schemathesis")
ANSWER_SECONDS = 60.0
"""Longer is a hang, however busy the machine is."""


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, World, list[str]]]:
    monkeypatch.setattr("launcher.daemon.http.app.LONGEST_WAIT", 0.05)
    monkeypatch.setattr("launcher.daemon.requests.CLOSING_SECONDS", 0.05)
    world = World(tmp_path)
    jobs = [world.submit(name) for name in ("ended", "failed", "running", "waiting")]
    world.tick()
    world.end(jobs[0])
    world.end(jobs[1], 3)
    world.tick(times=2)
    yield build_app(world.requests, ChangeNotifier()), world, jobs
    world.store.close()


def fuzz(application: tuple[Any, World, list[str]], examples: int) -> dict[str, int]:
    """Send ``examples`` requests to each operation; returns how many answers there were of each kind."""
    app, world, jobs = application
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    answers: dict[str, int] = {}
    for result in schema.get_all_operations():
        run_one(result.ok(), jobs, answers, examples)
    world.tick(times=2)
    assert world.store.counts(), "the record is as usable as before"
    return answers


def run_one(operation: Any, jobs: list[str], answers: dict[str, int], examples: int) -> None:
    name = f"{operation.method.upper()} {operation.path}"

    @hypothesis.settings(
        max_examples=examples, deadline=None, database=None, derandomize=True, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.given(case=operation.as_strategy(), known=hypothesis.strategies.sampled_from([None, *jobs]))
    def one(case: Any, known: str | None) -> None:
        if known is not None and "id" in (case.path_parameters or {}):
            case.path_parameters["id"] = known
        if name.endswith("/wait") and known is not None:
            case.query = {**(case.query or {}), "timeout": 0.01}
        began = time.monotonic()
        answer = case.call()
        assert answer.status_code < 500, (name, answer.status_code, answer.text)
        assert time.monotonic() - began < ANSWER_SECONDS, name
        json.loads(answer.content)
        key = f"{name} {answer.status_code}"
        answers[key] = answers.get(key, 0) + 1

    run: Callable[[], None] = one
    run()


def test_a_sample_of_requests_is_answered_without_an_error_of_the_daemons_own(application: Any) -> None:
    answers = fuzz(application, 8)
    for known in ("GET /v1/jobs/{id} 200", "POST /v1/jobs/{id}/cancel 200", "GET /v1/jobs/{id}/events 200", "GET /v1/daemon 200"):
        assert answers.get(known), (known, answers)
    assert answers.get("POST /v1/jobs 422") or answers.get("POST /v1/jobs 400")


@pytest.mark.soak
def test_many_requests_are_answered_without_an_error_of_the_daemons_own(application: Any) -> None:
    answers = fuzz(application, 2000)
    assert sum(answers.values()) > 10_000
