"""Several hosts, in each MPI's own words."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import PlanError
from launcher.jobdir.paths import JobPaths
from launcher.plan.planning import make_plan
from tests.launcher.helpers import JOB_ID, host, mpirun, plan, spec

HOSTS = (
    "command: x\nbackend: {{kind: {}}}\nsecrets: [TOKEN]\n"
    "resources: {{ranks: 4, hosts: ['a:2', 'b:2'], ssh: {{port: 2222, identity: /k}}}}"
)
SHELL = f"/jobs/{JOB_ID}/attempts/0001/remote-shell"


def argv(kind: str, **facts: Any) -> str:
    words = plan(HOSTS.format(kind), **facts).argv
    return shlex.join(words[: words.index("/opt/py/bin/python")])


@pytest.mark.parametrize(
    ("mpi", "expected"),
    [
        (mpirun("openmpi", 4, 1, 8), f"-H a:2,b:2 --mca plm_rsh_agent {SHELL} -x HVDGRAB_ATTEMPT"),
        (mpirun("openmpi", 5, 0, 8), f"--host a:2,b:2 --prtemca plm_ssh_agent {SHELL} -x HVDGRAB_ATTEMPT"),
        (mpirun("mpich", 5, 0, 2), f"-hosts a:2,b:2 -launcher ssh -launcher-exec {SHELL} -bind-to none"),
    ],
)
def test_golden_hosts(mpi: Any, expected: str) -> None:
    assert argv("mpirun", mpirun=mpi).startswith(f"/opt/mpi/bin/mpirun -np 4 {expected}")


def test_open_mpi_is_told_the_names_of_all_that_must_arrive_and_no_value() -> None:
    words = argv("mpirun").split()
    names = {words[at + 1] for at, word in enumerate(words) if word == "-x"}
    assert {"TOKEN", "HVDGRAB_JOB_ID", "HVDGRAB_SUPERVISOR", "OMP_NUM_THREADS"} <= names
    assert not any("=" in name for name in names)


def test_golden_horovodrun_on_hosts() -> None:
    expected = "-np 4 -H a:2,b:2 --ssh-port 2222 --ssh-identity-file /k"
    expected += f" '--binding-args=--bind-to none --map-by slot' '--mpi-args=--mca plm_rsh_agent {SHELL}'"
    assert expected in argv("horovodrun")


def test_a_path_with_a_blank_is_refused_where_it_would_be_taken_apart() -> None:
    job = JobPaths(Path("/my jobs") / JOB_ID)
    with pytest.raises(PlanError, match="/my jobs/.* holds a blank, and Open MPI cannot reach other hosts from there"):
        make_plan(spec(HOSTS.format("mpirun")), host(), job)
    make_plan(spec(HOSTS.format("mpirun")), host(mpirun=mpirun("mpich", 5, 0, 2)), job)
    make_plan(spec("command: x"), host(), job)
