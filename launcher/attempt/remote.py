"""Other hosts of a job: check that ranks can be started there, and end all that is left there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.attempt.host_check import MISSING, SAME, token_of
from launcher.host import ssh
from launcher.host.program import Answer
from launcher.jobdir.paths import AttemptPaths
from launcher.jobdir.plan import Plan

CHECK_SECONDS = 20.0
"""Seconds for each host's answer before the start."""
SWEEP_SECONDS = 30.0


@dataclass(frozen=True)
class Fault:
    """What is wrong with one host."""

    host: str
    what: str
    remedy: str
    unreachable: bool = False
    """Whether the host itself seems to be away."""


@dataclass(frozen=True)
class Hosts:
    """What the hosts of a plan answered."""

    faults: tuple[Fault, ...] = ()
    names: dict[str, str] = field(default_factory=dict)
    """How each host names itself, by its name in the spec."""

    def table(self) -> str:
        """The faults for people, a line a host."""
        width = max(len(fault.host) for fault in self.faults)
        return "\n".join(f"{fault.host.ljust(width)}  {fault.what}; {fault.remedy}" for fault in self.faults)


def other_hosts(plan: Plan) -> list[str]:
    """The plan's hosts that are reached by ssh."""
    return [host.name for host in plan.placement.hosts if not ssh.is_here(host.name)]


def check(plan: Plan, attempt: AttemptPaths, interrupted: Callable[[], bool]) -> Hosts:
    """Ask every other host at once whether ranks can be started there."""
    words = [plan.job.dir, str(attempt.number), token_of(attempt), plan.job.workdir]
    command = _python(plan, "launcher.attempt.host_check", words)
    hosts = other_hosts(plan)
    answers = ssh.ask(plan.placement.ssh_command, hosts, command, CHECK_SECONDS, interrupted)
    faults, names = [], {}
    for host, answer in zip(hosts, answers, strict=True):
        data = _data(answer)
        if data is None:
            faults.append(_no_answer(host, answer, plan))
            continue
        names[host] = str(data.get("host"))
        faults += _wrong(host, data, plan)
    return Hosts(tuple(faults), names)


def _python(plan: Plan, module: str, words: Sequence[str]) -> list[str]:
    path = plan.launch.environment.get("PYTHONPATH")
    return ["env", "LC_ALL=C", *([f"PYTHONPATH={path}"] if path else []), plan.launch.python, "-m", module, *words]


def _data(answer: Answer) -> dict[str, Any] | None:
    """The last line that is an object: a login there may print what it likes before."""
    for line in reversed(answer.stdout.splitlines()):
        try:
            data = json.loads(line)
        except ValueError:
            continue
        if isinstance(data, dict):
            return data
    return None


def _no_answer(host: str, answer: Answer, plan: Plan) -> Fault:
    said = answer.complaint if answer.stderr.strip() else ""
    if answer.code is None:
        what = f"{plan.placement.ssh_command[0]} {said}" if answer.missing else said
        return Fault(host, what, f"try `ssh {host} true`, and leave the host out while it is down", unreachable=True)
    if answer.code == ssh.EXIT_NO_CONNECTION:
        return _ssh_failed(host, said)
    if answer.code in (126, 127) or "No such file" in said:
        return Fault(host, f"{plan.launch.python} cannot be run there ({said})", "install the environment at the same path there")
    if "No module named" in said:
        return Fault(host, f"hvdgrab is not installed there ({said})", f"install it for {plan.launch.python} on that host")
    return Fault(host, f"the check ended with {answer.code}: {said or 'no message'}", f"try `ssh {host} {plan.launch.python} -V`")


_SSH_REMEDIES = {
    "Permission denied": "let a key of yours in there (`ssh-copy-id`), or name it under resources.ssh.identity",
    "Host key verification failed": "log in once by hand to accept the host's key",
    "Could not resolve": "write the name as this host can resolve it",
    "Connection refused": "start sshd there, or write its port under resources.ssh.port",
}


def _ssh_failed(host: str, said: str) -> Fault:
    for words, remedy in _SSH_REMEDIES.items():
        if words in said:
            return Fault(host, said, remedy, unreachable=words == "Connection refused")
    return Fault(host, said or "ssh failed without a word", f"try `ssh {host} true`", unreachable=True)


def _wrong(host: str, data: dict[str, Any], plan: Plan) -> list[Fault]:
    faults = []
    if data.get("job_dir") != SAME:
        seen = "is not there" if data.get("job_dir") == MISSING else "is another directory there"
        remedy = "put the jobs on a file system that all hosts share (--jobs-dir)"
        faults.append(Fault(host, f"the job directory {plan.job.dir} {seen}", remedy))
    elif not data.get("writable"):
        faults.append(Fault(host, f"the job directory {plan.job.dir} cannot be written there", "make it writable for this user"))
    if not data.get("workdir"):
        missing = f"the working directory {plan.job.workdir} is not there"
        faults.append(Fault(host, missing, "share it, or write another `workdir`"))
    if data.get("remaining"):
        left = ", ".join(str(pid) for pid in data["remaining"])
        faults.append(Fault(host, f"processes of an earlier attempt cannot be ended: {left}", "end them by hand"))
    return faults


def sweep(plan: Plan, attempt: AttemptPaths, grace: float) -> tuple[list[str], list[str]]:
    """End what is left of the attempt on the other hosts.

    Returns:
        What remains, ``host:pid``; and the hosts that could not be asked.
    """
    words = [attempt.job.id, str(grace), str(attempt.number)]
    hosts = other_hosts(plan)
    answers = ssh.ask(plan.placement.ssh_command, hosts, _python(plan, "launcher.attempt.sweep", words), SWEEP_SECONDS + grace)
    remaining, unknown = [], []
    for host, answer in zip(hosts, answers, strict=True):
        data = _data(answer)
        if data is None:
            unknown.append(host)
        else:
            remaining += [f"{host}:{pid}" for pid in data.get("remaining", [])]
    return remaining, unknown
