from __future__ import annotations

import pytest

from launcher.errors import BackendError
from launcher.plan.facts import Allocation
from launcher.slurm import ranks
from launcher.slurm.ranks import brief, pmi_type
from launcher.slurm.start_method import StartMethod, no_method

ALLOCATION = Allocation("7", ("n1", "n2"), (2, 2), (4, 4), in_step=False, restarts=0)
INSIDE = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_NTASKS": "4"}


def test_a_command_in_a_log_is_one_line_and_not_too_long() -> None:
    assert brief(["python", "-c", "a\nb  c"]) == "python -c 'a b c'"
    assert brief(["x" * 1000]) == "x" * 300 + " ..."


def test_the_type_of_pmi_is_asked_for_where_srun_alone_will_do() -> None:
    assert pmi_type(StartMethod("srun", "pmi2", None, "")) == "pmi2"
    with pytest.raises(BackendError, match=r"srun starts no ranks here \(Open MPI; srun does not do: pmix\): .*MPI_TYPE"):
        pmi_type(StartMethod("mpirun", "", None, "Open MPI; srun does not do: pmix"))


@pytest.mark.parametrize(
    ("wanted", "tried", "words"),
    [
        ("auto", [("pmix", "x")], r"by srun \(--mpi=pmix: x\), and there is no mpirun .*module load"),
        ("auto", [], "offers neither pmix nor pmi2"),
        ("pmi2", [("pmi2", "x")], r"by srun \(--mpi=pmi2: x\): ask for another type"),
        ("mpirun", [], "^job 7: there is no mpirun on PATH"),
    ],
)
def test_where_nothing_works_it_is_said_what_would(wanted: str, tried: list[tuple[str, str]], words: str) -> None:
    with pytest.raises(BackendError, match=words):
        raise no_method(ALLOCATION, tried, wanted)


def test_what_would_be_started_is_shown_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ranks, "choose", lambda *_: StartMethod("srun", "pmix", None, "it works"))
    code = "print(1)\n" * 100
    assert ranks.main(["--show", "--", "python", "-c", code], INSIDE) == 0
    said = capsys.readouterr().out
    assert said.startswith("4 ranks on n1, n2 (it works): srun --mpi=pmix --ntasks=4 ")
    assert code in said
    assert ranks.main(["--type"], INSIDE) == 0
    assert capsys.readouterr().out == "pmix\n"
    assert ranks.main(["true"], {}) == 2
    assert "submit the script with sbatch, or call salloc before" in capsys.readouterr().err
