"""Finding jobs, and `ls`: those of the daemon's record, and beside them those of which only a directory is known.

The commands that only read work without a daemon as well: from the record's file, and they say on stderr why none answers.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import sys
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.cli.texts import colourful, complain, painted, printable, table, time_text, waiting_text
from launcher.daemon.http.client import Client, NotRunningError, OfflineRecord, read_record_offline
from launcher.daemon.http.messages import JobView
from launcher.errors import EXIT_OK, LauncherError, UnreachableError, UsageError
from launcher.jobdir.paths import ID_PATTERN, JobPaths, jobs_root, list_jobs
from launcher.jobdir.words import STATES

if TYPE_CHECKING:
    from launcher.daemon.lease import Holder  # brings in SQLite, which commands do without while a daemon answers

BEGINNING_PATTERN = r"[A-Za-z0-9._-]{1,100}"
"""What may begin an id or a group."""
HEADING = ("ID", "STATE", "CODE", "TRY", "RANKS", "SUBMITTED", "TIME", "NOTE")
PIPED_WIDTH = 160
SHOWN = 5
"""Candidates that a message names."""
START = "`hvdgrab-launch daemon start` starts one, as does the next job"


class Listed:
    """A job, and who keeps its record.  The directory of a job that is in no record is read when its view is asked for."""

    def __init__(self, job: JobView | JobPaths) -> None:
        self.in_record = isinstance(job, JobView)
        """Whether it is in the daemon's record; else its directory is all that there is."""
        self._job = job
        self.id = job.id

    @cached_property
    def view(self) -> JobView:
        """The job as it was when it was found."""
        if isinstance(self._job, JobView):
            return self._job
        from launcher.cli.directory import view_of  # slow to import, and most jobs are in the record

        return view_of(self._job)

    @property
    def paths(self) -> JobPaths:
        """Its directory, which may be gone."""
        return JobPaths(Path(self._job.dir)) if isinstance(self._job, JobView) else self._job

    @property
    def name(self) -> str:
        """The name in the spec."""
        return self._job.name if isinstance(self._job, JobView) else self.id[:-21]

    @property
    def group(self) -> str | None:
        """The group that the record knows."""
        return self._job.group if isinstance(self._job, JobView) else None

    @property
    def active(self) -> bool:
        """Whether the record says that it has not ended."""
        return isinstance(self._job, JobView) and not self._job.final

    @property
    def foreground(self) -> bool:
        """Whether a command ran it in the foreground; neither this nor `in_record`: another record holds it, or none."""
        return not self.in_record and self.view.started is not None

    def again(self) -> Listed:
        """A job that is in no record, as its directory shows it now."""
        return Listed(self.paths)

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {**self.view.to_json(), "recorded": self.in_record}


def all_jobs(jobs_dir: str | None) -> list[Listed]:
    """The jobs of the record and of a jobs directory (the ``--jobs-dir`` option), oldest first."""
    return sorted(_seen(_recorded(), jobs_root(jobs_dir)), key=lambda job: job.view.submitted)


def ls(jobs_dir: str | None, *, as_json: bool, states: Sequence[str] = (), group: str | None = None) -> int:
    """Print all jobs, or those of some states or of a group; returns the exit code."""
    wanted = _states(states)
    jobs = [job for job in all_jobs(jobs_dir) if not wanted or job.view.state in wanted]
    if group is not None:
        jobs = [job for job in jobs if job.group is not None and job.group.startswith(group)]
    if as_json:
        print(json.dumps([job.to_json() for job in jobs]))
        return EXIT_OK
    if not jobs:
        which = " of that kind" if wanted or group else ""
        print(f"no jobs{which} in the record, and none under {jobs_root(jobs_dir)}")
        return EXIT_OK
    print("\n".join(lines(jobs)))
    return EXIT_OK


def _states(given: Sequence[str]) -> set[str]:
    wanted = {word.strip() for text in given for word in text.split(",")}
    for word in wanted - set(STATES):
        raise UsageError(f"--state {word}: there is no such state; the states are {', '.join(STATES)}")
    return wanted


def lines(jobs: Sequence[Listed]) -> list[str]:
    """The table of `ls`, cut to the terminal's width."""
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((PIPED_WIDTH, 24)).columns if terminal else PIPED_WIDTH
    colour = colourful(sys.stdout)
    heading, *rows = [line[:width] for line in table([HEADING, *(row(job) for job in jobs)])]
    return [heading, *(painted(line, job.view.state) if colour else line for line, job in zip(rows, jobs, strict=True))]


def row(job: Listed) -> tuple[str, ...]:
    """A job's cells."""
    view = job.view
    submitted = time.strftime("%Y-%m-%d %H:%M", time.localtime(view.submitted)) if view.submitted else "-"
    code = "-" if view.exit_code is None else str(view.exit_code)
    attempt = str(view.attempt) if view.attempt else "-"
    return view.id, view.state, code, attempt, str(view.ranks or "-"), submitted, time_text(view) or "-", _note(job)


def _note(job: Listed) -> str:
    view = job.view
    waiting = waiting_text(view)
    parts = [
        f"next attempt {waiting}" if waiting else "",
        "" if job.in_record else "foreground" if job.foreground else "not in this record",
        f"by {view.owner}" if job.in_record and not view.final and view.owner not in ("", socket.gethostname()) else "",
        printable(view.reason).replace("\n", " ") if view.reason else "",
    ]
    return "; ".join(part for part in parts if part)


def find(
    wanted: Sequence[str], jobs_dir: str | None, client: Client | None = None, *, prefer_active: bool = False
) -> list[Listed]:
    """What is meant by some words, each job once; see `resolve`.

    Args:
        wanted: as the user wrote them.
        jobs_dir: the ``--jobs-dir`` option.
        client: a daemon to ask; without one, a running daemon is asked, else the record is read from its file.
        prefer_active: of several jobs of one name, take the newest that has not ended, if there is one.

    Raises:
        UsageError: nothing fits a word, or several do.
    """
    root = jobs_root(jobs_dir)
    if client is not None:
        return resolve_all(wanted, _seen(client.jobs(), root), prefer_active=prefer_active)
    if len(wanted) == 1 and re.fullmatch(BEGINNING_PATTERN, wanted[0]):
        few = _seen(_recorded(wanted[0]), root, wanted[0])
        if few:
            return resolve_all(wanted, few, prefer_active=prefer_active)
        return resolve_all(wanted, _seen(_recorded(quiet=True), root), prefer_active=prefer_active)  # names what is near
    return resolve_all(wanted, _seen(_recorded(), root), prefer_active=prefer_active)


def _seen(recorded: Sequence[JobView], root: Path, beginning: str = "") -> list[Listed]:
    """The record's jobs and those beside it, oldest first by the time in the id; those of one second in the record's order."""
    known = {view.id for view in recorded}
    beside = [job for job in list_jobs(root) if job.id not in known and job.id.startswith(beginning)]
    jobs = [*map(Listed, recorded), *map(Listed, beside)]
    return sorted(jobs, key=lambda job: job.id[-20:-5])


def _recorded(beginning: str | None = None, *, quiet: bool = False) -> Sequence[JobView]:
    """The record's jobs; if a beginning of an id or a group is given, those at least that have it.

    Args:
        beginning: of an id or a group.
        quiet: whether it was said before what is wrong with the daemon.
    """
    say = (lambda _: None) if quiet else complain
    try:
        client = Client.connect(start=False)
        views = client.jobs(beginning=beginning)
        if client.problem:
            say(f"warning: the daemon is kept from its work: {client.problem}")
        return views
    except NotRunningError:
        record = read_record_offline()
        if record.owner not in (None, socket.gethostname()) or any(not view.final for view in record.views):
            say(f"{why_absent(record)}. Shown is what the record holds")
    except UnreachableError as error:
        record = read_record_offline()
        say(f"{error}. Shown is what the record holds")
    return record.views


def resolve(wanted: str, jobs: Sequence[Listed], *, prefer_active: bool = False) -> list[Listed]:
    """What is meant by a word: one job, or all of a group.

    Args:
        wanted: an id, a name, a group, or a unique beginning of an id or a group, as the user wrote it.
        jobs: oldest first.
        prefer_active: of several jobs of one name, take the newest that has not ended, if there is one.

    Raises:
        UsageError: if nothing fits, or several do.
    """
    found = [job for job in jobs if job.id == wanted] or [job for job in jobs if job.group == wanted]
    if found:
        return found
    named = [job for job in jobs if wanted in (job.name, name_of(job.group))]
    if named:
        active = [job for job in named if job.active] if prefer_active else []
        newest = (active or named)[-1]
        return [newest] if newest.name == wanted else [job for job in jobs if job.group == newest.group]
    return _beginning(wanted, jobs)


def resolve_all(wanted: Sequence[str], jobs: Sequence[Listed], *, prefer_active: bool = False) -> list[Listed]:
    """The same for several words, each job once, in the order in which they were asked for."""
    found = [job for text in wanted for job in resolve(text, jobs, prefer_active=prefer_active)]
    return list({job.id: job for job in found}.values())


def name_of(group: str | None) -> str | None:
    """The name in a group's id, as variants have it; None if the group's name is the user's own."""
    return group[:-21] if group is not None and re.fullmatch(ID_PATTERN, group) else None


def _beginning(wanted: str, jobs: Sequence[Listed]) -> list[Listed]:
    matches = [job for job in jobs if wanted and job.id.startswith(wanted)]
    groups = {job.group for job in jobs if wanted and job.group is not None and job.group.startswith(wanted)}
    if len(groups) == 1 and all(job.group in groups for job in matches):
        return [job for job in jobs if job.group in groups]
    if len(matches) == 1 and not groups:
        return matches
    candidates = sorted({*(job.id for job in matches), *(group for group in groups if group)})
    if candidates:
        more = f" and {len(candidates) - SHOWN} more" if len(candidates) > SHOWN else ""
        raise UsageError(f"{wanted!r} fits {len(candidates)} jobs: {', '.join(candidates[:SHOWN])}{more}")
    raise UsageError(_nothing(wanted, jobs))


def _nothing(wanted: str, jobs: Sequence[Listed]) -> str:
    import difflib

    names = {text for job in jobs for text in (job.id, job.name, job.group) if text}
    near = difflib.get_close_matches(wanted, sorted(names), n=1)
    return f"no job {wanted!r}; " + (f"did you mean {near[0]!r}?" if near else "`hvdgrab-launch ls` shows what is there")


def why_absent(record: OfflineRecord, me: Holder | None = None) -> str:
    """Why no daemon answers here, in one sentence that says what to do next.

    Args:
        record: as it was read without a daemon.
        me: who asks; by default this process.
    """
    from launcher.daemon.lease import Holder

    holder, own = record.holder, me or Holder()
    if holder is None:
        return f"no daemon has run yet; {START}"
    if holder.released:
        return f"no daemon runs: the last one, on {holder.host}, was stopped, and jobs that ran went on; {START}"
    if holder.host != own.host:
        return (
            f"the record belongs to the daemon on {holder.host}: give commands there; if that host is gone, "
            f"`hvdgrab-launch daemon start` takes over here once the lease of {holder.seconds:.0f} s has run out"
        )
    if holder.certainly_gone(own, shared=False):
        return (
            f"no daemon runs: the last one, process {holder.pid}, ended without a word (it was killed, or the host was started "
            "again), and jobs that ran went on; `hvdgrab-launch daemon start` starts the next one, which finds them"
        )
    if holder.processes != own.processes:
        return (
            f"the daemon, process {holder.pid}, runs in another container on {holder.host}: give commands there, or stop it there"
        )
    return (
        f"the daemon, process {holder.pid}, runs, but cannot be reached: it is just starting, or it listens in another runtime "
        "directory; then set HVDGRAB_RUNTIME or XDG_RUNTIME_DIR as it was when that one was started, or end it with "
        f"`kill {holder.pid}`; jobs go on"
    )


def lives(record: OfflineRecord, me: Holder | None = None) -> bool:
    """Whether a daemon of this host holds the record, although it does not answer here."""
    from launcher.daemon.lease import Holder

    holder, own = record.holder, me or Holder()
    if holder is None or holder.released or holder.host != own.host:
        return False
    return not holder.certainly_gone(own, shared=False)


def read_without_daemon() -> tuple[str, OfflineRecord]:
    """The sentence of `why_absent`, and the record; if that cannot be read, the sentence says why."""
    try:
        record = read_record_offline()
    except LauncherError as error:
        return str(error), OfflineRecord((), None)
    return why_absent(record), record
