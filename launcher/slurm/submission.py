"""Submitting an attempt exactly once, and finding again what an interrupted submission may have left in the queue.

``submission.json`` in the attempt's directory is written before sbatch is called: if it is missing, nothing was ever submitted;
if it holds no job id, the queue is searched for the token before anything is submitted again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from launcher.attempt.starter import Handle, StartError, Unreachable
from launcher.host.files import as_text, read_object, replace_text
from launcher.host.program import Answer
from launcher.jobdir.claim import Claim
from launcher.jobdir.events import EventLog
from launcher.jobdir.paths import AttemptPaths, JobPaths
from launcher.jobdir.plan import Plan
from launcher.jobdir.variables import PREFIX
from launcher.plan.argv import sbatch
from launcher.slurm import commands, script
from launcher.slurm.commands import NoAnswer, Reach, Row, parse_submitted, refusal

FILE = "submission.json"
SCRIPT = "job.sh"


class Unanswered(Unreachable):
    """Whether SLURM has taken a job is not known."""

    def __init__(self, said: str, where: str = "") -> None:
        super().__init__(f"whether SLURM has taken the job is not known: {said}", where)
        self.said = said
        """Why."""


@dataclass(frozen=True)
class Submission:
    """The content of ``submission.json``: what is known of the submission of one attempt."""

    token: str
    name: str
    time: float
    """Unix time of the last try, seconds."""
    conf: str | None = None
    programs: str | None = None
    """Directory of the submitter's sbatch."""
    clusters: str | None = None
    """What ``--clusters`` was: one name, several, or all."""
    job_id: str | None = None
    """SLURM's id, which is unique in one cluster; None while it is not known."""
    cluster: str | None = None
    """The cluster that took the job; None for the default one, and while it is not known."""

    def write(self, attempt: AttemptPaths) -> None:
        """Write it, so that it survives a power failure.  Raises OSError."""
        replace_text(attempt.root / FILE, as_text(asdict(self)), durable=True)

    @classmethod
    def read(cls, attempt: AttemptPaths) -> Submission | None:
        """The submission of an attempt; None if nothing was ever submitted."""
        data = read_object(attempt.root / FILE)
        try:
            return cls(**data) if data is not None else None
        except TypeError:
            return None

    def handle(self, attempt: AttemptPaths) -> Handle:
        """The handle of a submission whose job id is known."""
        assert self.job_id is not None
        return {
            "kind": "slurm", "job_id": self.job_id, "cluster": self.cluster or self.clusters, "conf": self.conf,
            "programs": self.programs, "dir": str(attempt.job.root), "attempt": attempt.number,
        }  # fmt: skip

    def known(self, job_id: str, cluster: str | None) -> Submission:
        """The same, with the job that it led to."""
        return replace(self, job_id=job_id, cluster=cluster)

    def reach(self, cluster: str | None) -> Reach:
        """How the cluster that has the job, or may have it, is asked."""
        return Reach(self.conf, self.programs, cluster)

    def is_in(self, row: Row) -> bool:
        """Whether a job in the queue is this one: by its comment, or by its name, as some sites rewrite comments."""
        return self.token in row.comment or row.name == self.name


def submit(job: JobPaths, number: int, plan: Plan, environment: Mapping[str, str]) -> Handle:
    """Submit an attempt; the caller has made sure that it is not in the queue.

    Raises:
        StartError: if SLURM certainly refused it.
        Unanswered: if it may have been taken.
    """
    attempt = job.attempt(number)
    text = script.script(plan, number)
    reach = commands.Reach.of(environment)
    clusters = script.asked_of(plan).clusters
    name = script.submission_name(plan, number)
    intent = Submission(script.token(plan, number), name, round(time.time(), 3), reach.conf, reach.programs, clusters)
    try:
        job.logs.mkdir(parents=True, exist_ok=True)  # without it SLURM ends the job before its first line, and nothing says why
        (attempt.root / SCRIPT).write_text(text, "utf-8", "surrogateescape")
        intent.write(attempt)
    except OSError as error:
        raise StartError(f"the job directory {job.root} cannot be written: {error.strerror}") from error
    around = _environment(plan, environment)
    answer = commands.call(sbatch(str(job.root)), environment=around, conf=reach.conf, stdin=text, cwd=str(job.root))
    try:
        return _taken(attempt, intent, answer)
    except StartError:
        if not plan.placement.excluded_hosts:
            raise
    EventLog(job).add("excluded-nodes-used", attempt=number, nodes=list(plan.placement.excluded_hosts))
    return submit(job, number, plan.without_hosts(()), environment)  # too few are left without them


def _environment(plan: Plan, environment: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in environment.items() if name not in plan.launch.scrubbed or name in commands.KEPT}
    return kept | {name: value for name, value in plan.launch.environment.items() if not name.startswith(PREFIX)}


def _taken(attempt: AttemptPaths, intent: Submission, answer: Answer) -> Handle:
    if answer.ok:
        try:
            job_id, cluster = parse_submitted(answer.stdout)
        except NoAnswer as error:
            raise Unanswered(str(error)) from error
        known = intent.known(job_id, cluster)
        with contextlib.suppress(OSError):  # the token in the queue, or the claim, tells it again
            known.write(attempt)
        return known.handle(attempt)
    if answer.stderr == commands.ABSENT:
        (attempt.root / FILE).unlink(missing_ok=True)
        raise StartError(answer.stderr)
    refused = refusal(answer.stderr)
    if refused is not None:
        (attempt.root / FILE).unlink(missing_ok=True)
        raise StartError(f"SLURM refused the job: {refused}")
    raise Unanswered(answer.complaint)


def known_handle(attempt: AttemptPaths) -> Handle | None:
    """The handle of an attempt whose job id is on record, by its submission or by the supervisor's claim."""
    submission = Submission.read(attempt)
    if submission is None or submission.job_id is not None:
        return submission.handle(attempt) if submission is not None else None
    claim = Claim.read(attempt)
    if claim is None or claim.slurm_job_id is None:
        return None
    return submission.known(claim.slurm_job_id, claim.slurm_cluster if submission.clusters else None).handle(attempt)


def job_of(attempt: AttemptPaths) -> tuple[str | None, str | None]:
    """SLURM's id of the job of an attempt, and its cluster if the user had named any; None for what is not known."""
    claim, submission = Claim.read(attempt), Submission.read(attempt)
    number = (claim.slurm_job_id if claim is not None else None) or (submission.job_id if submission is not None else None)
    if number is None or submission is None or submission.clusters is None:
        return number, None
    return number, submission.cluster or submission.clusters
