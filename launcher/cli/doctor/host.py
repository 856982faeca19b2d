"""This host: cores, limits, shared memory, user, and variables that would change what a job gets."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path

from launcher.cli.doctor.checks import Check
from launcher.host.text import counted

SHM_ENOUGH = 256 * 2**20
"""Bytes of /dev/shm below which ranks and DataLoader workers are known to run out of it."""
FILES_ENOUGH = 1024
"""Open files: each rank costs mpirun several, each DataLoader worker its rank several."""
_BINDERS = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "I_MPI_PIN", "I_MPI_PIN_DOMAIN",
            "OMPI_MCA_hwloc_base_binding_policy", "PRTE_MCA_hwloc_default_binding_policy")  # fmt: skip


def python_check() -> Check:
    """The interpreter."""
    return Check("Python", "ok", f"{sys.version.split()[0]} at {sys.executable}")


def core_check(quota: Path = Path("/sys/fs/cgroup/cpu.max"), nodes: Path = Path("/sys/devices/system/node")) -> Check:
    """Cores that a job may use, the container's quota, and how they are grouped."""
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    groups = len(list(nodes.glob("node[0-9]*"))) or 1
    found = f"{usable} of {present}, in {counted(groups, 'NUMA node')}"
    allowed = _quota(quota)
    if allowed is not None and allowed + 0.01 < usable:
        fix = f"more than {max(1, int(allowed))} busy ranks take turns: write `resources.ranks` accordingly, or raise the limit"
        return Check("cores", "note", f"{found}, but this container may use {allowed:g} at a time", fix)
    return Check("cores", "ok", found)


def _quota(path: Path) -> float | None:
    try:
        most, period = path.read_text("ascii").split()[:2]
        return None if most == "max" else int(most) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def binding_check(environ: Mapping[str, str]) -> Check:
    """What pins ranks and threads to cores, beside the job's own settings."""
    found = [f"{name}={environ[name]}" for name in _BINDERS if environ.get(name)]
    if found:
        fix = "`unset` them: a job says `resources.binding` and `resources.threads_per_rank`, and these change what that means"
        return Check("binding", "note", ", ".join(found), fix)
    return Check("binding", "ok", "as each job's `resources.binding` says (default: none)")


def user_checks() -> list[Check]:
    """Root needs consent."""
    if os.geteuid() != 0:
        return []
    need = "mpirun refuses root unless a job consents with `resources.allow_root: true`"
    return [Check("user", "note", "root", need)]


def shm_check(shm: Path = Path("/dev/shm")) -> Check:
    """Space in shared memory."""
    if not shm.is_dir():
        return Check("/dev/shm", "missing", "not there", "mount a tmpfs there: ranks on one host talk through it")
    state = os.statvfs(shm)
    free, total = state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize
    found = f"{free / 2**20:.0f} of {total / 2**20:.0f} MB free"
    if free >= SHM_ENOUGH:
        return Check("/dev/shm", "ok", found)
    small = "ranks and DataLoader workers may run out of it; in a container: --shm-size=1g"
    if total >= SHM_ENOUGH:
        small = "it is full: jobs that were killed may have left files there (`ls -l /dev/shm`; remove your own)"
    return Check("/dev/shm", "note", found, small)


def limit_checks(*, infiniband: bool) -> list[Check]:
    """Locked memory and open files."""
    return [memlock_check(resource.getrlimit(resource.RLIMIT_MEMLOCK), infiniband=infiniband),
            files_check(resource.getrlimit(resource.RLIMIT_NOFILE))]  # fmt: skip


def memlock_check(limits: tuple[int, int], *, infiniband: bool) -> Check:
    """InfiniBand registers memory, which counts as locked."""
    soft, _ = limits
    found = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft / 2**10:.0f} kB"
    if infiniband and soft != resource.RLIM_INFINITY:
        fix = "InfiniBand needs `* - memlock unlimited` in /etc/security/limits.conf, and the same for the scheduler's daemon"
        return Check("locked memory", "note", found, fix)
    return Check("locked memory", "ok", found)


def files_check(limits: tuple[int, int]) -> Check:
    """Open files of one process."""
    soft, hard = limits
    infinite = resource.RLIM_INFINITY
    found = "unlimited" if soft == infinite else f"{soft}" + (f" (at most {hard})" if hard not in (soft, infinite) else "")
    if soft != infinite and soft < FILES_ENOUGH:
        wanted = 4096 if hard == infinite else min(hard, 4096)
        fix = f"`ulimit -n {wanted}` before starting; if that is refused, ask the administrator"
        return Check("open files", "note", found, fix)
    return Check("open files", "ok", found)
