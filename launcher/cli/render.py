"""Texts that the commands print: pure functions from data to lines."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from launcher.cli.terminal import last_lines, printable
from launcher.host.text import counted, duration
from launcher.jobdir.logs import end_of, of_last_attempt
from launcher.jobdir.marks import RankMark
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.plan import Plan
from launcher.jobdir.words import FAILED
from launcher.plan.mpi import NAMES, label
from launcher.slurm.script import script

if TYPE_CHECKING:
    from launcher.cli.foreground import Finished

HOSTS_SHOWN = 4


def placement_text(plan: Plan) -> str:
    """Ranks, backend, hosts or cores, binding and threads in one line."""
    placement, launch = plan.placement, plan.launch
    version = f" ({label(launch.mpi_flavour, launch.mpi_version)})" if launch.mpi_flavour in NAMES else ""
    server = ", one of them the order server" if placement.server_ranks else ""
    shared = ", oversubscribed: they take turns" if placement.oversubscribed else ""
    return (
        f"{counted(placement.ranks, 'rank')}{server} by {launch.backend}{version}{_place(plan)}{shared}; "
        f"binding {placement.binding}, {counted(placement.threads_per_rank, 'thread')} a rank"
    )


def _place(plan: Plan) -> str:
    hosts = plan.placement.hosts
    if hosts:
        names = ", ".join(f"{host.name} ({host.slots})" for host in hosts[:HOSTS_SHOWN])
        return f" on {names}" + (f" and {len(hosts) - HOSTS_SHOWN} more hosts" if len(hosts) > HOSTS_SHOWN else "")
    if plan.launch.backend in ("slurm", "srun"):
        return " on the nodes that SLURM gives" if plan.launch.backend == "slurm" else " in this allocation"
    return f" on {counted(plan.placement.cores, 'core')}"


def plan_text(plan: Plan, spec_text: str) -> str:
    """The whole plan for people: exact argv, environment, files."""
    parts = [
        f"job        {plan.job.id}",
        f"placement  {placement_text(plan)}",
        f"backend    {plan.launch.backend}: {plan.launch.reason}",
        f"workdir    {_quoted(plan.job.workdir)}",
        _section("starts (in the job directory)", [_joined(plan.argv)]),
        _section("the batch script", script(plan, plan.job.attempt).splitlines() if plan.launch.backend == "slurm" else []),
        _section("each rank runs", [_joined(plan.job.command)]),
        _section("variables set", [f"{name}={_quoted(value)}" for name, value in sorted(plan.launch.environment.items())]),
        _section("variables of the ranks alone", [f"{name}={_quoted(value)}" for name, value in plan.job.env.items()]),
        _section("secrets (inherited, hidden in logs)", list(plan.job.secrets)),
        _section("inherited variables removed", list(plan.launch.scrubbed)),
        _section("files written", list(plan.files)),
        _section("spec.yaml", spec_text.rstrip().split("\n")),
    ]
    return "\n".join(part for part in parts if part)


def _section(title: str, lines: list[str]) -> str:
    return "\n".join([f"{title}:", *(f"  {printable(line)}" for line in lines)]) if lines else ""


def _quoted(text: str) -> str:
    """As a shell would need it; characters that a terminal cannot show are written as bash's $'...'."""
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + text.encode("utf-8", "surrogateescape").decode("latin-1").translate(_ESCAPES) + "'"


_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 256))} | {39: "\\'", 92: "\\\\", 10: "\\n", 9: "\\t"}


def _joined(argv: tuple[str, ...]) -> str:
    return " ".join(_quoted(argument) for argument in argv)


def result_text(finished: Finished) -> str:
    """The end of a job; where it failed, the first failing rank's last lines come first."""
    outcome, plan = finished.outcome, finished.plan
    lines = failure_lines(finished.job, outcome.first_failing) if outcome.state == FAILED else []
    lines.append(f"{plan.job.id}: {outcome.state} after {duration(finished.seconds)}, exit code {outcome.exit_code}")
    if outcome.reason:
        lines.append(f"reason: {printable(outcome.reason)}")
    lines.append(f"job directory: {finished.job.root}")
    if finished.job.report.exists():
        lines.append(f"report: {finished.job.report}")
    return "\n".join(lines)


def failure_lines(job: JobPaths, mark: RankMark | None) -> list[str]:
    """The last lines of what failed first, in the last attempt: of the rank, or of the backend where no rank did."""
    path = job.backend_log if mark is None else job.rank_log(mark.rank)
    title = "what started the ranks said"
    if mark is not None:
        title = f"the last lines of rank {mark.rank}" if mark.stopped else f"rank {mark.rank} failed first; its last lines"
    own = last_lines(of_last_attempt(end_of(path)))
    if mark is not None and not own:
        return [f"--- rank {mark.rank} {'' if mark.stopped else 'failed first; it '}has printed nothing ({path})", "---"]
    return [f"--- {title} ({path}):", *own, "---"] if own else []


def result_json(finished: Finished) -> dict[str, Any]:
    """The end of a job for programs."""
    outcome, plan = finished.outcome, finished.plan
    return {
        "id": plan.job.id,
        "name": plan.job.name,
        "state": outcome.state,
        "exit_code": outcome.exit_code,
        "dir": plan.job.dir,
        "reason": outcome.reason,
        "seconds": round(finished.seconds, 3),
        "ranks": plan.placement.ranks,
        "backend": plan.launch.backend,
        "first_failing_rank": outcome.first_failing.rank if outcome.first_failing else None,
        "report": str(finished.job.report) if finished.job.report.exists() else None,
    }
