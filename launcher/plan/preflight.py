"""Checks before anything is written or started, so that the user learns of faults before the queue does.

`check_spec` refuses while planning what every rank, mpirun or sbatch would refuse later; `check` tries a finished plan on this
host.
"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from hvdgrab.config import SINGLE_RANK_ORDERS, BalanceConfig
from launcher.errors import PlanError, Problem
from launcher.host.files import find_executable
from launcher.jobdir import variables
from launcher.jobdir.plan import SHORTEST_SECRET, Plan
from launcher.plan.facts import Facts
from launcher.plan.mpi import DECIDED, network_faults, owners_of_foreign
from launcher.spec.model import NetworkSettings, Spec

OWN_OPTIONS = {
    "--array": "use `variants`, each of which is a job", "-a": "use `variants`, each of which is a job",
    "--job-name": "it is how a job is found again", "-J": "it is how a job is found again",
    "--comment": "it is how a job is found again", "--output": "see logs/ in the job directory",
    "-o": "see logs/ in the job directory", "--error": "see logs/ in the job directory", "-e": "see logs/ in the job directory",
    "--chdir": "use `workdir`", "-D": "use `workdir`", "--export": "use `env`", "--wrap": "use `command`",
    "--ntasks": "use `resources.ranks`", "-n": "use `resources.ranks`", "--time": "use `resources.time_limit`",
    "-t": "use `resources.time_limit`", "--requeue": "use `slurm.requeue`", "--no-requeue": "use `slurm.requeue`",
    "--parsable": "it always is", "--test-only": "use `--dry-run`", "-W": "use `hvdgrab-launch wait`",
    "--wait": "use `hvdgrab-launch wait`",
}  # fmt: skip
"""Options of sbatch that ``slurm.extra`` may not hold, and what to use in their place."""


def check_root(spec: Spec, backend: str, root: bool) -> bool:
    """Tell whether the backend must be told that root is meant.

    Raises:
        PlanError: if the spec does not consent to it.
    """
    if not root or backend == "local":
        return False
    if not spec.resources.allow_root:
        raise spec.refuse(
            "resources.allow_root",
            f"{backend} is not started as root without consent: write `resources.allow_root: true`, or use another account",
        )
    return True


def check_spec(spec: Spec, facts: Facts, backend: str, ranks: int) -> None:
    """Check a spec against the number of ranks that train and the way they are started.

    Raises:
        PlanError: naming everything that was found.
    """
    checks = (_grab(spec, ranks), _limits_of_spec(spec, backend, ranks), _mpi(spec, facts, backend), _sbatch(spec, backend))
    faults = [fault for check in checks for fault in check]
    if faults:
        raise PlanError([spec.problem(path, message) for path, message in faults])


def _grab(spec: Spec, ranks: int) -> Iterator[tuple[str, str]]:
    grab = spec.grab
    if grab.order in SINGLE_RANK_ORDERS and ranks > 1:
        yield "grab.order", f"'{grab.order}' orders a single rank, but there are {ranks}: use id-grab or cd-grab"
    if grab.designated_rank >= ranks:
        yield "grab.designated_rank", f"there is no rank {grab.designated_rank}, the ranks are 0 … {ranks - 1}"
    if grab.order == "grab":
        own = {**BalanceConfig().model_dump(), "backend": "reference" if grab.balance.backend == "reference" else "auto"}
        for name in [name for name, value in grab.balance if value != own[name]]:
            yield f"grab.balance.{name}", "order 'grab' balances no pairs: leave it out, or choose id-grab or recursive"
    size = grab.communication.node_size
    if size is not None and size > ranks:
        yield "grab.communication.node_size", f"{size} are more than the {ranks} ranks that the job has"


def _limits_of_spec(spec: Spec, backend: str, ranks: int) -> Iterator[tuple[str, str]]:
    limit, before = spec.resources.time_limit, spec.checkpoint.before_limit
    if limit is not None and spec.checkpoint.signal is not None and before >= limit:
        yield "checkpoint.before_limit", "is not shorter than resources.time_limit: the signal would come at the start"
    if spec.restart.time_limit != 0 and limit is None and backend not in ("slurm", "srun"):
        yield "restart.time_limit", "there is no resources.time_limit after which the job could be started again"
    fewest = spec.restart.min_ranks
    if fewest is not None and fewest > ranks:
        yield "restart.min_ranks", f"{fewest} are more than the {ranks} ranks that the job has"


def _mpi(spec: Spec, facts: Facts, backend: str) -> Iterator[tuple[str, str]]:
    """Check settings against the MPI at hand."""
    if facts.mpirun is None or backend not in ("mpirun", "horovodrun"):
        return
    yield from network_faults(spec.network, facts.mpirun)
    for place, word in enumerate(spec.backend.extra_args):
        path, option = f"backend.extra_args.{place}", word.partition("=")[0]
        if (setting := DECIDED.get(option)) is not None:
            yield path, f"{option} is decided by {setting}: set that instead"
        elif owners := owners_of_foreign(option, facts.mpirun):
            owner = " or ".join(owners)
            yield path, f"{option} is an option of {owner}, and {facts.mpirun.path} is {facts.mpirun.label}"


def _sbatch(spec: Spec, backend: str) -> Iterator[tuple[str, str]]:
    """Check the user's options of sbatch, which the script holds behind ``#SBATCH``."""
    for place, option in enumerate(spec.slurm.extra if spec.slurm is not None and backend == "slurm" else ()):
        path, name = f"slurm.extra.{place}", option.partition("=")[0]
        if name in OWN_OPTIONS:
            yield path, f"{name} is set by the launcher: {OWN_OPTIONS[name]}"
        elif '"' in option or "\\" in option:
            yield path, f"{option!r} holds a quote or a backslash, which sbatch reads in ways of its own: leave it out"


FILES_OF_MPIRUN = 24
"""Open files of an mpirun without ranks, and its own margin."""
FILES_OF_RANK = 5
"""Open files that mpirun needs for each rank on this host: three pipes, and what they are copied to and from."""
_OPTIONS_WITH_VALUE = frozenset(["-W", "-X", "--check-hash-based-pycs"])
"""Options of the Python interpreter that the next argument belongs to."""

Fault = tuple[str, str]
"""Dotted path of a setting, and what is wrong with it."""


def check(plan: Plan, inherited: Mapping[str, str], spec: Spec | None = None) -> None:
    """Check working directory, program, files, limits and secrets of a plan.

    Args:
        plan: what would be run.
        inherited: the submitter's environment.
        spec: what it was made from; errors then name file and line.

    Raises:
        PlanError: naming everything that was found.
    """
    faults = [*_secrets(plan, inherited), *_places(plan, inherited), *_reaching(plan, inherited), *_limits(plan)]
    faults += _job_directory(plan)
    faults += _wires(plan, spec.network) if spec is not None else []
    if faults:
        raise PlanError([spec.problem(*fault) if spec else Problem("", None, *fault) for fault in faults])


def _secrets(plan: Plan, inherited: Mapping[str, str]) -> Iterator[Fault]:
    for name in plan.job.secrets:
        value = inherited.get(name, "")
        if not value:
            state = "empty" if name in inherited else "not set"
            yield "secrets", f"{name} is {state} in this environment; `export {name}=...` before starting the job"
        elif len(value) < SHORTEST_SECRET:
            yield (
                "secrets",
                f"the value of {name} is shorter than {SHORTEST_SECRET} characters and cannot be hidden in the output",
            )
        elif name in plan.launch.scrubbed:
            yield "secrets", f"{name} is a variable of an outer MPI job or scheduler and is never passed on"
        else:
            yield from _written_out(plan, name, value)


def _written_out(plan: Plan, name: str, value: str) -> Iterator[Fault]:
    places = {
        "command": plan.job.command,
        "env": tuple(plan.job.env.values()),
        "backend.extra_args": plan.launch.extra_args,
        "resources.ssh": plan.placement.ssh_command,
        "network": (*plan.launch.network_args, *_of_network(plan)),
        "slurm": tuple(_texts(vars(plan.slurm))) if plan.slurm else (),
        "workdir": (plan.job.workdir,),
        "grab": (plan.launch.environment.get(variables.GRAB, ""),),
        "name": (plan.job.dir,),
    }
    for place, texts in places.items():
        if any(value in text for text in texts):
            where = f"the value of {name} stands in {_named(place)}, where others can read it"
            yield "secrets", f"{where}; let the program read ${name} itself"


def _of_network(plan: Plan) -> list[str]:
    prefixes = ("NCCL_", "UCX_", "HOROVOD_", "FI_", "OMPI_")
    return [value for name, value in plan.launch.environment.items() if name.startswith(prefixes)]


def _named(place: str) -> str:
    return "the job directory's name" if place == "name" else place


def _texts(value: object) -> Iterator[str]:
    """Yield all texts in plain data; a section is two levels deep at most."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for below in value.values():
            yield from _texts(below)
    elif isinstance(value, list | tuple):
        for below in value:
            yield from _texts(below)


def _job_directory(plan: Plan) -> Iterator[Fault]:
    """Check that the job directory can be made; nothing is made."""
    above = next(path for path in Path(plan.job.dir).parents if os.path.lexists(path))
    if not above.is_dir():
        yield "", f"the job directory {plan.job.dir} cannot be made: {above} is not a directory"
    elif not os.access(above, os.W_OK | os.X_OK):
        yield "", f"the job directory {plan.job.dir} cannot be made: {above} is not writable; choose another with --jobs-dir"


def _places(plan: Plan, inherited: Mapping[str, str]) -> Iterator[Fault]:
    if not os.path.isdir(plan.job.workdir):  # noqa: PTH112 - a path that is too long is no directory either
        yield "workdir", f"{plan.job.workdir} is not a directory"
        return
    if not os.access(plan.job.workdir, os.X_OK):
        yield "workdir", f"{plan.job.workdir} cannot be entered: no permission"
        return
    if _found(plan, inherited, plan.job.command[0]) is None:
        yield "command", f"{plan.job.command[0]!r} is not an executable program on PATH or in {plan.job.workdir}"
    script = script_of(plan.job.command, plan.launch.python)
    if script is not None and not os.path.isfile(os.path.join(plan.job.workdir, script)):  # noqa: PTH113, PTH118 - surrogates
        yield "command", f"there is no file {script!r} in {plan.job.workdir}; paths start from `workdir`"


def _found(plan: Plan, inherited: Mapping[str, str], program: str) -> bytes | None:
    merged = {**inherited, **plan.launch.environment, **plan.job.env}
    path = {b"PATH": os.fsencode(merged["PATH"])} if "PATH" in merged else {}
    return find_executable(program.encode("utf-8", "surrogateescape"), path, plan.job.workdir)


def script_of(command: tuple[str, ...], python: str) -> str | None:
    """Find the script that a command runs with the launcher's own interpreter; None for modules, code and other programs."""
    if command[0] != python:
        return None
    words = iter(command[1:])
    for word in words:
        if word in _OPTIONS_WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return word
        elif word == "-" or word.startswith(("-m", "-c")) or (not word.startswith("--") and word[-1:] in ("m", "c")):
            return None
    return None


def _reaching(plan: Plan, inherited: Mapping[str, str]) -> Iterator[Fault]:
    path = {b"PATH": os.fsencode(inherited.get("PATH", os.defpath))}
    if plan.launch.backend == "slurm" and find_executable(b"sbatch", path, plan.job.workdir) is None:
        yield "backend.kind", "there is no sbatch on PATH: this is not a host of a SLURM cluster, or its module is not loaded"
    elsewhere = [host.name for host in plan.placement.hosts if host.name not in ("localhost", plan.placement.host)]
    if elsewhere and find_executable(b"ssh", path, plan.job.workdir) is None:
        yield "resources.hosts", f"there is no ssh on PATH by which {elsewhere[0]} could be reached"
    identity = plan.placement.ssh_command.index("-i") + 1 if "-i" in plan.placement.ssh_command else None
    if identity is not None and not os.access(os.path.expanduser(plan.placement.ssh_command[identity]), os.R_OK):  # noqa: PTH111
        yield "resources.ssh.identity", f"{plan.placement.ssh_command[identity]} cannot be read"


def _wires(plan: Plan, network: NetworkSettings) -> list[Fault]:
    """Find interfaces and devices that this host lacks: without any of the named ones Open MPI 5 ends silently."""
    if plan.launch.backend in ("slurm", "srun"):
        return []
    interfaces = {name for _, name in socket.if_nameindex()}
    found = []
    for name in network.interface.split(",") if network.interface else ():
        if "/" not in name and name not in interfaces:
            found.append(("network.interface", f"this host has no interface {name}; it has {', '.join(sorted(interfaces))}"))
    here = not plan.placement.hosts or any(host.name in ("localhost", plan.placement.host) for host in plan.placement.hosts)
    devices = interfaces | {path.name for path in Path("/sys/class/infiniband").glob("*")} | {"all"}
    for name in network.ucx_devices.split(",") if network.ucx_devices and here else ():
        if name.partition(":")[0] not in devices:
            found.append(("network.ucx_devices", f"this host has no device {name}; it has {', '.join(sorted(devices))}"))
    return found


def _limits(plan: Plan) -> Iterator[Fault]:
    if plan.launch.backend not in ("mpirun", "horovodrun"):
        return
    hosts, here = plan.placement.hosts, ("localhost", plan.placement.host)
    local = sum(host.slots for host in hosts if host.name in here) if hosts else plan.placement.ranks
    needed = FILES_OF_MPIRUN + FILES_OF_RANK * local
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed < needed:
        fix = f"`ulimit -n {needed}` before starting the job" if most >= needed else f"the hard limit is {most}: use fewer ranks"
        yield "resources.ranks", f"{local} ranks on this host need about {needed} open files, and {allowed} are allowed; {fix}"
