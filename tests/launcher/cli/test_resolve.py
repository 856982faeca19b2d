from __future__ import annotations

import pytest

from launcher.cli.resolve import Known, resolve, resolve_all
from launcher.errors import UsageError

GROUP = "sweep-20250103-000000-0001"
JOBS = [
    Known("lstm-20250101-000000-aaaa", "lstm", active=True),
    Known("lstm-20250102-000000-abcd", "lstm"),
    Known("lstm-big-20250102-000000-beef", "lstm-big", "nightly"),
    Known("sweep-a-20250103-000000-0002", "sweep-a", GROUP),
    Known("sweep-b-20250103-000000-0003", "sweep-b", GROUP),
    Known("solo-20250104-000000-0004", "solo", "nightly", active=True),
]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("lstm-20250101-000000-aaaa", [0]),
        ("lstm", [1]),
        ("lstm-20250101", [0]),
        ("lstm-b", [2]),
        (GROUP, [3, 4]),
        ("sweep", [3, 4]),
        ("sweep-2025", [3, 4]),
        ("sweep-a", [3]),
        ("sweep-b-2", [4]),
        ("nightly", [2, 5]),
        ("night", [2, 5]),
        ("so", [5]),
    ],
)
def test_ids_names_groups_and_beginnings(wanted: str, found: list[int]) -> None:
    assert resolve(wanted, JOBS) == [JOBS[place].id for place in found]


def test_a_name_means_its_newest_job_or_the_newest_that_has_not_ended() -> None:
    assert resolve("lstm", JOBS, prefer_active=True) == [JOBS[0].id]
    assert resolve("lstm-big", JOBS, prefer_active=True) == [JOBS[2].id]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("lstm-2025", "'lstm-2025' fits 2 jobs: lstm-20250101-000000-aaaa, lstm-20250102-000000-abcd"),
        ("s", "'s' fits 4 jobs"),
        ("", "no job ''"),
        ("lstn", "did you mean 'lstm'?"),
        ("zebra", "`hvdgrab-launch ls` shows what is there"),
    ],
)
def test_what_fits_nothing_or_several_is_refused_with_help(wanted: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(wanted, JOBS)
    assert message in str(caught.value)


def test_a_later_group_of_the_same_name_is_the_one_that_is_meant() -> None:
    later = [Known(f"sweep-a-20250105-000000-{k:04x}", "sweep-a", "sweep-20250105-000000-0009") for k in range(2)]
    assert resolve("sweep", [*JOBS, *later]) == [job.id for job in later]


def test_several_words_name_each_job_once() -> None:
    assert resolve_all(["sweep-a", "sweep", "lstm"], JOBS) == [JOBS[3].id, JOBS[4].id, JOBS[1].id]
