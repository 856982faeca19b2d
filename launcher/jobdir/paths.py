"""Where everything of a job lies: one object that knows every file name, and the rules for names and ids.

Standard library only: the wrapper around every rank imports it.
"""

from __future__ import annotations

import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import LauncherError, UsageError
from launcher.jobdir import variables

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
NAME_RULE = "a name consists of 1 to 64 letters, digits, dots, dashes and underscores, and starts with a letter or digit"
ID_PATTERN = NAME_PATTERN + r"-\d{8}-\d{6}-[0-9a-f]{4}"
OTHERS_READ = 0o755
"""Mode of directories in which a file decides what runs: whatever the user's umask, nobody else puts one there."""


@dataclass(frozen=True)
class JobPaths:
    """The files of one job directory; constructing it touches nothing."""

    root: Path
    """The job directory, absolute."""

    @property
    def id(self) -> str:
        """The job's id, which is the directory's name."""
        return self.root.name

    @property
    def spec(self) -> Path:
        """The resolved spec, frozen at submission."""
        return self.root / "spec.yaml"

    @property
    def plan(self) -> Path:
        """The plan: argv, environment and files."""
        return self.root / "plan.json"

    @property
    def events(self) -> Path:
        """What happened, a JSON object a line."""
        return self.root / "events.jsonl"

    @property
    def metrics(self) -> Path:
        """What the training measured, an epoch a line; rank 0 writes it."""
        return self.root / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Directory of the training's checkpoints."""
        return self.root / "checkpoints"

    @property
    def report(self) -> Path:
        """The report, made when the job has ended."""
        return self.root / "report.html"

    @property
    def logs(self) -> Path:
        """Directory of the logs."""
        return self.root / "logs"

    @property
    def attempts(self) -> Path:
        """Directory of the attempts to run the job."""
        return self.root / "attempts"

    @property
    def cancel(self) -> Path:
        """Its existence is the request to cancel the job; it is never taken back."""
        return self.root / "cancel"

    @property
    def finished(self) -> Path:
        """The training's own mark that it is done; ranks find its path in HVDGRAB_FINISHED."""
        return self.root / "finished.json"

    @property
    def backend_log(self) -> Path:
        """What mpirun or horovodrun itself said."""
        return self.logs / "backend.log"

    def rank_log(self, rank: int) -> Path:
        """Output of one rank, both streams."""
        return self.logs / f"rank-{rank:04d}.log"

    def attempt(self, number: int) -> AttemptPaths:
        """The files of one attempt, from 1."""
        return AttemptPaths(self, number)

    def attempt_numbers(self) -> list[int]:
        """The attempts whose directories are there, ascending."""
        try:
            names = os.listdir(self.attempts)  # noqa: PTH208 - names are all that is needed
        except OSError:
            return []
        return sorted(int(name) for name in names if re.fullmatch(r"\d{4,9}", name))

    def newest_attempt(self) -> AttemptPaths:
        """The last attempt that is there, or the first if none is."""
        numbers = self.attempt_numbers()
        return self.attempt(numbers[-1] if numbers else 1)

    def directories(self) -> tuple[Path, ...]:
        """What `create` makes, the job directory first."""
        return (self.root, self.logs, self.attempts, self.checkpoints)

    def create(self) -> None:
        """Make the directories.

        Raises:
            UsageError: if the job directory exists or cannot be made.
        """
        try:
            self.root.parent.mkdir(parents=True, exist_ok=True)
            for directory in self.directories():
                directory.mkdir(0o777 if directory == self.checkpoints else OTHERS_READ)
        except OSError as error:
            raise UsageError(f"the job directory {self.root} cannot be made: {error.strerror}") from error


@dataclass(frozen=True)
class AttemptPaths:
    """The files of one attempt to run a job; constructing it touches nothing.

    All of them can be read from another host over a shared file system: they are made once, or replaced in one step.
    """

    job: JobPaths
    number: int
    """From 1."""

    @property
    def root(self) -> Path:
        """Directory of the attempt."""
        return self.job.attempts / f"{self.number:04d}"

    @property
    def claim(self) -> Path:
        """Which supervisor runs the attempt: made once, before anything else is done."""
        return self.root / "claim.json"

    @property
    def plan(self) -> Path:
        """The plan of this attempt; the job's own ``plan.json`` is the newest attempt's."""
        return self.root / "plan.json"

    @property
    def ranks(self) -> Path:
        """Directory of the ranks' marks."""
        return self.root / "ranks"

    @property
    def progress(self) -> Path:
        """Any change of its modification time is progress of the training; ranks find its path in HVDGRAB_PROGRESS."""
        return self.root / "progress"

    @property
    def alive(self) -> Path:
        """Touched by the supervisor as long as it lives, for ranks on other hosts."""
        return self.root / "alive"

    @property
    def stop(self) -> Path:
        """Why the attempt is being stopped; written before the supervisor is signalled."""
        return self.root / "stop.json"

    @property
    def end(self) -> Path:
        """How the attempt ended; the supervisor's last act."""
        return self.root / "end.json"

    @property
    def remote_shell(self) -> Path:
        """The program by which mpirun reaches other hosts."""
        return self.root / "remote-shell"

    def rank_mark(self, rank: int) -> Path:
        """Start, heartbeat and exit mark of one rank."""
        return self.ranks / f"rank-{rank:04d}.json"

    def create(self) -> None:
        """Make those directories that are missing.

        Raises:
            OSError: if they cannot be made.
        """
        for directory in (self.job.attempts, self.root, self.ranks):
            directory.mkdir(OTHERS_READ, exist_ok=True)


def new_id(name: str, now: float | None = None, salt: str | None = None) -> str:
    """A new job id: ``<name>-<YYYYmmdd-HHMMSS>-<4 hex>``, local time.

    Args:
        name: as `NAME_PATTERN` allows.
        now: Unix time in seconds; by default the present.
        salt: the last four characters; by default random.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return f"{name}-{stamp}-{salt or os.urandom(2).hex()}"


def jobs_root(option: str | None) -> Path:
    """The directory of all jobs: ``--jobs-dir``, else $HVDGRAB_JOBS, else ./jobs.  Absolute."""
    chosen = option or os.environ.get(variables.JOBS) or "jobs"
    return Path(os.path.abspath(os.path.expanduser(chosen)))  # noqa: PTH100, PTH111 - resolve() would follow the user's links


def list_jobs(root: Path) -> list[JobPaths]:
    """The job directories under a root, oldest first; links are not followed."""
    try:
        names = [entry.name for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"the directory of jobs {root} cannot be read: {error.strerror}") from error
    ids = [name for name in names if re.fullmatch(ID_PATTERN, name)]
    return [JobPaths(root / name) for name in sorted(ids, key=lambda name: (name[-20:-5], name))]


def runtime_directory() -> Path:
    """What belongs to this user and host alone: ``$HVDGRAB_RUNTIME``, ``$XDG_RUNTIME_DIR/hvdgrab``, or ``/tmp/hvdgrab-UID``."""
    below = directory_in("XDG_RUNTIME_DIR")
    return directory_in(variables.RUNTIME) or (below / "hvdgrab" if below else Path(f"/tmp/hvdgrab-{os.getuid()}"))


def directory_in(variable: str) -> Path | None:
    """The directory that an environment variable names, absolute; None if it names none."""
    value = os.environ.get(variable)
    return Path(os.path.abspath(value)) if value else None  # noqa: PTH100 - resolve() would follow the user's links


def make_directory(directory: Path) -> None:
    """Make a directory.

    Raises:
        LauncherError: if it cannot be made.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LauncherError(f"the directory {directory} cannot be made: {error.strerror}") from error


def make_private(directory: Path) -> None:
    """Make a directory that is this user's alone.

    Raises:
        LauncherError: if it is a link, another user's, open to others, or cannot be made.
    """
    make_directory(directory)
    check_private(directory)


def check_private(directory: Path) -> None:
    """Raise LauncherError unless a directory is this user's alone."""
    try:
        found = directory.lstat()
    except OSError as error:
        raise LauncherError(f"the directory {directory} cannot be looked at: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise LauncherError(f"{directory} is not a directory; remove it, or set HVDGRAB_RUNTIME to another place")
    if found.st_uid != os.getuid():
        raise LauncherError(f"{directory} belongs to user {found.st_uid}, not to you; set HVDGRAB_RUNTIME to another place")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise LauncherError(f"{directory} is open to other users: `chmod 700 {directory}`")
