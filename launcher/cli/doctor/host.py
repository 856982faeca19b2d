"""This host: cores, limits, shared memory, user, graphics cards and ways to other hosts, and the launcher's daemon on it."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.bootstrap.probes import Probe
from launcher.cli.doctor.checks import Check
from launcher.cli.doctor.mpi import Build
from launcher.daemon.http.client import Client, NotRunningError
from launcher.errors import LauncherError
from launcher.host.program import Answer, run
from launcher.host.text import counted
from launcher.jobdir.words import FINAL

SHM_ENOUGH = 256 * 2**20
"""Bytes of /dev/shm below which ranks and DataLoader workers are known to run out of it."""
FILES_ENOUGH = 1024
"""Open files: each rank costs mpirun several, each DataLoader worker its rank several."""
_BINDERS = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "I_MPI_PIN", "I_MPI_PIN_DOMAIN",
            "OMPI_MCA_hwloc_base_binding_policy", "PRTE_MCA_hwloc_default_binding_policy")  # fmt: skip
_GPU_QUERY = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
NET = Path("/sys/class/net")
INFINIBAND = Path("/sys/class/infiniband")
_IGNORED = ("lo", "ifb", "veth", "docker", "virbr", "br-", "cni", "flannel", "dummy", "tunl", "sit", "ip6tnl")
"""Loopback and what containers make: no way to another host."""


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


@dataclass(frozen=True)
class Card:
    """A network interface that leads out of this host."""

    name: str
    up: bool
    megabits: int | None
    """Link rate in Mbit/s; None if the driver does not tell, as for virtual cards."""
    mtu: int | None


@dataclass(frozen=True)
class Port:
    """One port of an InfiniBand or RoCE device."""

    device: str
    number: str
    active: bool
    state: str
    rate: str
    """As the kernel says it, such as ``100 Gb/sec (4X EDR)``."""
    layer: str
    """InfiniBand or Ethernet."""


def cards(root: Path = NET) -> list[Card]:
    """The interfaces that may lead to other hosts, by name."""
    names = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    return [_card(root / name) for name in names if not name.startswith(_IGNORED)]


def _card(path: Path) -> Card:
    speed, mtu = _number(path / "speed"), _number(path / "mtu")
    return Card(path.name, _read(path / "operstate") not in ("down", "lowerlayerdown", "notpresent"), speed, mtu)


def ports(root: Path = INFINIBAND) -> list[Port]:
    """All ports of all devices."""
    found = []
    for device in sorted(root.iterdir()) if root.is_dir() else []:
        for port in sorted((device / "ports").iterdir()) if (device / "ports").is_dir() else []:
            state = _read(port / "state").partition(":")[2].strip() or "unknown"
            layer = _read(port / "link_layer") or "unknown"
            found.append(Port(device.name, port.name, state == "ACTIVE", state, _read(port / "rate") or "unknown rate", layer))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text.isdecimal() and int(text) > 0 else None


def rate_text(megabits: int | None) -> str:
    """``10 Gbit/s``."""
    if megabits is None:
        return "rate unknown"
    return f"{megabits / 1000:g} Gbit/s" if megabits >= 1000 else f"{megabits} Mbit/s"


def card_check(found: Sequence[Card]) -> Check:
    """The cards that lead out."""
    texts = [f"{card.name} {rate_text(card.megabits) if card.up else 'down'}" for card in found]
    if not any(card.up for card in found):
        fix = "jobs on this host alone work; for several hosts, bring an interface up (`ip link`)"
        return Check("network", "note", ", ".join(texts) or "loopback only", fix)
    if sum(card.up for card in found) > 1:
        fix = "several ways lead out: if ranks on other hosts cannot be reached, name the right one with `network.interface`"
        return Check("network", "note", ", ".join(texts), fix)
    return Check("network", "ok", ", ".join(texts))


def infiniband_checks(found: Sequence[Port], builds: Sequence[Build]) -> list[Check]:
    """The ports, and whether the MPI can use them; or that there are none."""
    if not found:
        return [Check("InfiniBand", "ok", "none; MPI uses TCP between hosts")]
    texts = ", ".join(f"{port.device}:{port.number} {port.layer} {port.state} {port.rate}" for port in found)
    asleep = [f"{port.device}:{port.number}" for port in found if not port.active]
    if len(asleep) == len(found):
        fix = "no port is active: check cables and the subnet manager (`ibstat`); until then MPI uses TCP"
        return [Check("InfiniBand", "note", texts, fix)]
    checks = [Check("InfiniBand", "ok", texts)]
    if asleep:
        active = ",".join(f"{port.device}:{port.number}" for port in found if port.active)
        fix = f"keep UCX to the active ports: `network.ucx_devices: {active}`"
        checks = [Check("InfiniBand", "note", f"{texts}; not active: {', '.join(asleep)}", fix)]
    if builds and builds[0].ucx is False:
        fix = "load an MPI that was built with UCX; this one uses TCP, at a fraction of the rate"
        checks.append(Check("MPI over InfiniBand", "note", f"{builds[0].label} was built without UCX", fix))
    return checks


def ask_driver(environ: Mapping[str, str]) -> Answer | None:
    """What nvidia-smi says; None if it is not there."""
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    return run([program, *_GPU_QUERY], environment=environ) if program else None


def gpu_checks(driver: Answer | None, torch: Probe, horovod: Probe) -> list[Check]:
    """The cards, and whether all that is needed for them is there."""
    if driver is None:
        return [Check("GPUs", "ok", "none (there is no nvidia-smi)")]
    cards = [line.strip() for line in driver.stdout.splitlines() if line.count(",") == 2]
    if driver.code != 0 or not cards:
        fix = "`nvidia-smi` by itself shows what is wrong: mostly the driver and its kernel module differ, until a restart"
        return [Check("GPUs", "note", f"nvidia-smi {driver.fault if driver.code != 0 else 'names none'}", fix)]
    counted = "; ".join(dict.fromkeys(f"{cards.count(card)} × {card}" for card in cards))
    return [Check("GPUs", "ok", counted), *_torch_on_gpus(torch, len(cards)), *_horovod_on_gpus(horovod)]


def _torch_on_gpus(torch: Probe, cards: int) -> list[Check]:
    if torch.answer is None or torch.answer["gpus"] == cards:
        return []
    if not torch.answer["cuda"]:
        fix = "install torch with CUDA (`make setup GPU=nccl`)"
        return [Check("torch on GPUs", "note", "this torch is built for the CPU only", fix)]
    found = f"torch sees {torch.answer['gpus']} of {counted(cards, 'GPU')}"
    fix = "check CUDA_VISIBLE_DEVICES, and that the driver is new enough for torch's CUDA"
    return [Check("torch on GPUs", "note", found, fix)]


def _horovod_on_gpus(horovod: Probe) -> list[Check]:
    if horovod.answer is None or horovod.answer["nccl"]:
        return []
    fix = "gradients go through host memory; Horovod built with HOROVOD_GPU_OPERATIONS=NCCL (`make setup GPU=nccl`) changes that"
    return [Check("Horovod on GPUs", "note", "built without NCCL", fix)]


def daemon_check() -> Check:
    """The daemon's state.  Does not start a daemon; the first submission does."""
    try:
        status = Client.connect(start=False).status()
    except NotRunningError:
        return Check("daemon", "ok", "does not run; the first job starts it")
    except LauncherError as error:
        fix = "`hvdgrab-launch daemon status` says more; `--foreground` runs a job without it"
        return Check("daemon", "note", str(error), fix)
    jobs = sum(count for state, count in status.jobs.items() if state not in FINAL)
    age = time.strftime("%Y-%m-%d %H:%M", time.localtime(status.started))
    found = f"runs since {age} on {status.host} (pid {status.pid}), {counted(jobs, 'job')} under way"
    if status.problem:
        return Check("daemon", "note", f"{found}; {status.problem}", f"its log: {status.log}")
    return Check("daemon", "ok", found)
