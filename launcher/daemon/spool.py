"""The spool: a YAML file that is put into the directory becomes a job.

A file is taken when it has not changed for a while and nobody holds it open for writing, so that it may be written slowly.
Names that begin with a dot, or end like those of half-written files, are ignored, so that it may be moved into place.  What was
taken lies in ``done/``, what was refused in ``refused/`` with the reason beside it; so does, after a while, whatever else is put
there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from launcher.daemon.context import Context, log, step
from launcher.daemon.http.messages import Submission
from launcher.daemon.record import Job
from launcher.daemon.requests import Requests
from launcher.errors import LauncherError, UnreachableError, UsageError
from launcher.host.files import as_text, read_as, replace_text
from launcher.host.processes import files_open_for_writing
from launcher.jobdir import variables
from launcher.plan.prepare import Prepared, prepare, write_directory

ENDINGS = (".yaml", ".yml")
SETTLED_SECONDS = 1.0
"""Seconds for which a YAML file must not have changed."""
RECOVER_SECONDS = 10.0
"""Seconds between two tries to submit what was taken and waits."""

ODD_SECONDS = 30.0
"""The same for other files before they are moved aside: they may be about to be renamed."""
PASSING = ("~", ".tmp", ".part", ".partial", ".swp", ".filepart", ".crdownload")
"""Endings of names that stay for a moment only."""
LONGEST = 160
"""Bytes of a name: the files beside it add to it, and file systems end at 255."""
_OWN = ("taken", "done", "refused")
Fingerprint = tuple[int, ...]
"""A file's inode, size, time of change in ns, and mode."""

Prepare = Callable[[str, str], list[Prepared]]
"""From a file's path and the directory of jobs to the jobs."""


@dataclass(frozen=True)
class Taken:
    """The jobs that a file becomes: beside the file while it lies in ``taken/``, so that it becomes each of them once."""

    file: str = ""
    """Its `Fingerprint`, as text."""
    jobs: tuple[str, ...] = ()
    """Ids, in the order of the file."""


class Spool:
    """Looks at the spool; for the engine's thread."""

    def __init__(self, context: Context, requests: Requests, prepare_file: Prepare | None = None) -> None:
        self._context = context
        self._requests = requests
        self._prepare = prepare_file or _prepare
        self._seen: dict[str, tuple[Fingerprint, float]] = {}
        self._said: dict[str, str] = {}
        self._recover_at = 0.0
        root = context.dirs.spool
        self._taken, self._done, self._refused = (root / name for name in _OWN)
        self._jobs = os.environ.get(variables.JOBS) or str(context.dirs.state / "jobs")

    def look(self, now: float) -> float | None:
        """Take what is ready.

        Args:
            now: seconds of a clock that never goes back.

        Returns:
            Seconds after which it is worth looking again soon; None if there are no files.
        """
        if now >= self._recover_at:
            self._recover_at = now + RECOVER_SECONDS
            self.recover()
        present = self._files()
        self._seen = {name: (found, self._since(name, found, now)) for name, found in present.items()}
        for name in self._settled(now):
            del self._seen[name]
            self._take(name)
        return SETTLED_SECONDS if self._seen else None

    def _since(self, name: str, found: Fingerprint, now: float) -> float:
        """Since when a file is as it is now."""
        before, since = self._seen.get(name, (None, now))
        return since if before == found else now

    def _settled(self, now: float) -> list[str]:
        """The files that have not changed for long enough, and that nobody holds open for writing."""
        still = [name for name, (found, since) in self._seen.items() if now - since >= _settling_seconds(name, found)]
        written = files_open_for_writing(still) if still else set()
        return [name for name in still if self._seen[name][0][0] not in written]

    def recover(self) -> None:
        """Go on with what was taken and could not be handed over, or was not before a crash."""
        for path in sorted(self._taken.glob("[!.]*")) if self._taken.is_dir() else ():
            self._submit(path)

    def _files(self) -> dict[str, Fingerprint]:
        found: dict[str, Fingerprint] = {}
        try:
            entries = list(os.scandir(self._context.dirs.spool))
        except OSError:
            return found
        for entry in entries:
            if entry.name.startswith(".") or entry.name in _OWN or entry.name.lower().endswith(PASSING):
                continue
            with contextlib.suppress(OSError):
                found[entry.name] = _fingerprint(entry.stat(follow_symlinks=False))
        return found

    def _take(self, name: str) -> None:
        """Move a file aside, so that it is taken once, and submit it."""
        source = self._context.dirs.spool / name
        try:
            self._taken.mkdir(mode=0o700, exist_ok=True)
            target = self._free(self._taken / name)
            source.rename(target)
        except OSError as error:
            self._say_once(name, f"spool: {shown(source)} cannot be taken: {error.strerror}")
            return
        self._said.pop(name, None)
        step("spool-taken")
        self._submit(target)

    def _submit(self, path: Path) -> None:
        """Submit a file that was taken; if that was begun before a crash, only those of its jobs that are not in the record."""
        try:
            check_file(path)
            jobs = self._prepared(path)
            for entry in jobs:
                self._hand_over(entry)
        except (UnreachableError, OSError) as error:
            if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                self._context.refuse(f"the spool's files wait: {self._taken} cannot be written: the disk is full")
            self._say_once(path.name, f"spool: {shown(path)} waits: {str(error).replace(str(path), shown(path))}")
        except LauncherError as error:
            self._refuse(path, str(error))
        except Exception as error:  # one file must not keep the daemon from its work
            log.exception("spool: %s", shown(path))
            self._refuse(path, f"an error of hvdgrab-launch itself: {error!r}")
        else:
            if jobs:
                log.info("spool: %s became %s", shown(path.name), ", ".join(entry.job.id for entry in jobs))
            self._put(path, self._done)

    def _prepared(self, path: Path) -> list[Prepared]:
        """The jobs of a file that are not in the record yet; half-made directories of an earlier beginning are removed.

        Raises:
            UsageError: if the file is no job, or if the version before has begun to submit it.
        """
        if _old_notes(path).exists():
            raise UsageError(
                "an earlier version of hvdgrab-launch had begun to submit it: if `ls` does not show its jobs, put it into the "
                "spool again"
            )
        fingerprint = _fingerprint(path.lstat())
        taken = read_as(Taken, _notes(path)) or Taken()
        jobs: list[Job | None] = []
        for job_id in taken.jobs if taken.file == str(fingerprint) else ():  # else an earlier file of this name was meant
            root = Path(self._jobs) / job_id
            jobs.append(self._context.store.get(job_id))
            if jobs[-1] is None and root.is_dir() and not root.is_symlink():
                shutil.rmtree(root)
        prepared = self._prepare(str(path), self._jobs)
        jobs += [None] * (len(prepared) - len(jobs))
        pairs = list(zip(jobs, prepared, strict=False))
        ids = tuple(job.id if job is not None else entry.job.id for job, entry in pairs)
        replace_text(_notes(path), as_text(asdict(Taken(str(fingerprint), ids))), durable=True)
        left = [entry for job, entry in pairs if job is None]
        group = next((job.group_name for job in jobs if job is not None), None)
        return [replace(entry, plan=entry.plan.for_job(group=group)) for entry in left] if group is not None else left

    def _hand_over(self, entry: Prepared) -> None:
        write_directory(entry)
        step("spool-written")
        plan, job = entry.plan, entry.job
        wanted = self._dependencies(plan.job.depends_on)
        self._requests.submit(Submission(job.id, str(job.root), os.environ, plan.job.priority, wanted, plan.job.group))
        step("spool-submitted")

    def _dependencies(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Ids of the jobs that a spec names by id or name; of a name the newest."""
        found = []
        for name in wanted:
            if self._context.store.get(name) is not None:
                found.append(name)
            elif named := self._context.store.find(name=name, limit=1):
                found.append(named[-1].id)
            else:
                raise UsageError(f"depends_on: there is no job {name!r} in the record")
        return tuple(found)

    def _refuse(self, path: Path, reason: str) -> None:
        """Move a file aside, with the reason beside it; if the reason cannot be written, the file waits."""
        try:
            self._refused.mkdir(mode=0o700, exist_ok=True)
            target = self._free(self._refused / _short(path))
            text = reason.replace(str(path), shown(target))
            with target.with_name(target.name + ".error").open("w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text + "\n")
            path.rename(target)
            if len(os.fsencode(path.name)) <= LONGEST:
                _notes(path).unlink(missing_ok=True)
                _old_notes(path).unlink(missing_ok=True)
        except OSError as error:
            text = reason.replace(str(path), shown(path))
            self._say_once(path.name, f"spool: {shown(path)} is refused, and cannot be moved aside ({error.strerror}): {text}")
            return
        self._said.pop(path.name, None)
        log.warning("spool: %s is refused: %s", shown(target.name), text)

    def _put(self, path: Path, directory: Path) -> None:
        """Move a file whose jobs are in the record; its notes outlast it, so that it never becomes jobs twice."""
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
            path.rename(self._free(directory / path.name))
            _notes(path).unlink(missing_ok=True)
        except OSError as error:
            self._say_once(path.name, f"spool: {shown(path)} cannot be moved to {directory}: {error.strerror}")
            return
        self._said.pop(path.name, None)

    def _say_once(self, name: str, text: str) -> None:
        if self._said.get(name) != text:
            self._said[name] = text
            log.warning("%s", text)

    @staticmethod
    def _free(path: Path) -> Path:
        """The path; with a number if it exists."""
        target, number = path, 1
        while os.path.lexists(target):
            number += 1
            target = path.with_name(f"{path.stem}-{number}{path.suffix}")
        return target


def _prepare(file: str, root: str) -> list[Prepared]:
    """Prepare a file's jobs; without a ``workdir`` they run in the user's home, as the daemon's own directory means nothing."""
    return prepare(file, [], root, cwd=os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where HOME is unknown


def _notes(path: Path) -> Path:
    """Where the `Taken` of a file lies."""
    return path.with_name(f".{path.name}.taken.json")


def _old_notes(path: Path) -> Path:
    """What an earlier version kept in its place."""
    return path.with_name(f".{path.name}.ids")


def _short(path: Path) -> str:
    """A file's name, or its beginning, which leaves space for what is written beside it."""
    if len(os.fsencode(path.name)) <= LONGEST:
        return path.name
    ending = next((end for end in ENDINGS if path.name.lower().endswith(end)), "")
    return os.fsencode(path.name)[: LONGEST - 20].decode("utf-8", "ignore") + ending


def shown(name: Path | str) -> str:
    """A file's name on one line: control characters, which it may hold, are escaped."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", lambda found: ascii(found[0])[1:-1], str(name))


def _fingerprint(info: os.stat_result) -> Fingerprint:
    return info.st_ino, info.st_size, info.st_mtime_ns, info.st_mode


def _settling_seconds(name: str, found: Fingerprint) -> float:
    is_job = name.lower().endswith(ENDINGS) and not stat.S_ISDIR(found[-1])
    return SETTLED_SECONDS if is_job else ODD_SECONDS


def check_file(path: Path) -> None:
    """Raises UsageError unless something is a job's file: a regular one of this user, with the name of a YAML file."""
    found = path.lstat()
    length = len(os.fsencode(path.name))
    if length > LONGEST:
        raise UsageError(f"its name is {length} bytes long, and at most {LONGEST} are possible: give the file a shorter name")
    if stat.S_ISLNK(found.st_mode):
        raise UsageError("it is a link, and links are not followed: put the file itself into the spool")
    if stat.S_ISDIR(found.st_mode):
        raise UsageError("it is a directory: put the YAML file of each job into the spool itself")
    if not stat.S_ISREG(found.st_mode):
        raise UsageError("it is no regular file")
    if not path.name.lower().endswith(ENDINGS):
        raise UsageError(f"its name does not end in {' or '.join(ENDINGS)}, as that of a job does")
    if found.st_uid != os.getuid():
        raise UsageError(f"it belongs to user {found.st_uid}, not to you")
