"""All looks together, several at a time."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from launcher.bootstrap import probes
from launcher.cli.doctor import building, gpus, host, mpi, network, packages, services
from launcher.cli.doctor.checks import Check, Report

PROBE_SECONDS = 90.0


def collect(python: str = sys.executable, environ: Mapping[str, str] | None = None) -> Report:
    """Look at everything; takes about as long as importing Horovod three times.

    Args:
        python: the interpreter that jobs use.
        environ: their environment; by default that of this process.
    """
    around = mpi.with_own_programs(os.environ if environ is None else environ, python)
    with ThreadPoolExecutor(3) as pool:
        running = {name: pool.submit(probes.run_probe, name, python, around, PROBE_SECONDS) for name in probes.PROGRAMS}
        builds = pool.submit(mpi.find_builds, around)
        driver = pool.submit(gpus.ask_driver, around)
        compiler = pool.submit(building.compiler_check, around)
        answers = {name: future.result() for name, future in running.items()}
    return Report((
        *_host(around),
        *network_checks(builds),
        *gpus.gpu_checks(driver.result(), answers["torch"], answers["horovod"]),
        *(judge(answers[name]) for name, judge in packages.JUDGES.items()),
        *_mpi(builds.result(), answers),
        building.horovodrun_check(around),
        building.wrapper_check(around),
        compiler.result(),
        *(packages.extra_check(name, answers[name]) for name in packages.EXTRAS),
        services.daemon_check(),
    ))  # fmt: skip


def _host(around: Mapping[str, str]) -> list[Check]:
    active = any(port.active for port in network.ports())
    return [
        host.python_check(), host.core_check(), host.binding_check(around), *host.user_checks(), host.shm_check(),
        *host.limit_checks(infiniband=active),
    ]  # fmt: skip


def network_checks(builds: Future[list[mpi.Build]]) -> list[Check]:
    """Cards and InfiniBand ports."""
    return [network.card_check(network.cards()), *network.infiniband_checks(network.ports(), builds.result())]


def _mpi(builds: list[mpi.Build], answers: Mapping[str, probes.Probe]) -> list[Check]:
    libraries = (answers["together"].answer or {}).get("libmpi") or [None]
    banner = (answers["mpi4py"].answer or {}).get("library")
    return [mpi.mpirun_check(builds), *mpi.pair_check(builds, libraries[0], banner), *mpi.others_check(builds)]
