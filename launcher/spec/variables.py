"""Rules for environment variables and arguments: which may be set, and which inherited ones are removed.

What is removed before a job starts (`scrubbed`), so that an outer MPI job or allocation cannot override the job's own limits:

* ``SLURM_* SBATCH_* SRUN_* SALLOC_* PMI* PMIX_* PRTE_* HYDRA_* MPIEXEC_*`` and ``OMPI_*`` other than ``OMPI_MCA_*``;
* ``OMPI_MCA_*`` and ``PRTE_MCA_*`` only if an outer MPI job is visible (``OMPI_COMM_WORLD_*`` or ``PMIX_*`` is set): mpirun
  itself has set them then.  Otherwise they are the user's own settings of Open MPI and stay;
* ``HOROVOD_RANK``, ``HOROVOD_SIZE`` and the like of an outer Horovod job; the job marks of an outer hvdgrab job;
* names that are no identifiers: horovodrun puts every name on a shell line.

``PYTHON*`` stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from launcher.jobdir import variables as own

MAX_ARGUMENT = 131_071
"""Bytes that Linux takes in one argument or variable (MAX_ARG_STRLEN without its final zero)."""

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OWN_VARIABLES = (own.JOB_ID, own.JOB_DIR, own.GRAB, own.ATTEMPT, own.PROGRESS, own.FINISHED, own.SERVER_RANKS)
USER_VARIABLES = (own.DATA,)
"""Variables with hvdgrab's prefix that belong to the user."""

SLURM_PREFIXES = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_")
"""Variables by which SLURM describes a job to it, or by which its programs take options."""
PMI_PREFIXES = ("PMI", "PRTE_")
"""Variables by which a rank finds its world: PMI_*, PMI2_*, PMIX_*, and those of PRRTE."""
_OUTER_PREFIXES = (*SLURM_PREFIXES, *PMI_PREFIXES, "HYDRA_", "HYDI_", "MPIEXEC_", "OMPI_")
_TUNING_PREFIXES = ("OMPI_MCA_", "PRTE_MCA_")
HOROVOD_PLACE = tuple(
    f"HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")
)
_RESERVED_PREFIXES = (own.PREFIX, "OMPI_", *PMI_PREFIXES, "SLURM_", "SBATCH_")


def scrubbed(names: Iterable[str]) -> tuple[str, ...]:
    """List the inherited names that the job must not see, sorted."""
    present = sorted(names)
    inside_mpi = any(name.startswith(("OMPI_COMM_WORLD_", "PMIX_")) for name in present)
    return tuple(name for name in present if _must_go(name, inside_mpi))


def _must_go(name: str, inside_mpi: bool) -> bool:
    if not IDENTIFIER.fullmatch(name) or name in OWN_VARIABLES or name in HOROVOD_PLACE:
        return True
    if name.startswith(_TUNING_PREFIXES):
        return inside_mpi
    return name.startswith(_OUTER_PREFIXES)


def check_variable_name(name: str) -> str:
    """Return the name if a spec may set it.  Raises ValueError with the reason if it may not."""
    if not IDENTIFIER.fullmatch(name):
        raise ValueError("a variable's name consists of letters, digits and _, and does not start with a digit")
    if name.startswith(_RESERVED_PREFIXES) and name not in USER_VARIABLES:
        hint = "; options for Open MPI go to backend.extra_args" if name.startswith(("OMPI_", "PRTE_")) else ""
        raise ValueError(f"{name} is set by the launcher, MPI or the scheduler, and cannot be set here{hint}")
    if name in HOROVOD_PLACE:
        raise ValueError(f"{name} is set by Horovod itself")
    return name


def check_variable_value(value: str) -> str:
    """Return the value if the system can carry it.  Raises ValueError if it cannot."""
    return _carriable(value)


def check_argument(value: str) -> str:
    """Return the argument if the system can carry it.  Raises ValueError if it cannot."""
    return _carriable(value)


def _carriable(value: str) -> str:
    if "\0" in value:
        raise ValueError("holds a zero byte, which no argument or variable can carry")
    try:
        size = len(value.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        raise ValueError(f"holds {value[error.start]!r}, half of a character pair, which stands for no bytes") from None
    if size > MAX_ARGUMENT - 256:
        raise ValueError(f"is {size} bytes long; the system takes {MAX_ARGUMENT - 256} in one argument or variable")
    return value
