from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from launcher.attempt.sweep import marked
from launcher.daemon import dirs, spawn
from launcher.daemon.dirs import Dirs
from launcher.daemon.http.client import Client
from launcher.errors import LauncherError, UnreachableError, UsageError
from launcher.host.processes import alive
from launcher.jobdir import paths
from tests.launcher.daemon.real import RealDaemon, run_daemon, until
from tests.real import ROOT, need

STAY = "import sys, time; print('up', flush=True); time.sleep(float(sys.argv[1]))"


def test_running_jobs_survive_the_daemons_death_and_are_adopted(daemon: RealDaemon) -> None:
    daemon.start()
    job = daemon.submit("stay", STAY + "; sys.exit(6)", "2.5")
    gone = daemon.submit("brief", "import time, sys; time.sleep(0.5); sys.exit(3)")
    until(lambda: daemon.client().job(job).state == "running", "the start")
    first = json.loads((daemon.paths(job).attempt(1).claim).read_text())
    daemon.kill()
    assert alive(first["pid"], first["pid_started"])
    until(lambda: daemon.paths(gone).attempt(1).end.exists(), "the end while no daemon lived")
    daemon.start()
    assert daemon.client().job(job).state in ("running", "failed")
    view = daemon.wait(job)
    assert (view.state, view.exit_code, view.attempt) == ("failed", 6, 1)
    assert (daemon.wait(gone).exit_code, daemon.wait(gone).attempt) == (3, 1)
    assert daemon.paths(job).rank_log(0).read_bytes().count(b"up") == 1


def test_stopping_the_daemon_leaves_jobs_alone_and_cancel_ends_all_of_one(daemon: RealDaemon) -> None:
    with pytest.raises(UnreachableError, match="no daemon runs on this host"):
        daemon.client(start=False)
    assert spawn.stop(daemon.dirs) is False
    job = daemon.submit("stay", "import os, time; os.fork(); " + STAY, "600")
    until(lambda: daemon.client().job(job).state == "running", "the start")
    assert spawn.stop(daemon.dirs) is True
    assert not daemon.dirs.socket.exists()
    assert len(marked(job)) >= 3
    client = daemon.client()
    assert client.status().version
    client.cancel(job)
    view = daemon.wait(job)
    assert (view.state, view.exit_code) == ("cancelled", 130)
    assert marked(job) == []


def test_of_two_daemons_started_at_once_one_wins_and_the_other_says_so(daemon: RealDaemon) -> None:
    both = [run_daemon(), run_daemon()]
    until(lambda: any(process.poll() is not None for process in both), "the end of one")
    (loser,) = [process for process in both if process.poll() is not None]
    (winner,) = [process for process in both if process is not loser]
    assert loser.returncode == 3
    assert "a daemon runs already on this host: process" in loser.communicate()[1]
    until(daemon.dirs.socket.exists, "the socket")
    assert daemon.client().status().pid == winner.pid
    assert spawn.start(daemon.dirs) > 0, "whoever wants a daemon has one"
    assert daemon.client().status().pid == winner.pid
    winner.send_signal(signal.SIGTERM)
    winner.communicate(timeout=30)
    assert winner.returncode == 0


@pytest.mark.soak
def test_a_daemon_that_listens_in_another_runtime_directory_is_named_by_all(daemon: RealDaemon) -> None:
    owner = daemon.start()
    environment = {**os.environ, "HVDGRAB_RUNTIME": str(daemon.folder / "other")}
    status, start = (
        subprocess.run(
            [sys.executable, "-m", "launcher", "daemon", word],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        for word in ("status", "start")
    )
    assert (status.returncode, start.returncode) == (3, 3)
    assert f"running  process {owner} on {os.uname().nodename}, which does not answer here" in status.stdout
    assert f"the daemon, process {owner}, runs, but cannot be reached" in status.stderr
    first, last = start.stderr.splitlines()
    assert f"process {owner} holds the record, and may have lost its socket: waiting 15 s for it" in first
    assert f"`kill {owner}`; jobs go on" in last
    assert daemon.client().status().pid == owner


def test_nobody_else_can_reach_the_socket(daemon: RealDaemon) -> None:
    daemon.start()
    for path, mode in (
        (daemon.dirs.runtime, 0o700),
        (daemon.dirs.socket, 0o600),
        (daemon.dirs.record, 0o600),
        (daemon.dirs.state, 0o700),
    ):
        assert stat.S_IMODE(path.stat().st_mode) == mode, path
    need("the right to become another user", os.geteuid() == 0)
    program = (
        "import os, socket, sys; os.setgid(65534); os.setuid(65534); s = socket.socket(socket.AF_UNIX)\n"
        "try: s.connect(sys.argv[1])\nexcept PermissionError: sys.exit(9)\n"
        "s.settimeout(30); print(s.recv(4096).decode())"
    )
    command = [sys.executable, "-c", program, str(daemon.dirs.socket)]
    assert subprocess.run(command, check=False, cwd="/").returncode == 9
    for path in (daemon.folder, daemon.dirs.runtime, daemon.dirs.socket):
        path.chmod(0o777)
    answer = subprocess.run(command, check=True, cwd="/", capture_output=True, text=True).stdout
    assert answer.startswith("HTTP/1.1 403"), "the kernel's word on who asks counts, whatever the rights of the file"
    with pytest.raises(UnreachableError, match="is open to other users: `chmod 700"):
        daemon.client(start=False)
    daemon.dirs.runtime.chmod(0o700)


def test_a_long_wait_ends_with_the_job_and_does_not_hold_up_others(daemon: RealDaemon) -> None:
    daemon.start()
    job = daemon.submit("brief", "import time; time.sleep(1)")
    ended = []
    waiting = [threading.Thread(target=lambda: ended.append(daemon.wait(job).state)) for _ in range(20)]
    for thread in waiting:
        thread.start()
    assert daemon.client().wait(job, 0.0).final is False
    assert daemon.client().status().host
    for thread in waiting:
        thread.join(60)
    assert ended == ["succeeded"] * 20


def test_a_long_wait_does_not_hold_up_the_end_of_the_daemon(daemon: RealDaemon) -> None:
    daemon.start()
    job = daemon.submit("stay", STAY, "600")
    said: list[str] = []

    def wait() -> None:
        try:
            Client.connect(start=False, dirs=daemon.dirs).wait(job)
        except UnreachableError as error:
            said.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: daemon.client().job(job).state == "running", "the start")
    assert spawn.stop(daemon.dirs, 20.0) is True
    waiting.join(20)
    assert said and "daemon" in said[0]
    assert "ERROR" not in daemon.dirs.log.read_text()


def test_what_cannot_be_asked_is_refused_in_words(daemon: RealDaemon) -> None:
    daemon.start()
    client = daemon.client()
    for ask in (client.job, client.cancel, client.events, lambda job: client.retry(job, {})):
        with pytest.raises(UsageError, match="no job 'none-20260101-000000-abcd' in the record"):
            ask("none-20260101-000000-abcd")
    with pytest.raises(UsageError, match=r"path\.id"):
        client.job("$(id)")
    submission = daemon.write("odd", "pass")
    view = client.submit(submission)
    assert client.submit(submission).submitted == view.submitted
    assert [job.id for job in client.jobs(name="odd", limit=1)] == [view.id]
    assert client.jobs(state=["failed"]) == []
    assert [job.id for word in ("od", view.id[:-2], view.id) for job in client.jobs(beginning=word)] == [view.id] * 3
    assert client.jobs(beginning="ood") == []


def test_a_yaml_file_in_the_spool_becomes_a_job_and_a_bad_one_is_moved_aside(
    daemon: RealDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HVDGRAB_JOBS", str(daemon.folder / "jobs"))
    daemon.start()
    spool = daemon.dirs.spool
    elsewhere = daemon.folder / "secret.yaml"
    elsewhere.write_text("command: [python, -c, pass]\n")
    (spool / "link.yaml").symlink_to(elsewhere)
    (spool / "bad.yaml").write_text("comand: [python]\n")
    (spool / ".hidden.yaml").write_text("command: [python]\n")
    with (spool / "good.yaml").open("w") as file:
        file.write("name: spooled\nresources: {ranks: 1}\n")
        file.flush()
        threading.Event().wait(0.7)
        assert daemon.client().jobs() == [], "a file that is being written is waited for"
        file.write("command: [python, -c, 'raise SystemExit(4)']\n")
    until(lambda: daemon.client().jobs(), "the job")
    (job,) = daemon.client().jobs()
    daemon.ids.append(job.id)
    assert daemon.wait(job.id).exit_code == 4
    assert (spool / "done" / "good.yaml").exists()
    assert "comand" in (spool / "refused" / "bad.yaml.error").read_text()
    assert "links are not followed" in (spool / "refused" / "link.yaml.error").read_text()
    assert (spool / "refused" / "link.yaml").is_symlink()
    assert (spool / ".hidden.yaml").exists()
    assert elsewhere.exists()


def test_the_daemon_keeps_no_secret_of_whoever_started_it(daemon: RealDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "geheim")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    pid = daemon.start()
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"geheim" not in environment
    assert b"SLURM_" not in environment
    assert os.readlink(f"/proc/{pid}/cwd") == "/"  # noqa: PTH115
    assert os.getsid(pid) != os.getsid(0)


def test_jobs_get_the_umask_of_their_user_and_the_daemon_keeps_its_own(daemon: RealDaemon) -> None:
    before = os.umask(0o027)
    try:
        pid = daemon.start()
    finally:
        os.umask(before)
    job = daemon.submit("umask", "import os, sys; sys.exit(os.umask(0))")
    assert "Umask:\t0077" in Path(f"/proc/{pid}/status").read_text()
    assert daemon.wait(job).exit_code == 0o027


def test_directories_that_cannot_serve_are_named(tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(tmp_path)
    with pytest.raises(LauncherError, match=r"the path of the socket is \d+ bytes long.*set HVDGRAB_RUNTIME"):
        Dirs(folder / "s", folder / ("x" * 120)).make()
    open_ = folder / "open"
    open_.mkdir(mode=0o755)
    with tempfile.TemporaryDirectory(prefix="hvd-") as short:
        (Path(short) / "link").symlink_to(open_)
        with pytest.raises(LauncherError, match="is not a directory"):
            Dirs(folder / "s", Path(short) / "link").make()
    with pytest.raises(LauncherError, match="is open to other users"):
        paths.check_private(open_)
    monkeypatch.setattr(dirs, "is_network", lambda path: True)
    with pytest.raises(LauncherError, match="on a network file system"):
        dirs.check_socket_path(Path("/tmp/x/daemon.sock"))
    (folder / "file").write_text("")
    with pytest.raises(LauncherError, match="cannot be made: Not a directory"):
        paths.make_private(folder / "file" / "below")


def test_an_answer_that_never_comes_is_reported_in_time(daemon: RealDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.dirs.make()
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(daemon.dirs.socket))
        mute.listen(5)
        client = Client.connect(start=False, dirs=daemon.dirs)
        monkeypatch.setattr("launcher.daemon.http.client.ANSWER_SECONDS", 0.3)
        with pytest.raises(UnreachableError, match="has not answered for"):
            client._ask("GET", "/v1/daemon", seconds=0.3)
    daemon.dirs.socket.unlink()


def test_importing_the_client_is_cheap() -> None:
    heavy = {"pydantic", "fastapi", "yaml", "httpx", "rich"}
    program = f"import sys, launcher.daemon.http.client; print(*sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


def test_a_removed_runtime_directory_does_not_cut_the_daemon_off(daemon: RealDaemon) -> None:
    pid = daemon.start()
    shutil.rmtree(daemon.dirs.runtime)
    assert daemon.start() == pid, "whoever wants a daemon waits until it can be reached again"
    assert daemon.client(start=False).status().pid == pid
    assert stat.S_IMODE(daemon.dirs.socket.stat().st_mode) == 0o600
    assert daemon.wait(daemon.submit("brief", "raise SystemExit(5)")).exit_code == 5
