"""The starter and the daemon's loop with stand-ins for SLURM's programs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from launcher.attempt.policy import Final, Restart
from launcher.attempt.starter import Alive, Gone, Handle, StartError, Unknown, Unreachable
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.events import EventLog
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.plan import Plan
from launcher.slurm.batch import first_attempt, requeue_decision
from launcher.slurm.commands import SACCT_HEADER, SQUEUE_HEADER, Reach
from launcher.slurm.script import submission_name, token
from launcher.slurm.starter import SILENT, SlurmStarter
from launcher.slurm.submission import Submission
from tests.launcher.daemon.conftest import world  # noqa: F401 - a fixture
from tests.launcher.daemon.kit import World
from tests.slurm.test_pure import plan

TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir()
    return folder


def put(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def job_in(folder: Path, slurm: str = "{}") -> tuple[JobPaths, Plan]:
    made = plan(f"resources: {{ranks: 2}}\nslurm: {slurm}", folder=str(folder))
    job = JobPaths(Path(made.job.dir))
    job.create()
    job.attempt(1).create()
    return job, made


def test_a_controller_that_does_not_answer_is_not_asked_again_for_every_job(programs: Path, tmp_path: Path) -> None:
    put(programs, "sbatch", f'echo x >> {tmp_path}/calls; echo "{TIMED_OUT}" >&2; exit 1')
    now = [0.0]
    starter = SlurmStarter(600.0, clock=lambda: now[0])
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "SLURM_CONF": "/nowhere/slurm.conf"}
    said = []
    for number in range(20):
        job, made = job_in(tmp_path / str(number))
        with pytest.raises(Unreachable) as caught:
            starter.start(job, 1, made, environment)
        said.append(str(caught.value))
        assert caught.value.where == "/nowhere/slurm.conf:"
    assert (tmp_path / "calls").read_text().count("x") == 1
    assert "Socket timed out" in said[-1]
    assert "was not submitted yet" in said[-1]
    job, made = job_in(tmp_path / "west", "{clusters: west}")
    with pytest.raises(Unreachable):
        starter.start(job, 1, made, environment)
    now[0] += SILENT
    job, made = job_in(tmp_path / "again")
    with pytest.raises(Unreachable):
        starter.start(job, 1, made, environment)
    assert (tmp_path / "calls").read_text().count("x") == 3


def test_where_the_queue_does_not_answer_sbatch_is_not_called(programs: Path, tmp_path: Path, monkeypatch) -> None:
    put(programs, "sbatch", f"echo x >> {tmp_path}/calls; echo 7")
    put(programs, "squeue", "exit 1")
    monkeypatch.setenv("PATH", str(programs))
    starter = SlurmStarter(0.0)
    environment = {"PATH": str(programs)}
    job, made = job_in(tmp_path / "1")
    handle = starter.start(job, 1, made, environment)
    starter.look({"a": handle})
    job, made = job_in(tmp_path / "2")
    with pytest.raises(Unreachable, match="it was not submitted yet: SLURM does not answer"):
        starter.start(job, 1, made, environment)
    assert starter.find(job, 1) is None
    put(programs, "squeue", f"echo '{SQUEUE_HEADER}'")
    starter.look({"a": handle})
    assert starter.start(job, 1, made, environment)["job_id"] == "7"
    assert (tmp_path / "calls").read_text() == "x\nx\n"


def test_the_first_submission_after_an_idle_time_waits_for_the_answer_on_its_way(
    programs: Path, tmp_path: Path, monkeypatch
) -> None:
    put(programs, "sbatch", "echo 7")
    put(programs, "squeue", f"echo '{SQUEUE_HEADER}'")
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    starter = SlurmStarter(0.0)
    environment = {"PATH": str(programs)}
    job, made = job_in(tmp_path / "1")
    starter.look({"a": starter.start(job, 1, made, environment)})
    put(programs, "squeue", f"sleep 0.3; echo '{SQUEUE_HEADER}'")
    starter._watcher(Reach.of(environment))._good = None  # as it is when the last answer is long past
    job, made = job_in(tmp_path / "2")
    assert starter.start(job, 1, made, environment)["job_id"] == "7"


def test_an_answer_that_does_not_come_in_time_is_said_to_be_on_its_way(programs: Path, tmp_path: Path, monkeypatch) -> None:
    put(programs, "sbatch", "echo 7")
    put(programs, "squeue", f"echo '{SQUEUE_HEADER}'")
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setattr("launcher.slurm.starter.START_PATIENCE", 0.1)
    starter = SlurmStarter(0.0)
    environment = {"PATH": str(programs)}
    job, made = job_in(tmp_path / "1")
    starter.look({"a": starter.start(job, 1, made, environment)})
    put(programs, "squeue", "exec sleep 5")
    starter._watcher(Reach.of(environment))._good = None
    job, made = job_in(tmp_path / "2")
    with pytest.raises(Unreachable, match="^it was not submitted yet: SLURM is being asked about the queue, and has not"):
        starter.start(job, 1, made, environment)


def test_a_suspended_job_runs_and_says_why_it_makes_no_progress(programs: Path, tmp_path: Path, monkeypatch) -> None:
    put(programs, "sbatch", "echo 7")
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    starter = SlurmStarter(0.0)
    job, made = job_in(tmp_path)
    handle = starter.start(job, 1, made, {"PATH": str(programs)})
    said = []
    for state in ("RUNNING", "SUSPENDED", "RUNNING"):
        put(programs, "squeue", f"echo '{SQUEUE_HEADER}'; echo '7|{state}|None|main|n1|a|'")
        seen = starter.look({"a": handle})["a"]
        assert isinstance(seen, Alive)
        said.append((seen.running, seen.note))
    assert said == [(True, None), (True, "job 7 is suspended"), (True, None)]


def test_a_suspended_job_is_cancelled_as_no_signal_would_reach_it(programs: Path, tmp_path: Path, monkeypatch) -> None:
    put(programs, "sbatch", "echo 7")
    put(programs, "scancel", f'echo "$@" >> {tmp_path}/calls')
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    starter = SlurmStarter(0.0)
    job, made = job_in(tmp_path)
    handle = starter.start(job, 1, made, {"PATH": str(programs)})
    starter._cancel(handle, kill=False)
    starter._cancel(handle, kill=True)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == ["--state=PENDING 7", "--state=SUSPENDED 7", "--batch --signal=TERM 7", "7"]


@pytest.mark.parametrize(("code", "reason"), [("0:9", "what ran attempt 1, in job 7 of SLURM, was killed by SIGKILL"),
                                              ("1:0", "job 7 ended with an error")])  # fmt: skip
def test_a_batch_script_that_was_killed_is_said_to_be(
    programs: Path, tmp_path: Path, monkeypatch, code: str, reason: str
) -> None:
    put(programs, "sbatch", "echo 7")
    put(programs, "squeue", f"echo '{SQUEUE_HEADER}'; echo '7|FAILED|NonZeroExitCode|main|n1|a|'")
    put(programs, "scontrol", f"echo 'JobId=7 JobState=FAILED ExitCode={code}'")
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    starter = SlurmStarter(0.0)
    job, made = job_in(tmp_path)
    handle = starter.start(job, 1, made, {"PATH": str(programs)})
    assert starter.look({"a": handle})["a"] == Gone("failure", "job 7 ended with an error")
    job.attempt(1).claim.write_text("{}")
    assert starter.look({"a": handle})["a"] == Gone("failure", reason)


def test_twenty_failed_jobs_and_a_slow_scontrol_keep_the_engine_from_nothing(
    world: World,  # noqa: F811
    programs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = tmp_path / "calls"
    state = f"[ -e {tmp_path}/fail ] && [ $k -lt 21 ] && state=FAILED || state=RUNNING"
    rows = f'n=$(wc -l < {calls}); k=1; while [ $k -le $n ]; do {state}; echo "$k|$state|None|main|n1|a|"; k=$((k+1)); done'
    put(programs, "sbatch", f"echo x >> {calls}; wc -l < {calls}")
    put(programs, "squeue", f"echo '{SQUEUE_HEADER}'; {rows}")
    put(programs, "scontrol", "sleep 2.5; echo JobId=$4 JobState=FAILED ExitCode=0:9")
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    world.context.starters = {**world.context.starters, "slurm": SlurmStarter(0.5)}
    environment, sections = {"PATH": f"{programs}:/usr/bin:/bin"}, {"backend": {"kind": "slurm"}, "restart": {"lost_node": 0}}
    jobs = [world.submit(f"s{number}", environment=environment, **sections) for number in range(21)]
    world.tick(times=3)
    for job in jobs:
        world.paths(job).attempt(1).claim.write_text("{}")
    (tmp_path / "fail").touch()
    longest, end = 0.0, time.monotonic() + 60
    while [world.view(job).state for job in jobs[:20]] != ["failed"] * 20:
        begun = time.monotonic()
        world.tick()
        longest = max(longest, time.monotonic() - begun)
        assert begun < end
    assert longest < 3.0
    assert world.view(jobs[20]).state in ("starting", "running")
    for number, job in enumerate(jobs[:20], start=1):
        assert world.view(job).reason == f"what ran attempt 1, in job {number} of SLURM, was killed by SIGKILL"


def test_an_absent_job_is_looked_up_in_accounting_within_the_same_cycle(programs: Path, tmp_path: Path, monkeypatch) -> None:
    put(programs, "squeue", f"echo '{SQUEUE_HEADER}'")
    put(programs, "scontrol", "echo 'AccountingStorageType = accounting_storage/slurmdbd'")
    put(programs, "sacct", f"echo \"$*\" >> {tmp_path}/calls; echo '{SACCT_HEADER}'; echo '7|TIMEOUT|main|n1|a|'")
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    job, _ = job_in(tmp_path)
    handle = {"kind": "slurm", "job_id": "7", "dir": str(job.root), "attempt": 1}
    starter = SlurmStarter(600.0)
    while isinstance(seen := starter.look({"a": handle})["a"], Unknown):
        pass
    assert seen == Gone("time_limit", "job 7 reached SLURM's time limit")
    assert "-j 7 " in (tmp_path / "calls").read_text()


def test_an_interrupted_submission_that_has_left_the_queue_is_found_in_accounting_before_another_is_made(
    programs: Path, tmp_path: Path, monkeypatch
) -> None:
    put(programs, "squeue", f"echo '{SQUEUE_HEADER}'")
    put(programs, "scontrol", "echo 'AccountingStorageType = accounting_storage/slurmdbd'")
    put(programs, "sacct", "exit 1")
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    job, made = job_in(tmp_path)
    name = submission_name(made, 1)
    Submission(token(made, 1), name, 0.0).write(job.attempt(1))
    starter, end = SlurmStarter(0.0, settle=0.5), time.monotonic() + 1.5
    while time.monotonic() < end:  # longer than it takes to settle: accounting does not answer
        with pytest.raises(Unreachable, match="waiting to see whether SLURM has taken it"):
            starter.find(job, 1)
    put(programs, "sacct", f"echo '{SACCT_HEADER}'; case \"$*\" in *--name={name}*) echo '9|COMPLETED|main|n1|{name}|';; esac")
    found = until_known(starter, job)
    assert found is not None
    assert found["job_id"] == "9"
    known = Submission.read(job.attempt(1))
    assert known is not None
    assert known.job_id == "9"


def test_an_interrupted_submission_to_any_cluster_is_looked_for_in_all(programs: Path, tmp_path: Path, monkeypatch) -> None:
    job, made = job_in(tmp_path, "{clusters: all}")
    row = f"9|PENDING|Priority|main||{submission_name(made, 1)}|"
    put(programs, "squeue", f"echo '{SQUEUE_HEADER}'; case \"$*\" in *'-M west'*) echo '{row}';; esac")
    put(programs, "sacctmgr", "exit 1")
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    Submission(token(made, 1), submission_name(made, 1), 0.0, clusters="all").write(job.attempt(1))
    with pytest.raises(Unreachable, match="attempt 1 is not known, as its clusters are not"):
        SlurmStarter(0.0, settle=0.0).find(job, 1)
    put(programs, "sacctmgr", "echo east; echo west")
    found = SlurmStarter(600.0).find(job, 1)
    assert found is not None
    assert (found["job_id"], found["cluster"]) == ("9", "west")


def test_a_frozen_controller_does_not_hold_the_caller_and_the_submission_is_not_lost(
    programs: Path, tmp_path: Path, monkeypatch
) -> None:
    put(programs, "sbatch", f"echo x >> {tmp_path}/calls; while [ ! -e {tmp_path}/answer ]; do sleep 0.05; done; echo 7")
    monkeypatch.setattr("launcher.slurm.starter.SUBMIT_PATIENCE", 0.2)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    environment = {"PATH": f"{programs}:/usr/bin:/bin"}
    starter = SlurmStarter(600.0)
    job, made = job_in(tmp_path / "1")
    for ask in (lambda: starter.start(job, 1, made, environment), lambda: starter.find(job, 1)):
        begun = time.monotonic()
        with pytest.raises(Unreachable, match="not known: sbatch has not come to an end yet"):
            ask()
        assert time.monotonic() - begun < 2.0
    other, others_plan = job_in(tmp_path / "2")
    with pytest.raises(Unreachable, match="it was not submitted yet: another job a moment ago"):
        starter.start(other, 1, others_plan, environment)
    (tmp_path / "answer").touch()
    assert until_known(starter, job)["job_id"] == "7"
    assert (tmp_path / "calls").read_text() == "x\n"


def test_a_late_refusal_is_one(programs: Path, tmp_path: Path, monkeypatch) -> None:
    put(programs, "sbatch", "sleep 0.5; echo 'sbatch: error: Batch job submission failed: Invalid partition name' >&2; exit 1")
    monkeypatch.setattr("launcher.slurm.starter.SUBMIT_PATIENCE", 0.1)
    environment = {"PATH": f"{programs}:/usr/bin:/bin"}
    starter = SlurmStarter(600.0)
    job, made = job_in(tmp_path / "1")
    with pytest.raises(Unreachable):
        starter.start(job, 1, made, environment)
    assert until_known(starter, job) is None
    with pytest.raises(StartError, match="SLURM refused the job: Invalid partition name"):
        starter.start(job, 1, made, environment)


def until_known(starter: SlurmStarter, job: JobPaths) -> Handle | None:
    """What became of a submission that was under way."""
    end = time.monotonic() + 30
    while True:
        try:
            return starter.find(job, 1)
        except Unreachable:
            assert time.monotonic() < end
            time.sleep(0.05)


def ended(cause: str) -> AttemptEnd:
    return AttemptEnd(1, "failed", cause, 1)


AGAIN = Restart(0.0, "it is started again", ())
OVER = Final("failed", 1, "no more")


@pytest.mark.parametrize(
    ("requeue", "end", "verdict", "cancelled", "unexplained", "again"),
    [
        ("true", "failure", AGAIN, False, False, True),
        ("true", "preemption", AGAIN, False, False, True),
        ("true", "preemption", AGAIN, False, True, False),
        ("true", "lost_node", AGAIN, False, True, True),
        ("true", "failure", OVER, False, False, False),
        ("true", "failure", AGAIN, True, False, False),
        ("false", "failure", AGAIN, False, False, False),
    ],
)
def test_a_job_puts_itself_back_only_if_it_is_its_turn_to_decide(
    requeue: str, end: str, verdict: Restart | Final, cancelled: bool, unexplained: bool, again: bool
) -> None:
    made = plan(f"resources: {{ranks: 2}}\nslurm: {{requeue: {requeue}}}")
    assert requeue_decision(made, ended(end), verdict, cancelled=cancelled, unexplained=unexplained) is again


def test_budgets_count_from_the_last_retry_whoever_has_submitted(tmp_path: Path) -> None:
    job, _ = job_in(tmp_path)
    events = EventLog(job)
    assert first_attempt(job, 4) == 4
    for number in (1, 2):
        events.add("starting", attempt=number)
    assert first_attempt(job, 2) == 1
    events.add("retried")
    assert first_attempt(job, 3) == 3
    for number in (3, 5):
        events.add("starting", attempt=number)
    assert first_attempt(job, 5) == 3


def test_slurm_is_found_and_asked_as_the_submitter_had_it(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(programs, "squeue", 'echo "$SLURM_CONF" "$@"')
    put(programs, "sbatch", "exit 1")
    reach = Reach.of({"PATH": f"{programs}:/bin", "SLURM_CONF": "/theirs"}, "west")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("SLURM_CONF", "/the/daemons/own")
    assert reach.ask(("squeue", "-a")).stdout == "/theirs -M west -a\n"
    assert Reach(None, str(programs)).ask(("squeue", "-a")).stdout == " -a\n"


def test_one_cluster_that_does_not_answer_holds_up_no_job_of_another(world: World, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    start = world.slurm.start

    def refusing_west(job: JobPaths, attempt: int, made: Plan, environment: dict[str, str]) -> Handle:
        if made.job.name == "west":
            raise Unreachable("the controller of west does not answer", "west")
        return start(job, attempt, made, environment)

    monkeypatch.setattr(world.slurm, "start", refusing_west)
    away = world.submit("west", backend={"kind": "slurm"})
    here = [world.submit(f"east{number}", backend={"kind": "slurm"}) for number in range(3)]
    world.tick(1.0, times=15)
    assert {world.view(job).state for job in here} == {"starting"}
    assert len(world.slurm.started) == 3
    assert "the controller of west does not answer" in (world.view(away).reason or "")
    monkeypatch.setattr(world.slurm, "start", start)
    world.tick(1.0, times=15)
    assert len(world.slurm.started) == 4


def test_a_starter_without_slurm_refuses_in_one_sentence(tmp_path: Path) -> None:
    job, made = job_in(tmp_path)
    with pytest.raises(StartError, match="^there is no SLURM on this machine: no sbatch on PATH$"):
        SlurmStarter().start(job, 1, made, {"PATH": str(tmp_path)})
    assert not (job.attempt(1).root / "submission.json").exists()
