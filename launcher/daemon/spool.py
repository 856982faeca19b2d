"""The spool: a YAML file that is put into the directory becomes a job.

A file is taken when it has not changed for a while, so that it may be written slowly; names that begin with a dot are passed
over, so that it may be moved into place.  What was taken lies in ``done/``, what was refused in ``refused/`` with the reason
beside it.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from launcher.daemon.context import Context, log
from launcher.daemon.crash import step
from launcher.daemon.desk import Desk
from launcher.errors import LauncherError, UnreachableError, UsageError
from launcher.files import replace_text
from launcher.paths import JOBS_VARIABLE
from launcher.state import Submission
from launcher.submit import Prepared, prepare, write_directory

ENDINGS = (".yaml", ".yml")
SETTLED_SECONDS = 1.0
"""A file must not have changed for so long."""
RECOVER_SECONDS = 10.0
"""What was taken and waits is tried again so often."""

Prepare = Callable[[str, str], list[Prepared]]
"""From a file's path and the directory of jobs to the jobs."""


class Spool:
    """Looks at the spool; for the engine's thread."""

    def __init__(self, context: Context, desk: Desk, prepare_file: Prepare | None = None) -> None:
        self._context = context
        self._desk = desk
        self._prepare = prepare_file or (lambda file, root: prepare(file, [], root, ask=False))
        self._seen: dict[str, tuple[tuple[int, ...], float]] = {}
        self._recover_at = 0.0
        root = context.dirs.spool
        self._taken, self._done, self._refused = root / "taken", root / "done", root / "refused"
        self._jobs = os.environ.get(JOBS_VARIABLE) or str(context.dirs.state / "jobs")

    def look(self, now: float) -> float | None:
        """Take what is ready.

        Args:
            now: seconds of a clock that never goes back.

        Returns:
            Seconds after which it is worth looking again soon; None where nothing is there.
        """
        if now >= self._recover_at:
            self._recover_at = now + RECOVER_SECONDS
            self.recover()
        present = self._files()
        self._seen = {name: self._seen[name] for name in self._seen if name in present}
        for name, found in present.items():
            before = self._seen.get(name)
            if before is None or before[0] != found:
                self._seen[name] = (found, now)
            elif now - before[1] >= SETTLED_SECONDS:
                del self._seen[name]
                self._take(name)
        return SETTLED_SECONDS if self._seen else None

    def recover(self) -> None:
        """Go on with what was taken and could not be handed over, or was not before a crash."""
        for path in sorted(self._taken.glob("[!.]*")) if self._taken.is_dir() else ():
            self._submit(path)

    def _files(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        try:
            entries = list(os.scandir(self._context.dirs.spool))
        except OSError:
            return found
        for entry in entries:
            if entry.name.startswith(".") or not entry.name.endswith(ENDINGS):
                continue
            try:
                info = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if not stat.S_ISDIR(info.st_mode):
                found[entry.name] = (info.st_ino, info.st_size, info.st_mtime_ns, info.st_mode)
        return found

    def _take(self, name: str) -> None:
        """Move a file aside, so that it is taken once, and submit it."""
        source = self._context.dirs.spool / name
        try:
            self._taken.mkdir(mode=0o700, exist_ok=True)
            target = self._free(self._taken / name)
            source.rename(target)
        except OSError as error:
            log.warning("spool: %s cannot be taken: %s", source, error.strerror)
            return
        step("spool-taken")
        self._submit(target)

    def _submit(self, path: Path) -> None:
        """Hand over a file that was taken.  Begun before a crash, it is done again, without what is a job already."""
        try:
            _check_file(path)
            jobs = self._prepared(path)
            for entry in jobs:
                self._hand_over(entry)
        except (UnreachableError, OSError) as error:
            log.warning("spool: %s waits: %s", path, error)
        except LauncherError as error:
            self._refuse(path, str(error))
        except Exception as error:  # one file must not keep the daemon from its work
            log.exception("spool: %s", path)
            self._refuse(path, f"an error of hvdgrab-launch itself: {error!r}")
        else:
            self._put(path, self._done)
            log.info("spool: %s became %s", path.name, ", ".join(entry.job.id for entry in jobs) or "what it was before")

    def _prepared(self, path: Path) -> list[Prepared]:
        """The jobs of a file that are not in the record yet; half-made directories of an earlier beginning are removed."""
        notes = path.with_name(f".{path.name}.ids")
        earlier = notes.read_text("utf-8").split() if notes.exists() else []
        known = [self._context.store.get(job_id) for job_id in earlier]
        for job_id, job in zip(earlier, known, strict=True):
            root = Path(self._jobs) / job_id
            if job is None and root.is_dir() and not root.is_symlink():
                shutil.rmtree(root)
        prepared = self._prepare(str(path), self._jobs)
        known += [None] * (len(prepared) - len(known))
        ids = [job.id if job is not None else entry.job.id for job, entry in zip(known, prepared, strict=False)]
        replace_text(notes, "\n".join(ids), durable=True)
        left = [entry for job, entry in zip(known, prepared, strict=False) if job is None]
        group = next((job.group_name for job in known if job is not None), None)
        return [replace(entry, plan=replace(entry.plan, group=group)) for entry in left] if group is not None else left

    def _hand_over(self, entry: Prepared) -> None:
        write_directory(entry)
        step("spool-written")
        plan, job = entry.plan, entry.job
        wanted = self._dependencies(plan.depends_on)
        self._desk.submit(Submission(job.id, str(job.root), os.environ, plan.priority, wanted, plan.group))
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
        log.warning("spool: %s is refused: %s", path.name, reason)
        target = self._put(path, self._refused)
        if target is not None:
            with target.with_name(target.name + ".error").open("w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(reason + "\n")

    def _put(self, path: Path, directory: Path) -> Path | None:
        path.with_name(f".{path.name}.ids").unlink(missing_ok=True)
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
            target = self._free(directory / path.name)
            path.rename(target)
        except OSError as error:
            log.warning("spool: %s cannot be moved to %s: %s", path, directory, error.strerror)
            return None
        return target

    @staticmethod
    def _free(path: Path) -> Path:
        """The path, or where it is taken the same with a number."""
        target, number = path, 1
        while os.path.lexists(target):
            number += 1
            target = path.with_name(f"{path.stem}-{number}{path.suffix}")
        return target


def _check_file(path: Path) -> None:
    """Raises UsageError unless a file is a regular file of this user."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise UsageError("it is a link, and links are not followed: put the file itself into the spool")
    if not stat.S_ISREG(found.st_mode):
        raise UsageError("it is no regular file")
    if found.st_uid != os.getuid():
        raise UsageError(f"it belongs to user {found.st_uid}, not to you")
