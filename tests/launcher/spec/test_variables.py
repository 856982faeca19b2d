from __future__ import annotations

import pytest

from launcher.spec.variables import MAX_ARGUMENT, check_argument, check_variable_name, scrubbed

OUTER = ("SLURM_JOB_ID", "SBATCH_ACCOUNT", "PMI_RANK", "PMIX_NAMESPACE", "OMPI_COMM_WORLD_RANK", "PRTE_LAUNCHED", "HYDI_FD")
OWN = ("PATH", "PYTHONPATH", "PYTHONHASHSEED", "HVDGRAB_DATA", "HVDGRAB_JOBS", "HOROVOD_CYCLE_TIME", "LANG")


@pytest.mark.parametrize("name", [*OUTER, "HOROVOD_RANK", "HVDGRAB_JOB_ID", "HVDGRAB_GRAB", "BASH_FUNC_x%%", "a b", "x;id"])
def test_what_an_outer_job_left_is_removed(name: str) -> None:
    assert scrubbed(["PATH", name]) == (name,)


@pytest.mark.parametrize("name", OWN)
def test_what_is_the_users_own_stays(name: str) -> None:
    assert scrubbed(["SLURM_JOB_ID", name]) == ("SLURM_JOB_ID",)


def test_settings_of_open_mpi_stay_unless_an_outer_mpirun_may_have_made_them() -> None:
    assert scrubbed(["OMPI_MCA_btl", "PRTE_MCA_x"]) == ()
    assert scrubbed(["OMPI_MCA_btl", "OMPI_COMM_WORLD_SIZE"]) == ("OMPI_COMM_WORLD_SIZE", "OMPI_MCA_btl")
    assert scrubbed(["OMPI_MCA_btl", "PMIX_RANK"]) == ("OMPI_MCA_btl", "PMIX_RANK")


def test_the_data_folder_may_be_set_by_a_spec() -> None:
    assert check_variable_name("HVDGRAB_DATA") == "HVDGRAB_DATA"


def test_longest_argument() -> None:
    assert check_argument("x" * (MAX_ARGUMENT - 256))
    with pytest.raises(ValueError, match="bytes long"):
        check_argument("é" * (MAX_ARGUMENT // 2))
