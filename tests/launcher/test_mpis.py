"""A job of two ranks under each of the MPIs: binding, exit codes, the server rank, cancel."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from launcher.plan import Plan
from tests.launcher import mpis
from tests.launcher.attempts import end_of, job_of, python, run, supervise, until, with_token

RANK = "next(os.environ[n] for n in ('OMPI_COMM_WORLD_RANK', 'PMIX_RANK', 'PMI_RANK') if n in os.environ)"
SHOW = f"import os; print({RANK}, os.sched_getaffinity(0), [n for n in os.environ if 'MARK' in n])"
CORES = len(os.sched_getaffinity(0))


@pytest.fixture(params=mpis.NAMES)
def mpirun(request: pytest.FixtureRequest) -> str:
    return mpis.find(str(request.param))


def test_ranks_are_bound_as_the_spec_says_and_their_codes_are_their_own(mpirun: str, tmp_path: Path) -> None:
    code = SHOW + f"; raise SystemExit(300 if {RANK} == '1' else 0)"
    bound = {"binding": "core", "oversubscribe": CORES < 2}
    job = job_of(tmp_path, python(code), backend={"mpirun": mpirun}, resources=bound, env={"X_MARK_X": "$HOME `id`"})
    end = run(job)
    assert (end.state, end.cause, end.exit_code, end.first_failing_rank) == ("failed", "failure", 44, 1), end
    seen = [job.rank_log(rank).read_text().split() for rank in (0, 1)]
    assert [words[0] for words in seen] == ["0", "1"]
    assert all("X_MARK_X" in " ".join(words) for words in seen)
    assert CORES < 2 or {words[1] for words in seen} == {"{0}", "{1}"}, "each rank has a core of its own"


def test_one_rank_more_may_order_for_the_others(mpirun: str, tmp_path: Path) -> None:
    job = job_of(tmp_path, python(SHOW), backend={"mpirun": mpirun}, resources={"server_ranks": 1})
    plan = Plan.from_json(job.plan.read_text())
    assert (plan.ranks, plan.training_ranks) == (3, 2)
    replaced = job.attempt(1).plan.read_text().replace('"hvdgrab.server"', '"platform"')
    job.attempt(1).plan.write_text(replaced)
    end = run(job)
    assert end.state == "succeeded", (end, job.backend_log.read_text())
    assert job.rank_log(1).read_text().startswith("1 ")
    assert job.rank_log(2).read_text().startswith("Linux")


def test_cancel_leaves_nothing(mpirun: str, tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    job = job_of(tmp_path, python(code), backend={"mpirun": mpirun})
    process = supervise(job)
    until(lambda: all(job.rank_log(rank).exists() and job.rank_log(rank).read_bytes() for rank in (0, 1)), "the start")
    job.cancel.touch()
    process.send_signal(signal.SIGTERM)
    end = end_of(job, process)
    assert (end.state, end.exit_code, end.remaining) == ("cancelled", 130, ())
    assert with_token(job.id) == []
