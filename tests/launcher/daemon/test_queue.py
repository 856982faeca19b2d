from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.daemon.queue import Capacity, load, pick_jobs_to_start
from launcher.daemon.record import Job
from launcher.errors import LauncherError

NUMBERS = itertools.count(1)


def job(name: str, cpus: int = 1, gpus: int = 0, **changes: Any) -> Job:
    fields: dict[str, Any] = {
        "id": name, "dir": f"/jobs/{name}", "name": name, "state": "queued", "submitted": 0.0, "ranks": cpus, "backend": "local",
        "starter": "local", "cpus": cpus, "gpus": gpus, "seq": next(NUMBERS), **changes,
    }  # fmt: skip
    return Job(**fields)


def started(waiting: list[Job], under_way: list[Job], capacity: Capacity, **states: str) -> list[str]:
    return [entry.id for entry, _ in pick_jobs_to_start(waiting, under_way, states, capacity).starts]


def test_higher_priorities_start_first_and_equal_ones_in_order() -> None:
    waiting = [job("a"), job("b", priority=5), job("c", priority=5), job("d", priority=-1)]
    assert started(waiting, [], Capacity(cpus=3)) == ["b", "c", "a"]


def test_no_small_job_passes_a_large_one_that_waits() -> None:
    waiting = [job("large", 4), job("small", 1), job("cluster", 0)]
    picked = pick_jobs_to_start(waiting, [job("busy", 2)], {}, Capacity(cpus=4))
    assert [entry.id for entry, _ in picked.starts] == ["cluster"], "what needs no slot of this host need not wait"
    assert picked.reasons == {"large": "waits for 4 CPU slots; 2 of 4 are free", "small": "waits for its turn behind large"}


def test_a_job_larger_than_the_host_runs_alone() -> None:
    assert started([job("large", 99)], [], Capacity(cpus=4)) == ["large"]
    assert started([job("large", 99)], [job("other")], Capacity(cpus=4)) == []
    assert started([job("other")], [job("large", 99)], Capacity(cpus=4)) == []


def test_more_gpus_than_exist_hold_nobody_back_and_say_so() -> None:
    picked = pick_jobs_to_start([job("huge", 1, 9), job("small", 1, 1)], [], {}, Capacity(cpus=4, gpus=("0", "1")))
    assert [(entry.id, gpus) for entry, gpus in picked.starts] == [("small", ("0",))]
    assert picked.reasons["huge"].startswith("needs 9 GPUs; this host has 2")


def test_max_running_counts_every_job() -> None:
    picked = pick_jobs_to_start([job("a", 0), job("b")], [job("x")], {}, Capacity(cpus=9, max_running=2))
    assert [entry.id for entry, _ in picked.starts] == ["a"]
    assert picked.reasons["b"] == "waits for its turn: 2 jobs are under way, and max_running is 2"


@pytest.mark.parametrize(
    ("state", "kind", "text"),
    [
        ("succeeded", "start", ""),
        ("running", "wait", "waits for other"),
        ("failed", "never", "it depends on other, which failed"),
        ("cancelled", "never", "it depends on other, which was cancelled"),
        (None, "never", "it depends on other, which is not in the record"),
    ],
)
def test_dependencies(state: str | None, kind: str, text: str) -> None:
    picked = pick_jobs_to_start([job("a", depends_on=("other",))], [], {"other": state} if state else {}, Capacity(cpus=1))
    assert bool(picked.starts) == (kind == "start")
    assert {"start": "", "wait": picked.reasons.get("a"), "never": picked.never.get("a")}[kind] == text


@given(
    waiting=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.integers(-2, 2)), max_size=12),
    cpus=st.integers(1, 8),
    gpus=st.integers(0, 3),
    most=st.none() | st.integers(1, 4),
)
def test_nothing_is_given_out_twice_and_every_job_is_accounted_for(
    waiting: list[tuple[int, int, int]], cpus: int, gpus: int, most: int | None
) -> None:
    jobs = [job(f"j{number}", c, g, priority=p) for number, (c, g, p) in enumerate(waiting)]
    capacity = Capacity(cpus, tuple(str(number) for number in range(gpus)), most)
    picked = pick_jobs_to_start(jobs, [], {}, capacity)
    given_out = [gpu for _, ids in picked.starts for gpu in ids]
    assert len(given_out) == len(set(given_out))
    assert all(len(ids) == entry.gpus for entry, ids in picked.starts)
    assert sum(min(entry.cpus, cpus) for entry, _ in picked.starts) <= cpus
    assert most is None or len(picked.starts) <= most
    assert {entry.id for entry, _ in picked.starts} | set(picked.reasons) == {entry.id for entry in jobs}


def test_settings_come_from_the_file_and_variables_hold_over_it(tmp_path: Any) -> None:
    file = tmp_path / "daemon.yaml"
    file.write_text("max_running: 3\ncpus: 10\n")
    assert load(file, {"HVDGRAB_CPUS": "12", "HVDGRAB_GPUS": "2"}) == Capacity(12, ("0", "1"), 3)
    assert load(tmp_path / "none", {"CUDA_VISIBLE_DEVICES": "4,GPU-ab"}).gpus == ("4", "GPU-ab")


@pytest.mark.parametrize(
    ("text", "variables", "words"),
    [
        ("max_runing: 3", {}, "there is no setting 'max_runing'"),
        ("cpus: many", {}, "cpus: 'many' is no whole number"),
        ("- 1", {}, "are no mapping"),
        ("cpus: [", {}, "cannot be read"),
        ("", {"HVDGRAB_MAX_RUNNING": "0"}, "HVDGRAB_MAX_RUNNING: 0 is no whole number from 1 on"),
        ("", {"HVDGRAB_CPUS": "1e3"}, "HVDGRAB_CPUS: '1e3' is no whole number"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Any, text: str, variables: dict[str, str], words: str) -> None:
    file = tmp_path / "daemon.yaml"
    file.write_text(text)
    with pytest.raises(LauncherError, match=words):
        load(file, variables)
