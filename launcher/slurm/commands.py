"""Calls SLURM's programs: bounded in time, with an environment of their own, and so that silence never looks like an answer."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.host.program import Answer, run
from launcher.spec.variables import PMI_PREFIXES, SLURM_PREFIXES

KEPT = ("SLURM_CONF", "SLURM_JWT")
"""Variables of SLURM that say how to reach it; all others are options in disguise, and silently override what a job asks for."""
_OPTIONS = (*SLURM_PREFIXES, *PMI_PREFIXES, "SQUEUE_", "SACCT_", "SINFO_", "SCONTROL_", "SCANCEL_", "OMPI_COMM_")
TIMEOUT = 20.0
ABSENT = "there is no SLURM on this machine: no sbatch on PATH"


@dataclass(frozen=True)
class Reach:
    """How one cluster is asked, also by a daemon that was started without the module that loads SLURM."""

    conf: str | None = None
    """SLURM_CONF; None for the machine's own."""
    programs: str | None = None
    """Directory of the submitter's SLURM, which is searched after PATH; None if it is on PATH anyway."""
    cluster: str | None = None
    """Value of ``--clusters``; None for the default one."""

    @classmethod
    def of(cls, environment: Mapping[str, str], cluster: str | None = None) -> Reach:
        """The SLURM that a submitter's environment leads to."""
        found = shutil.which("sbatch", path=environment.get("PATH", os.defpath))
        return cls(environment.get("SLURM_CONF"), str(Path(found).parent) if found else None, cluster)

    @property
    def name(self) -> str:
        """Identifies the cluster."""
        return f"{self.conf or ''}:{self.cluster or ''}"

    def argv(self, argv: Sequence[str]) -> tuple[str, ...]:
        """A command for this cluster and no other."""
        program, *words = argv
        return (program, *(("-M", self.cluster) if self.cluster else ()), *words)

    def ask(self, argv: Sequence[str], *, timeout: float = TIMEOUT, stdin: str = "") -> Answer:
        """Run a program of SLURM for this cluster, in this process's environment.  Never raises."""
        around = {name: value for name, value in os.environ.items() if name != "SLURM_CONF"}
        if self.programs:
            around["PATH"] = os.pathsep.join((around.get("PATH", os.defpath), self.programs))
        return call(self.argv(argv), environment=around, conf=self.conf, timeout=timeout, stdin=stdin)


def installed(path: str | None = None) -> bool:
    """Whether SLURM's programs are there; checks files and calls nothing."""
    return shutil.which("sbatch", path=path) is not None


def scrub(environment: Mapping[str, str], conf: str | None = None) -> dict[str, str]:
    """An environment without what an outer allocation or a user's settings would slip into a call.

    Args:
        environment: the whole environment.
        conf: the SLURM_CONF to use; by default the environment's own, if there is one.
    """
    kept = {name: value for name, value in environment.items() if name in KEPT or not name.startswith(_OPTIONS)}
    return {**kept, "SLURM_CONF": conf} if conf else kept


def call(
    argv: Sequence[str], *, environment: Mapping[str, str] | None = None, conf: str | None = None, stdin: str = "",
    timeout: float = TIMEOUT, cwd: str | None = None,
) -> Answer:  # fmt: skip
    """Run a program of SLURM.  Never raises.

    Args:
        argv: the program's name and arguments.
        environment: whole environment, scrubbed before use; by default this process's.
        conf: SLURM_CONF, if it is not the environment's.
        stdin: text that the program reads.
        timeout: seconds; after them the program is killed and the answer has no code.
        cwd: working directory.
    """
    around = scrub(os.environ if environment is None else environment, conf)
    around["LC_ALL"] = "C"
    answer = run(argv, environment=around, seconds=timeout, stdin=stdin, cwd=cwd)
    if answer.code is not None:
        return answer
    absent = ABSENT if argv[0] == "sbatch" else f"no {argv[0]} on PATH"
    return replace(answer, stderr=absent if answer.missing else f"{argv[0]}: {answer.stderr}")
