"""How an attempt ended: ``end.json``, the supervisor's last act."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from launcher.host.files import as_text, read_as, release, replace_text
from launcher.jobdir.paths import AttemptPaths, JobPaths


@dataclass(frozen=True)
class AttemptEnd:
    """The content of ``end.json``."""

    attempt: int
    state: str
    """One of `launcher.jobdir.words.FINAL`."""
    cause: str
    """One of `launcher.jobdir.words.END_CAUSES`."""
    exit_code: int
    reason: str | None = None
    """In words."""
    first_failing_rank: int | None = None
    hosts: tuple[str, ...] = ()
    """Hosts that were used, as the spec names them."""
    bad_hosts: tuple[str, ...] = ()
    """Those to blame."""
    progressed: bool = False
    """Whether the training showed any progress."""
    started: float = 0.0
    """Unix time, seconds."""
    ended: float = 0.0
    seconds: float = 0.0
    """Wall clock between the two."""
    remaining: tuple[str, ...] = ()
    """Processes that could not be ended, ``host:pid``, and hosts that could not be asked."""

    def write(self, attempt: AttemptPaths) -> None:
        """Write ``end.json`` in one step.

        Raises:
            OSError: if it cannot be written.
        """
        replace_text(attempt.end, as_text(asdict(self)), durable=True)
        release(attempt.root)

    @classmethod
    def read(cls, attempt: AttemptPaths) -> AttemptEnd | None:
        """The end of an attempt; None while it has none."""
        return read_as(cls, attempt.end)


def read_ends(job: JobPaths) -> list[AttemptEnd]:
    """The ends of a job's attempts, oldest first, without those that have none."""
    ends = [AttemptEnd.read(job.attempt(number)) for number in job.attempt_numbers()]
    return [end for end in ends if end is not None]
