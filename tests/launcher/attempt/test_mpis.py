"""A job of two ranks under each of the MPIs: binding, exit codes, the server rank, cancel."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from launcher.jobdir.plan import Plan
from tests.launcher import mpis
from tests.launcher.attempts import end_of, job_of, python, run, supervise, until, with_token
from tests.real import need

RANK = "next(os.environ[n] for n in ('OMPI_COMM_WORLD_RANK', 'PMIX_RANK', 'PMI_RANK') if n in os.environ)"
SHOW = f"import os; print({RANK}, os.sched_getaffinity(0), [n for n in os.environ if 'MARK' in n])"
CORES = len(os.sched_getaffinity(0))


SUM = r"""
#include <mpi.h>
#include <stdio.h>
int main(int count, char **words) {
    int rank, size, mine, sum;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    mine = rank + 1;
    MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("%d of %d: %d\n", rank, size, sum);
    return MPI_Finalize();
}
"""


def each(ordinarily: str) -> pytest.MarkDecorator:
    """Every MPI: one in the ordinary run, all in the long one."""
    return pytest.mark.parametrize(
        "name", [name if name == ordinarily else pytest.param(name, marks=pytest.mark.soak) for name in mpis.NAMES]
    )


@pytest.mark.parametrize("name", mpis.NAMES)
def test_ranks_are_bound_as_the_spec_says_and_their_codes_are_their_own(name: str, tmp_path: Path) -> None:
    code = SHOW + f"; raise SystemExit(300 if {RANK} == '1' else 0)"
    bound = {"binding": "core", "oversubscribe": CORES < 2}
    job = job_of(tmp_path, python(code), backend={"mpirun": mpis.find(name)}, resources=bound, env={"X_MARK_X": "$HOME `id`"})
    end = run(job)
    assert (end.state, end.cause, end.exit_code, end.first_failing_rank) == ("failed", "failure", 44, 1), end
    seen = [job.rank_log(rank).read_text().split() for rank in (0, 1)]
    assert [words[0] for words in seen] == ["0", "1"]
    assert all("X_MARK_X" in " ".join(words) for words in seen)
    assert CORES < 2 or {words[1] for words in seen} == {"{0}", "{1}"}, "each rank has a core of its own"


@each("openmpi5")
def test_one_rank_more_may_order_for_the_others(name: str, tmp_path: Path) -> None:
    job = job_of(tmp_path, python(SHOW), backend={"mpirun": mpis.find(name)}, resources={"server_ranks": 1})
    plan = Plan.from_json(job.plan.read_text())
    assert (plan.placement.ranks, plan.placement.server_ranks) == (3, 1)
    replaced = job.attempt(1).plan.read_text().replace('"hvdgrab.server"', '"platform"')
    job.attempt(1).plan.write_text(replaced)
    end = run(job)
    assert end.state == "succeeded", (end, job.backend_log.read_text())
    assert job.rank_log(1).read_text().startswith("1 ")
    assert job.rank_log(2).read_text().startswith("Linux")


@each("mpich")
def test_cancel_leaves_nothing(name: str, tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    job = job_of(tmp_path, python(code), backend={"mpirun": mpis.find(name)})
    process = supervise(job)
    until(lambda: all(job.rank_log(rank).exists() and job.rank_log(rank).read_bytes() for rank in (0, 1)), "the start")
    job.cancel.touch()
    process.send_signal(signal.SIGTERM)
    end = end_of(job, process)
    assert (end.state, end.exit_code, end.remaining) == ("cancelled", 130, ())
    assert with_token(job.id) == []


@pytest.mark.parametrize("name", mpis.WHEELS)
def test_the_wrapper_hands_down_what_mpi_needs(name: str, tmp_path: Path) -> None:
    need("gcc", shutil.which("gcc") is not None)
    path = mpis.find(name)
    home = Path(path).parent.parent
    (tmp_path / "sum.c").write_text(SUM)
    places = [f"-I{home}/include", f"-L{home}/lib", f"-Wl,-rpath,{home}/lib"]
    subprocess.run(["gcc", tmp_path / "sum.c", "-o", tmp_path / "sum", *places, "-lmpi"], check=True)
    job = job_of(tmp_path, [str(tmp_path / "sum")], backend={"mpirun": path})
    assert run(job).state == "succeeded", job.backend_log.read_text()
    assert [job.rank_log(rank).read_text() for rank in (0, 1)] == ["0 of 2: 3\n", "1 of 2: 3\n"]
