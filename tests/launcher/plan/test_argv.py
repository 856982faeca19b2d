from __future__ import annotations

import shlex
from typing import Any

import pytest

from launcher.errors import PlanError
from launcher.plan.mpi import MPIS, options_of
from launcher.plan.planning import choose
from tests.launcher.helpers import JOB_ID, host, mpirun, plan

WRAPPER = f"/opt/py/bin/python -m launcher.attempt.rank.wrapper /jobs/{JOB_ID} 1"
MPIRUN = "command: x\nbackend: {kind: mpirun}\nresources: "


def argv(resources: str, **facts: Any) -> str:
    return shlex.join(plan(MPIRUN + resources, **facts).argv)


@pytest.mark.parametrize(
    ("resources", "facts", "expected"),
    [
        ("{ranks: 2}", {}, "-np 2 -H localhost:2 --bind-to none --map-by slot"),
        (
            "{ranks: 2, allow_root: true}",
            {"root": True},
            "-np 2 -H localhost:2 --allow-run-as-root --bind-to none --map-by slot",
        ),
        (
            "{ranks: 6, oversubscribe: true}",
            {},
            "-np 6 -H localhost:6 --bind-to none --map-by slot --oversubscribe",
        ),
        ("{ranks: 2, binding: core}", {}, "-np 2 -H localhost:2 --bind-to core --map-by slot:PE=2"),
        (
            "{ranks: 6, oversubscribe: true, binding: core}",
            {},
            "-np 6 -H localhost:6 --bind-to core:overload-allowed --map-by slot --oversubscribe",
        ),
        ("{ranks: 2}", {"mpirun": mpirun("openmpi", 5, 0, 8)}, "-np 2 --host localhost:2 --bind-to none --map-by slot"),
        (
            "{ranks: 6, oversubscribe: true}",
            {"mpirun": mpirun("openmpi", 5, 0, 8)},
            "-np 6 --host localhost:6 --bind-to none --map-by slot:OVERSUBSCRIBE",
        ),
        ("{ranks: 2, allow_root: true}", {"mpirun": mpirun("mpich", 4, 3), "root": True}, "-np 2 -bind-to none"),
        ("{ranks: 2, binding: core}", {"mpirun": mpirun("mpich", 4, 3)}, "-np 2 -bind-to core:2"),
        ("{ranks: 2}", {"mpirun": mpirun("intel", 2021, 9)}, "-np 2 -genv I_MPI_PIN 0"),
    ],
)
def test_golden_mpirun(resources: str, facts: dict[str, Any], expected: str) -> None:
    assert argv(resources, **facts) == f"/opt/mpi/bin/mpirun {expected} {WRAPPER}"


def test_golden_horovodrun_quotes_what_reaches_a_shell() -> None:
    text = "command: x\nbackend: {kind: horovodrun, extra_args: ['--mca', 'a', 'b c; $(id)']}\nresources: {ranks: 2}"
    made = plan(text).argv
    assert shlex.join(made[:4]) == "/opt/py/bin/horovodrun --mpi -np 2"
    assert made[4] == "--binding-args=--bind-to none --map-by slot"
    assert made[5] == "--mpi-args=--mca a 'b c; $(id)'"
    assert shlex.join(made[6:]) == WRAPPER


def test_ranks_that_share_cores_yield_when_they_wait() -> None:
    text = "command: x\nresources: {ranks: 6, oversubscribe: true}"
    assert plan(text).launch.environment["OMPI_MCA_mpi_yield_when_idle"] == "1"
    assert "OMPI_MCA_mpi_yield_when_idle" not in plan("command: x").launch.environment


@pytest.mark.parametrize("binding", ["none", "core", "socket", "numa"])
@pytest.mark.parametrize("key", sorted(MPIS))
def test_binding_is_explicit_for_every_mpi(key: tuple[str, int], binding: str) -> None:
    options = argv(f"{{ranks: 2, binding: {binding}}}", mpirun=mpirun(*key)).replace(WRAPPER, "")
    assert "bind" in options or "I_MPI_PIN" in options
    assert "{" not in options


@pytest.mark.parametrize(
    ("kind", "ranks", "facts", "backend"),
    [
        ("auto", 1, {"mpirun": None}, "local"),
        ("auto", 2, {}, "mpirun"),
        ("auto", 2, {"horovodrun": None}, "mpirun"),
        ("auto", 2, {"mpirun": mpirun("openmpi", 5, 0, 8)}, "mpirun"),
        ("auto", 2, {"mpirun": mpirun("mpich", 4, 3)}, "mpirun"),
        ("mpirun", 1, {}, "mpirun"),
        ("horovodrun", 1, {}, "horovodrun"),
        ("local", 1, {}, "local"),
    ],
)
def test_choice(kind: str, ranks: int, facts: dict[str, Any], backend: str) -> None:
    chosen, reason = choose(kind, ranks, host(**facts))
    assert chosen == backend
    assert reason


@pytest.mark.parametrize(
    ("kind", "facts", "message"),
    [
        ("local", {}, "local starts one rank, not 2"),
        ("auto", {"mpirun": None}, "no mpirun on PATH or beside python"),
        ("mpirun", {"mpirun": mpirun("unknown")}, "no MPI that is known here: a banner"),
        ("horovodrun", {"horovodrun": None}, "no horovodrun on PATH"),
        ("horovodrun", {"mpirun": mpirun("openmpi", 5, 0, 8)}, "options that Open MPI 5.0.8 refuses: use `backend.kind: mpirun`"),
    ],
)
def test_refused_choices(kind: str, facts: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message.replace("(", r"\(")):
        choose(kind, 2, host(**facts))


def test_versions_between_the_known_ones() -> None:
    assert options_of("openmpi", (4, 0, 2)) is MPIS["openmpi", 4]
    assert options_of("openmpi", (3, 1)) is MPIS["openmpi", 4]
    assert options_of("openmpi", (6, 0)) is MPIS["openmpi", 5]
    assert options_of("mpich", (5, 0)) is MPIS["mpich", 4]


@pytest.mark.parametrize(
    ("backend", "facts", "first"),
    [
        ("local", {}, "/opt/py/bin/python"),
        ("mpirun", {}, "/opt/mpi/bin/mpirun"),
        ("horovodrun", {}, "/opt/py/bin/horovodrun"),
        ("slurm", {}, "sbatch"),
        ("srun", {"allocation": 4}, "srun"),
    ],
)
def test_every_backend_starts_its_own_program(backend: str, facts: dict[str, Any], first: str) -> None:
    kind = "slurm" if backend == "srun" else backend
    made = plan(f"command: x\nresources: {{ranks: 1}}\nbackend: {{kind: {kind}}}", **facts)
    assert (made.launch.backend, made.argv[0]) == (backend, first)
