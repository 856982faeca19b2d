"""The command: which checks are made, several at a time, and the exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from launcher.bootstrap import probes
from launcher.cli.doctor import host, mpi, packages
from launcher.cli.doctor.checks import Check, Report, print_report
from launcher.errors import EXIT_FAILED, EXIT_OK, LauncherError
from launcher.spec.model import Spec

PROBE_SECONDS = 90.0


def main(file: str | None = None, overrides: Sequence[str] = (), *, slurm: bool = False, as_json: bool = False) -> int:
    """Print the answer.

    Args:
        file: a job whose plan and hosts are tried as well.
        overrides: ``a.b=c`` texts for it.
        slurm: whether SLURM is asked; it is in any case if the job goes there.
        as_json: one JSON document instead of the table.

    Returns:
        The exit code: 0 if all that training needs is there, else 1.
    """
    specs = _load(file, overrides)
    report = collect()
    goes_there = any(spec.backend.kind == "slurm" or spec.slurm is not None for spec in specs)
    further = [*_job(specs), *(_slurm(specs[0] if specs else None) if slurm or goes_there else [])]
    report = Report((*report.checks, *further))
    print_report(report, as_json=as_json)
    return EXIT_OK if report.ok else EXIT_FAILED


def _load(file: str | None, overrides: Sequence[str]) -> list[Spec]:
    if file is None:
        return []
    from launcher.plan.prepare import load

    return load(file, overrides)


def _job(specs: Sequence[Spec]) -> list[Check]:
    if not specs:
        return []
    from launcher.cli.doctor.job import checks

    return checks(specs)


def _slurm(spec: Spec | None) -> list[Check]:
    from launcher.cli.doctor import slurm

    try:
        return slurm.checks(spec)
    except LauncherError as error:
        return [Check("SLURM", "missing", str(error), "`sinfo` by itself shows more")]


def collect(python: str = sys.executable, environ: Mapping[str, str] | None = None) -> Report:
    """Look at everything; takes about as long as importing Horovod three times.

    Args:
        python: the interpreter that jobs use.
        environ: their environment; by default that of this process.
    """
    around = mpi.with_own_programs(os.environ if environ is None else environ, python)
    with ThreadPoolExecutor(3) as pool:
        running = {name: pool.submit(probes.run_probe, name, python, around, PROBE_SECONDS) for name in probes.PROGRAMS}
        asked = pool.submit(mpi.find_builds, around)
        driver = pool.submit(host.ask_driver, around)
        compiler = pool.submit(packages.compiler_check, around)
        answers = {name: future.result() for name, future in running.items()}
    builds, ports = asked.result(), host.ports()
    return Report((
        host.python_check(), host.core_check(), host.binding_check(around), *host.user_checks(), host.shm_check(),
        *host.limit_checks(infiniband=any(port.active for port in ports)),
        host.card_check(host.cards()), *host.infiniband_checks(ports, builds),
        *host.gpu_checks(driver.result(), answers["torch"], answers["horovod"]),
        *(judge(answers[name]) for name, judge in packages.JUDGES.items()),
        *_mpi(builds, answers),
        packages.horovodrun_check(around), packages.wrapper_check(around), compiler.result(),
        *(packages.extra_check(name, answers[name]) for name in packages.EXTRAS),
        host.daemon_check(),
    ))  # fmt: skip


def _mpi(builds: list[mpi.Build], answers: Mapping[str, probes.Probe]) -> list[Check]:
    libraries = (answers["together"].answer or {}).get("libmpi") or [None]
    banner = (answers["mpi4py"].answer or {}).get("library")
    return [mpi.mpirun_check(builds), *mpi.pair_check(builds, libraries[0], banner), *mpi.others_check(builds)]
