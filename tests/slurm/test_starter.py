"""The starter and the daemon's loop with stand-ins for SLURM's programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.attempt.starter import Alive, Gone, Handle, StartError, Unreachable
from launcher.jobdir.events import EventLog
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.plan import Plan
from launcher.slurm.answers import SQUEUE_HEADER
from launcher.slurm.batch import first_attempt
from launcher.slurm.commands import Reach
from launcher.slurm.starter import SILENT, SlurmStarter
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
    starter._queue(Reach.of(environment))._good = None  # as it is when the last answer is long past
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
    starter._queue(Reach.of(environment))._good = None
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
