"""What the launcher itself needs: its daemon, and the hosts of a job."""

from __future__ import annotations

import time

from launcher.cli.doctor.checks import Check
from launcher.errors import LauncherError
from launcher.host.text import counted
from launcher.jobdir.words import FINAL


def daemon_check() -> Check:
    """The daemon's state.  None is started: it comes with the first job."""
    from launcher.daemon.http.client import Client

    try:
        status = Client.connect(start=False).status()
    except LauncherError as error:
        return _silent(str(error))
    jobs = sum(count for state, count in status.jobs.items() if state not in FINAL)
    age = time.strftime("%Y-%m-%d %H:%M", time.localtime(status.started))
    found = f"runs since {age} on {status.host} (pid {status.pid}), {counted(jobs, 'job')} under way"
    if status.problem:
        return Check("daemon", "note", f"{found}; {status.problem}", f"its log: {status.log}")
    return Check("daemon", "ok", found)


def _silent(message: str) -> Check:
    if "no daemon runs" in message:
        return Check("daemon", "ok", "does not run; the first job starts it")
    return Check("daemon", "note", message, "`hvdgrab-launch daemon status` says more; `--foreground` runs a job without it")
