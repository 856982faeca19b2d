"""Jobs on several hosts over ssh, with a real sshd on each of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.host import processes
from tests.launcher import mpis
from tests.launcher.attempt.test_kills import HIDING
from tests.launcher.attempts import end_of, python, until, with_token
from tests.launcher.sshd import Cluster, cluster

SHOW = (
    "import os, sys; print(os.uname().nodename, os.environ['VALUE'], os.environ['TOKEN'] == 'hunter2hunter2', sys.argv[1:]); "
    "raise SystemExit(int(os.environ.get('CODE', '0')) if os.uname().nodename == 'h2' else 0)"
)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(["h1", "h2", "h3"], tmp_path_factory.mktemp("ssh"), without=["h3"]) as made:
        yield made


@pytest.mark.parametrize("name", ["openmpi4", *(pytest.param(name, marks=pytest.mark.soak) for name in mpis.WHEELS)])
def test_ranks_run_on_all_hosts_and_everything_arrives(two: Cluster, tmp_path: Path, name: str) -> None:
    arguments = ["$HOME `id`", "a b\n'\"", "größer"]
    job = two.job(
        tmp_path, python(SHOW, *arguments), ["h1:1", "h2:1"], env={"VALUE": "$HOME", "CODE": "9"}, secrets=["TOKEN"],
        backend={"mpirun": mpis.find(name)},
    )  # fmt: skip
    end = end_of(job, two.supervise(job, env={"TOKEN": "hunter2hunter2"}))
    assert (end.state, end.exit_code, end.first_failing_rank) == ("failed", 9, 1), (end, job.backend_log.read_text())
    assert (end.hosts, end.bad_hosts) == (("h1", "h2"), ("h2",))
    assert [job.rank_log(rank).read_text() for rank in (0, 1)] == [f"h{n} $HOME True {arguments}\n" for n in (1, 2)]
    assert with_token(job.id) == []


def start_hiding(two: Cluster, folder: Path, token: str) -> tuple[object, object]:
    job = two.job(folder, python(HIDING, token), ["h1:1", "h2:1"], backend={"mpirun": mpis.find("openmpi4")})
    process = two.supervise(job)
    logs = [job.rank_log(rank) for rank in (0, 1)]
    until(lambda: all(log.exists() and b"up" in log.read_bytes() for log in logs), "the start on both hosts")
    assert len(with_token(token)) == 6
    return job, process


@pytest.mark.parametrize("victim", ["cancel", *(pytest.param(name, marks=pytest.mark.soak) for name in ("mpirun", "supervisor"))])
def test_nothing_is_left_on_any_host(two: Cluster, tmp_path: Path, victim: str) -> None:
    token = f"token-{os.urandom(8).hex()}"
    job, process = start_hiding(two, tmp_path, token)
    (supervisor,) = [pid for pid in with_token(job.id) if command_of(pid)[1:3] == [b"-m", b"launcher.supervise"]]
    (mpirun,) = [entry.pid for entry in processes.table().values() if entry.parent == supervisor]
    if victim == "cancel":
        job.cancel.touch()
    os.kill(mpirun if victim == "mpirun" else supervisor, signal.SIGTERM if victim == "cancel" else signal.SIGKILL)
    process.communicate(timeout=60)
    until(lambda: not with_token(token) and not with_token(job.id), "the end of everything", 20)


def command_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def test_hosts_are_checked_before_anything_is_started(two: Cluster, tmp_path: Path) -> None:
    job = two.job(tmp_path, ["true"], ["h1:1", "h2:1", "h3:1", "nowhere:1"], backend={"mpirun": mpis.find("openmpi4")})
    end = end_of(job, two.supervise(job))
    assert (end.state, end.cause, end.bad_hosts) == ("failed", "not_started", ("h3", "nowhere"))
    reason = end.reason or ""
    assert "h3       ssh: connect to host h3 port 22: Connection refused; start sshd there" in reason
    assert "nowhere  ssh: Could not resolve hostname nowhere" in reason
    assert not job.backend_log.exists()


def test_what_is_missing_on_a_host_is_named(two: Cluster, tmp_path: Path) -> None:
    job = two.job(tmp_path, ["true"], ["h1:1", "h2:1"], backend={"mpirun": mpis.find("openmpi4")})
    plan = job.attempt(1).plan.read_text()
    hidden = two.net.start("h2", ["mount", "-t", "tmpfs", "none", str(job.root.parent)])
    assert hidden.wait(10) == 0
    end = end_of(job, two.supervise(job))
    reason = end.reason or ""
    assert f"h2  the job directory {job.root} is not there; put the jobs on a file system that all hosts share" in reason
    assert two.net.run("h2", ["umount", str(job.root.parent)]).returncode == 0
    job.attempt(2).create()
    job.attempt(2).plan.write_text(plan.replace('"attempt": 1', '"attempt": 2').replace('"python": "', '"python": "/no'))
    end = end_of(job, two.supervise(job, 2), 2)
    assert "cannot be run there" in (end.reason or "")


@pytest.mark.soak
def test_a_lost_host_is_the_cause_of_the_end(tmp_path: Path) -> None:
    with cluster(["h1", "h2"], tmp_path) as two:
        job = two.job(tmp_path, python("import time; print('up', flush=True); time.sleep(60)"), ["h1:1", "h2:1"])
        process = two.supervise(job)
        until(lambda: all(job.rank_log(rank).exists() and job.rank_log(rank).read_bytes() for rank in (0, 1)), "the start")
        two.net.lose("h2")
        end = end_of(job, process)
        assert (end.state, end.cause, end.bad_hosts) == ("failed", "lost_node", ("h2",))
        assert "h2" in (end.reason or "")
        assert end.remaining == ("h2: could not be asked",)
