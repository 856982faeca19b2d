"""What goes wrong again and again, said once: when it begins, when it becomes something else, and when it is over."""

from __future__ import annotations

from launcher.daemon.context import Context, log
from launcher.daemon.record.rows import Job
from launcher.errors import LauncherError

LOOK, STOP, START, CLOSE = "looked at", "stopped", "started", "closed"
"""What cannot be done with a job at present; of each kind a job has one fault at most."""


def in_words(error: Exception) -> str:
    """An error for people: which file and why, or what an error of the program itself says."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class Faults:
    """The faults of the moment; for the engine's thread."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._present: dict[tuple[str, str], str] = {}

    def note(self, job: Job, kind: str, error: Exception) -> None:
        """Say a job's fault, unless it has been said; call it while the error is handled."""
        text = f"it cannot be {kind} now: {in_words(error)}"
        if self._present.get((job.id, kind)) == text:
            return
        self._present[job.id, kind] = text
        log.exception("%s: %s; it is tried again, and this is said once", job.id, text)
        self._context.note(job, "trouble", reason=text)
        self._show(job.id)

    def over(self, job: Job, kind: str) -> None:
        """That could be done now; said where it could not before."""
        if self._present.pop((job.id, kind), None) is not None:
            log.info("%s: it can be %s again", job.id, kind)
            self._context.note(job, "trouble-over", what=kind)
            self._show(job.id)

    def forget(self, job: Job) -> None:
        """The job has ended: nothing of it can be wrong any more."""
        for key in [key for key in self._present if key[0] == job.id]:
            del self._present[key]
        self._show(job.id)

    def note_starter(self, name: str, error: Exception) -> None:
        """The same for the query that looks at all jobs of a kind."""
        text = str(error) if isinstance(error, LauncherError) else in_words(error)
        if self._present.get(("", name)) != text:
            self._present["", name] = text
            unexpected = None if isinstance(error, LauncherError) else error
            log.warning("%s: %s; it is tried again, and this is said once", name, text, exc_info=unexpected)

    def over_starter(self, name: str) -> None:
        """The query was answered."""
        if self._present.pop(("", name), None) is not None:
            log.info("%s: it answers again", name)

    def _show(self, job_id: str) -> None:
        """What clients see as the job's reason while it lasts."""
        texts = [text for (owner, _), text in self._present.items() if owner == job_id]
        if texts:
            self._context.troubles[job_id] = "; ".join(texts)
        else:
            self._context.troubles.pop(job_id, None)
        self._context.changed()
