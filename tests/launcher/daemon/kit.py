"""A daemon without processes: a clock that tests move, and a starter whose supervisors are entries in a table."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from launcher.attempt.starter import Alive, Gone, Handle, HeldByAnother, Seen, StartError, Unknown, Unreachable
from launcher.daemon.context import Context
from launcher.daemon.dirs import Dirs
from launcher.daemon.ending import Ending
from launcher.daemon.engine import Engine
from launcher.daemon.http.messages import JobView, Submission
from launcher.daemon.queue import Capacity
from launcher.daemon.record import Store
from launcher.daemon.requests import Requests
from launcher.host.files import as_text, create_once
from launcher.jobdir.claim import Claim
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.marks import RankMark
from launcher.jobdir.paths import JobPaths, new_id
from launcher.jobdir.plan import Plan
from launcher.plan import facts
from launcher.plan.planning import make_plan
from launcher.spec.model import Spec

UNKNOWN_FACTS: dict[str, Any] = {entry.name: None for entry in dataclasses.fields(facts.Facts)}
FACTS = facts.Facts(
    **{
        **UNKNOWN_FACTS, "host": "here", "cores": 64, "root": False, "python": "/usr/bin/python3", "cwd": "/", "path": "/usr/bin",
        "pythonpath": "", "environment": (),
    }
)  # fmt: skip


def job_directory(root: Path, name: str = "job", host: facts.Facts = FACTS, **sections: Any) -> JobPaths:
    """A job directory as a client writes it: one local rank, unless the sections say more."""
    data: dict[str, Any] = {"name": name, "command": ["python", "-c", "pass"], **sections}
    data["resources"] = {"ranks": 1, "threads_per_rank": 1, **data.get("resources", {})}
    job = JobPaths(root / new_id(name))
    plan = make_plan(Spec.model_validate(data), host, job)
    job.create()
    job.spec.write_text("{}\n")
    plan.write(job.plan)
    return job


class FakeClock:
    """Both clocks, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.offset = 1_800_000_000.0

    def wall(self) -> float:
        return self.now + self.offset

    def steady(self) -> float:
        return self.now


@dataclass
class FakeStarter:
    """Supervisors that claim their attempt at once, and do what the test says."""

    name: str = "local"
    interval: float = 0.0
    host: str = "here"
    started: list[tuple[str, int]] = field(default_factory=list)
    """Every supervisor that got its claim."""
    living: set[int] = field(default_factory=set)
    stopped: list[tuple[int, bool]] = field(default_factory=list)
    environments: list[Mapping[str, str]] = field(default_factory=list)
    looks: int = 0
    unknown: str | None = None
    """Why nothing can be known at present."""
    refuse: str | None = None
    lose_answers: bool = False
    claims: bool = True
    """Whether a new supervisor claims its attempt at once."""
    pids: int = 100
    word: tuple[str | None, str | None] = (None, None)
    """What the scheduler says of whatever is gone."""

    def start(self, job: JobPaths, attempt: int, plan: Plan, environment: Mapping[str, str]) -> Handle:
        if self.refuse:
            raise StartError(self.refuse)
        if self.unknown:
            raise Unreachable(self.unknown)
        self.pids += 1
        pid = self.pids
        self.environments.append(environment)
        if not self.claims or self.claim(job, attempt, pid):
            self.living.add(pid)
        if self.lose_answers:
            raise Unreachable("socket timed out")
        return self.handle(pid, job, attempt)

    def claim(self, job: JobPaths, attempt: int, pid: int) -> bool:
        paths = job.attempt(attempt)
        paths.create()
        claim = Claim(self.host, pid, pid, time.time())
        taken = create_once(paths.claim, as_text(dataclasses.asdict(claim)))
        if taken:
            self.started.append((job.id, attempt))
        return taken

    def handle(self, pid: int, job: JobPaths, attempt: int) -> Handle:
        kind = "process" if self.name == "local" else "slurm"
        return {"kind": kind, "host": self.host, "pid": pid, "pid_started": pid, "dir": str(job.root), "attempt": attempt}

    def find(self, job: JobPaths, attempt: int) -> Handle | None:
        if self.unknown:
            raise Unreachable(self.unknown)
        claim = Claim.read(job.attempt(attempt))
        return self.handle(claim.pid, job, attempt) if claim is not None else None

    def look(self, handles: Mapping[str, Handle]) -> Mapping[str, Seen]:
        self.looks += 1
        if self.unknown:
            return {job_id: Unknown(self.unknown) for job_id in handles}
        return {job_id: self.seen(handle) for job_id, handle in handles.items()}

    def seen(self, handle: Handle) -> Seen:
        job, attempt = JobPaths(Path(handle["dir"])), handle["attempt"]
        begun = [number for number in job.attempt_numbers() if number > attempt and job.attempt(number).claim.exists()]
        newest = begun[-1] if begun and self.name == "slurm" else None
        if handle["pid"] in self.living:
            return Alive(attempt=newest)
        claim = Claim.read(job.attempt(attempt))
        if claim is not None and claim.pid in self.living and not job.attempt(attempt).end.exists():
            return HeldByAnother(self.handle(claim.pid, job, attempt))
        return Gone(*self.word, attempt=newest)

    def stop(self, handle: Handle, kill: bool) -> None:
        self.stopped.append((handle["pid"], kill))


class World:
    """A record, a clock, a starter, and the daemon of the moment."""

    def __init__(self, folder: Path, capacity: Capacity | None = None) -> None:
        self.folder = folder
        self.dirs = Dirs(folder / "state", folder / "runtime")
        self.dirs.make()
        self.clock = FakeClock()
        self.starter = FakeStarter()
        self.slurm = FakeStarter(name="slurm", interval=15.0, pids=9000)
        self.capacity = capacity or Capacity(cpus=64)
        self.swept: list[str] = []
        self.open()

    def open(self) -> None:
        """A new daemon on the same record; the earlier one may have died."""
        self.store = Store.open(self.dirs.record, network=False)
        self.context = Context(
            self.store, self.dirs, {"local": self.starter, "slurm": self.slurm}, self.clock, self.capacity, Random(0), "here"
        )
        self.requests = Requests(self.context)
        self.engine = Engine(self.context, Ending(self.context, self._sweep))

    def _sweep(self, job_id: str, grace: float) -> tuple[int, list[int]]:
        self.swept.append(job_id)
        return 0, []

    def die(self) -> None:
        """End the daemon as SIGKILL does, and start the next one."""
        self.store.close(release=True)  # a real lease of a dead process is free at once
        self.open()

    def submit(self, name: str = "job", *, environment: Mapping[str, str] | None = None, **sections: Any) -> str:
        priority, depends_on = sections.pop("priority", 0), tuple(sections.pop("depends_on", ()))
        job = job_directory(self.folder / "jobs", name, **sections)
        self.requests.submit(Submission(job.id, str(job.root), environment or {"PATH": "/usr/bin"}, priority, depends_on))
        return job.id

    def tick(self, seconds: float = 1.0, times: int = 1) -> None:
        for _ in range(times):
            self.engine.tick(self.clock.now)
            self.clock.now += seconds

    def view(self, job_id: str) -> JobView:
        return self.requests.view(job_id)

    def paths(self, job_id: str) -> JobPaths:
        return JobPaths(Path(self.view(job_id).dir))

    def pid(self, job_id: str) -> int:
        job = self.store.get(job_id)
        assert job is not None and job.handle is not None
        return int(job.handle["pid"])

    def mark(self, job_id: str, **changes: Any) -> None:
        """A rank's mark in the present attempt."""
        attempt = self.paths(job_id).attempt(self.view(job_id).attempt)
        fields = {"rank": 0, "host": "here", "wrapper_pid": 1, "pid": 2, "started": self.clock.wall(), **changes}
        known = {entry.name for entry in dataclasses.fields(RankMark)}
        RankMark(**{name: value for name, value in fields.items() if name in known}).write(attempt.rank_mark(fields["rank"]))

    def end(self, job_id: str, code: int = 0, cause: str | None = None, **changes: Any) -> None:
        """The supervisor notes the end of the present attempt, and is gone."""
        number = self.view(job_id).attempt
        now = self.clock.wall()
        state = "succeeded" if code == 0 else "failed"
        fields: dict[str, Any] = {
            "attempt": number, "state": state, "cause": cause or ("finished" if code == 0 else "failure"), "exit_code": code,
            "reason": None if code == 0 else f"rank 0 ended with {code}", "started": now - 5, "ended": now, "seconds": 5.0,
            **changes,
        }  # fmt: skip
        AttemptEnd(**fields).write(self.paths(job_id).attempt(number))
        self.vanish(job_id)

    def vanish(self, job_id: str) -> None:
        """The supervisor is gone without a word."""
        for starter in (self.starter, self.slurm):
            starter.living.discard(self.pid(job_id))

    def events(self, job_id: str) -> list[str]:
        return [event["event"] for event in self.requests.events(job_id, 0)]
