from __future__ import annotations

from dataclasses import asdict, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.attempt.policy import Final, Restart, Verdict, decide
from launcher.jobdir.end import AttemptEnd
from launcher.plan.planning import restart_rules
from launcher.spec.model import RestartSettings

NOW = 1_000_000.0
DEFAULTS = restart_rules(RestartSettings())


def ends(*causes: str, **changes: Any) -> list[AttemptEnd]:
    made = []
    for number, cause in enumerate(causes, 1):
        state = {"finished": "succeeded", "cancelled": "cancelled"}.get(cause, "failed")
        fields = {"exit_code": 0 if state == "succeeded" else 7, "reason": "why", "seconds": 500.0, "ended": NOW, **changes}
        made.append(AttemptEnd(attempt=number, state=state, cause=cause, **fields))
    return made


def verdict(settings: dict[str, Any], history: list[AttemptEnd]) -> Verdict:
    return decide(replace(DEFAULTS, **{"jitter": 0.0, **settings}), history, NOW, Random(0))


def delay(settings: dict[str, Any], history: list[AttemptEnd]) -> float:
    found = verdict(settings, history)
    assert isinstance(found, Restart)
    return found.at - NOW


def test_the_defaults_are_those_of_the_spec() -> None:
    plain = RestartSettings().model_dump(exclude={"hang_after"})
    assert {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()} == asdict(DEFAULTS)


def test_success_and_cancellation_are_the_end_whatever_the_budgets() -> None:
    generous = dict.fromkeys(("failure", "hang", "lost_node", "preemption", "time_limit"), "unlimited")
    assert verdict(generous, ends("failure", "finished")) == Final("succeeded", 0, "why")
    assert verdict(generous, ends("cancelled", exit_code=130)) == Final("cancelled", 130, "why")


@pytest.mark.parametrize("cause", ["failure", "hang", "lost_node", "preemption", "time_limit"])
def test_every_cause_has_its_own_budget(cause: str) -> None:
    others = {name: "unlimited" for name in ("failure", "hang", "lost_node", "preemption", "time_limit") if name != cause}
    settings = {**others, cause: 2, "no_progress": 0}
    assert isinstance(verdict(settings, ends(cause, cause)), Restart)
    third = verdict(settings, ends(cause, cause, cause))
    assert isinstance(third, Final)
    assert f"restart.{cause} allows 2 restarts" in (third.reason or "")
    other = "hang" if cause != "hang" else "failure"
    assert isinstance(verdict(settings, ends(other, cause, other, cause)), Restart)


def test_without_a_budget_the_reason_is_the_attempts_own() -> None:
    assert verdict({}, ends("failure")) == Final("failed", 7, "why")


def test_preemption_restarts_without_end_by_default() -> None:
    assert isinstance(verdict({}, ends(*["preemption"] * 50)), Restart)


def test_permanent_exit_codes_end_it_but_only_for_failures() -> None:
    found = verdict({"failure": 9, "permanent_exit_codes": [2, 7]}, ends("failure"))
    assert isinstance(found, Final)
    assert "code 7 is in restart.permanent_exit_codes" in (found.reason or "")
    assert isinstance(verdict({"hang": 9, "permanent_exit_codes": [7]}, ends("hang")), Restart)


def test_the_back_off_grows_to_its_most_and_starts_anew_with_progress() -> None:
    settings = {"failure": "unlimited", "no_progress": 0, "backoff": 10, "backoff_factor": 3, "backoff_most": 80}
    assert [delay(settings, ends(*["failure"] * count)) for count in (1, 2, 3, 4)] == [10, 30, 80, 80]
    moved = [*ends("failure", "failure", progressed=True)]
    assert delay(settings, moved) == 10
    assert delay(settings, [*moved, *ends("failure")]) == 30
    assert delay(settings, ends(*["failure"] * 5_000)) == 80


def test_jitter_spreads_the_restarts() -> None:
    history = ends("failure")
    delays = [decide(replace(DEFAULTS, failure=1, jitter=0.2), history, NOW, Random(seed)) for seed in range(200)]
    seconds = [found.at - NOW for found in delays if isinstance(found, Restart)]
    assert len(seconds) == 200
    assert 8.0 <= min(seconds) < 8.5
    assert 11.5 < max(seconds) <= 12.0


def test_no_progress_in_a_row_is_a_verdict() -> None:
    settings = {"failure": "unlimited", "hang": "unlimited", "no_progress": 3}
    assert isinstance(verdict(settings, ends("failure", "hang")), Restart)
    found = verdict(settings, ends("failure", "hang", "failure"))
    assert isinstance(found, Final)
    assert found.reason == "why; 3 attempts in a row made no progress, as another would (restart.no_progress: 3)"
    assert isinstance(verdict(settings, [*ends("failure", progressed=True), *ends("failure", "failure")]), Restart)


def test_preempted_and_lost_attempts_say_nothing_about_progress() -> None:
    settings = {"failure": "unlimited", "lost_node": "unlimited", "no_progress": 2}
    assert isinstance(verdict(settings, ends("preemption", "lost_node", "preemption", "failure")), Restart)


def excluded(settings: dict[str, Any], history: list[AttemptEnd]) -> tuple[str, ...]:
    found = verdict({"failure": 99, "lost_node": 99, "no_progress": 0, "backoff": 0, **settings}, history)
    assert isinstance(found, Restart)
    return found.excluded_hosts


def test_a_node_that_fails_at_once_or_is_lost_is_left_out_for_a_while() -> None:
    assert excluded({}, ends("failure", seconds=5.0, bad_hosts=("n1",))) == ("n1",)
    assert excluded({}, ends("failure", seconds=500.0, bad_hosts=("n1",))) == ()
    assert excluded({}, ends("failure", seconds=5.0, bad_hosts=("n1",), progressed=True)) == ()
    assert excluded({}, ends("lost_node", seconds=500.0, bad_hosts=("n2", "n1"))) == ("n1", "n2")
    assert excluded({"exclude_node_for": 100}, ends("lost_node", bad_hosts=("n1",), ended=NOW - 101)) == ()
    assert excluded({}, ends("not_started", seconds=1.0, bad_hosts=("n3",))) == ("n3",)


def test_what_could_not_be_started_counts_as_a_failure_unless_a_host_is_to_blame() -> None:
    assert isinstance(verdict({"failure": 1}, ends("not_started")), Restart)
    assert isinstance(verdict({"lost_node": 1}, ends("not_started")), Final)
    assert isinstance(verdict({"lost_node": 1}, ends("not_started", bad_hosts=("n1",))), Restart)


@given(
    causes=st.lists(
        st.sampled_from(["failure", "hang", "lost_node", "preemption", "time_limit", "not_started"]), min_size=1, max_size=30
    ),
    budget=st.integers(0, 4) | st.just("unlimited"),
    progressed=st.booleans(),
    seed=st.integers(),
)
def test_a_restart_is_never_in_the_past_and_counted_budgets_end(
    causes: list[str], budget: int | str, progressed: bool, seed: int
) -> None:
    settings = dict.fromkeys(("failure", "hang", "lost_node", "preemption", "time_limit"), budget)
    found = decide(replace(DEFAULTS, **settings), ends(*causes, progressed=progressed), NOW, Random(seed))
    if isinstance(found, Restart):
        assert NOW <= found.at <= NOW + DEFAULTS.backoff_most * (1 + DEFAULTS.jitter)
    if isinstance(budget, int) and len(causes) > 5 * budget:
        assert isinstance(found, Final) or causes.count(causes[-1]) <= budget


def test_an_unlimited_number_of_attempts_may_make_no_progress() -> None:
    history = ends(*["failure"] * 40)
    assert isinstance(verdict({"failure": "unlimited", "no_progress": "unlimited"}, history), Restart)
    assert isinstance(verdict({"failure": "unlimited", "no_progress": 0}, history), Restart)
    assert isinstance(verdict({"failure": "unlimited", "no_progress": 40}, history), Final)
