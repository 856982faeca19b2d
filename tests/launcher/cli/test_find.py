from __future__ import annotations

import pytest

from launcher.cli.find import Listed, resolve, resolve_all
from launcher.errors import UsageError
from tests.launcher.cli.test_views import view


def known(id: str, group: str | None = None, state: str = "succeeded") -> Listed:
    return Listed(view(id[:-21], state, id=id, group=group))


GROUP = "sweep-20250103-000000-0001"
JOBS = [
    known("lstm-20250101-000000-aaaa", state="running"),
    known("lstm-20250102-000000-abcd"),
    known("lstm-big-20250102-000000-beef", "nightly"),
    known("sweep-a-20250103-000000-0002", GROUP),
    known("sweep-b-20250103-000000-0003", GROUP),
    known("solo-20250104-000000-0004", "nightly", "running"),
]


def ids(jobs: list[Listed]) -> list[str]:
    return [job.id for job in jobs]


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
    assert ids(resolve(wanted, JOBS)) == [JOBS[place].id for place in found]


def test_a_name_means_its_newest_job_or_the_newest_that_has_not_ended() -> None:
    assert ids(resolve("lstm", JOBS, prefer_active=True)) == [JOBS[0].id]
    assert ids(resolve("lstm-big", JOBS, prefer_active=True)) == [JOBS[2].id]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("lstm-2025", "'lstm-2025' fits 2 jobs: lstm-20250101-000000-aaaa, lstm-20250102-000000-abcd"),
        ("s", "'s' fits 4 jobs"),
        ("", "no job ''"),
        *((wanted, f"no job {wanted!r}") for wanted in (".", "..", "../x", "/etc", "a/b")),
        ("lstn", "did you mean 'lstm'?"),
        ("zebra", "`hvdgrab-launch ls` shows what is there"),
    ],
)
def test_what_fits_nothing_or_several_is_refused_with_help(wanted: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(wanted, JOBS)
    assert message in str(caught.value)


def test_a_later_group_of_the_same_name_is_the_one_that_is_meant() -> None:
    later = [known(f"sweep-a-20250105-000000-{k:04x}", "sweep-20250105-000000-0009") for k in range(2)]
    assert resolve("sweep", [*JOBS, *later]) == later


def test_several_words_name_each_job_once() -> None:
    assert resolve_all(["sweep-a", "sweep", "lstm"], JOBS) == [JOBS[3], JOBS[4], JOBS[1]]
