"""Calls SLURM's programs, and reads what they print.

Calls are bounded in time and have an environment of their own.  Reading is strict: silence, and what is not certainly an answer,
count as none.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.host.program import Answer, run
from launcher.slurm.states import HALTED, State, detail, parse_state
from launcher.spec.hosts import expand_nodelist
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


SQUEUE_HEADER = "JOBID|STATE|REASON|PARTITION|NODELIST|NAME|COMMENT"
SQUEUE_FORMAT = "%i|%T|%r|%P|%N|%j|%k"
SACCT_FORMAT = "JobIDRaw,State,Partition,NodeList,JobName,Comment"
SACCT_HEADER = "JobIDRaw|State|Partition|NodeList|JobName|Comment"


class NoAnswer(Exception):
    """What was printed is no answer."""


@dataclass(frozen=True)
class Row:
    """One job as SLURM sees it."""

    job_id: str
    state: State
    state_name: str
    """As SLURM wrote it, such as ``CANCELLED by 1000``."""
    reason: str
    partition: str
    nodes: str
    name: str
    comment: str

    @property
    def detail(self) -> str:
        """For people."""
        return detail(self.state, self.partition, self.reason)

    @property
    def note(self) -> str | None:
        """What keeps a job that runs from making progress, for people; None if nothing does."""
        return f"job {self.job_id} {self.state.words}" if self.state in HALTED else None


def parse_squeue(text: str) -> dict[str, Row]:
    """Rows by job id.

    Raises:
        NoAnswer: if the heading is missing, or a row is not understood.
    """
    rows: dict[str, Row] = {}
    for line in rows_below(text, SQUEUE_HEADER):
        cells = line.split("|", 6)
        if len(cells) != 7:
            raise NoAnswer(f"squeue printed {line[:80]!r}")
        job_id, state_name, reason, partition, nodes, name, comment = cells
        state = parse_state(state_name)
        if state is None or not re.fullmatch(r"\d+(?:_\S+|\+\d+)?", job_id):
            raise NoAnswer(f"squeue printed {line[:80]!r}")
        rows[job_id] = Row(job_id, state, state_name, reason, partition, nodes, name, comment)
    return rows


def parse_sacct(text: str) -> dict[str, Row]:
    """Rows by job id; of a job that was put back several times, the last.  Raises NoAnswer as `parse_squeue` does."""
    rows: dict[str, Row] = {}
    for line in rows_below(text, SACCT_HEADER):
        cells = line.split("|", 5)
        state = parse_state(cells[1]) if len(cells) == 6 else None
        if state is None or not cells[0].isdigit():
            raise NoAnswer(f"sacct printed {line[:80]!r}")
        job_id, state_name, partition, nodes, name, comment = cells
        rows[job_id] = Row(job_id, state, state_name, "", partition, nodes, name, comment)
    return rows


def nodes_in(nodelist: str) -> tuple[str, ...]:
    """The nodes of ``n[1-2],login``; none if that is not understood."""
    try:
        return tuple(expand_nodelist(nodelist))
    except ValueError:
        return ()


def rows_below(text: str, header: str) -> list[str]:
    """The lines below the heading of a table, without the ``CLUSTER:`` lines that --clusters puts before it.

    Raises:
        NoAnswer: if the heading is missing, as a sick or cut-off answer must not look like an empty table.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("CLUSTER:")]
    if not lines or lines[0] != header:
        raise NoAnswer(f"no table was printed but {lines[0][:80]!r}" if lines else "nothing was printed")
    return [line for line in lines[1:] if line != header]


def parse_submitted(text: str) -> tuple[str, str | None]:
    """Job id and cluster in what ``sbatch --parsable`` prints.  Raises NoAnswer if neither is there."""
    for line in reversed(text.splitlines()):  # submit plugins of sites may say something before
        found = re.fullmatch(r"(\d+)(?:;(\S+))?", line.strip())
        if found:
            return found.group(1), found.group(2)
    raise NoAnswer(f"sbatch printed {text.strip()[:80]!r} and no job id")


def seconds(limit: str) -> float | None:
    """SLURM's ``days-hours:minutes:seconds`` in seconds; None for infinite and what is not understood."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)", limit)
    if found is None:
        return None
    days, hours, minutes, rest = (int(part) if part else 0 for part in found.groups())
    if ":" not in limit:
        return days * 86_400.0 + (rest * 3_600 if "-" in limit else rest * 60)
    return days * 86_400.0 + hours * 3_600 + minutes * 60 + rest


_TRANSPORT = (
    "socket timed out", "unable to contact slurm controller", "connect failure", "connection refused", "connection timed out",
    "zero bytes were transmitted", "unexpected message", "transport", "header lengths", "insane message", "temporarily unable",
    "temporarily unavailable", "communication", "i/o error", "send/recv", "munge", "authentication", "credential",
    "controller not responding", "in standby mode", "maxsubmit", "submit limit reached", "dns srv", "configuration source",
)  # fmt: skip
_AWAY = "can't be reached now"
"""Of a cluster whose controller is down; slurmdbd knows it."""


def refusal(stderr: str) -> str | None:
    """Why SLURM certainly refused a submission, in its own words; None if it may have taken it, or may take it later."""
    text = stderr.strip()
    said = [re.sub(r"^sbatch: (?:error|fatal): ", "", line).strip() for line in text.splitlines() if line.startswith("sbatch: ")]
    if not said or any(word in text.lower() for word in _TRANSPORT):
        return None
    if _AWAY in text and "known by database" not in text:  # the same words follow for a cluster that does not exist
        return None
    return "; ".join(line.removeprefix("Batch job submission failed: ") for line in said if line)
