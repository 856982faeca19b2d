from __future__ import annotations

import os
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.bootstrap.probes import Probe
from launcher.cli.doctor import host, job
from launcher.cli.doctor.mpi import Build
from launcher.host.program import Answer
from launcher.spec.model import NetworkSettings
from tests.bootstrap.conftest import Shims

INFINITE = resource.RLIM_INFINITY


def fake(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


@pytest.mark.parametrize(
    ("free", "total", "state", "found", "fix"),
    [
        (16384, 16384, "note", "64 of 64 MB free", "--shm-size"),
        (1024, 1048576, "note", "4 of 4096 MB free", "jobs that were killed"),
        (1048576, 1048576, "ok", "4096 of 4096 MB free", ""),
    ],
)
def test_shared_memory(
    monkeypatch: pytest.MonkeyPatch, free: int, total: int, state: str, found: str, fix: str, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free, f_frsize=4096, f_blocks=total))
    check = host.shm_check(tmp_path)
    assert (check.state, check.found) == (state, found)
    assert fix in check.fix


def test_no_shared_memory_at_all(tmp_path: Path) -> None:
    assert host.shm_check(tmp_path / "none").state == "missing"


@pytest.mark.parametrize(
    ("limits", "infiniband", "state"),
    [((INFINITE, INFINITE), True, "ok"), ((65536, 65536), True, "note"), ((65536, 65536), False, "ok")],
)
def test_locked_memory_matters_to_infiniband_alone(limits: tuple[int, int], infiniband: bool, state: str) -> None:
    check = host.memlock_check(limits, infiniband=infiniband)
    assert check.state == state
    assert ("limits.conf" in check.fix) == (state == "note")


def test_few_open_files_get_the_command_that_raises_them() -> None:
    assert host.files_check((1024, 4096)).state == "ok"
    assert "ulimit -n 512" in host.files_check((64, 512)).fix
    assert "ulimit -n 4096" in host.files_check((64, INFINITE)).fix


def test_cores_that_a_container_may_not_use(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    assert host.core_check(quota).state == "ok"
    quota.write_text("max 100000\n")
    assert host.core_check(quota).state == "ok"
    quota.write_text("50000 100000\n")
    check = host.core_check(quota)
    assert check.state == "note"
    assert "may use 0.5 at a time" in check.found
    quota.write_text("garbage\n")
    assert host.core_check(quota).state == "ok"


def test_variables_that_bind_behind_the_jobs_back() -> None:
    assert host.binding_check({}).state == "ok"
    check = host.binding_check({"OMP_PROC_BIND": "close"})
    assert (check.state, check.found) == ("note", "OMP_PROC_BIND=close")


def test_cards_with_their_rates(tmp_path: Path) -> None:
    fake(tmp_path, eth0__operstate="up", eth0__speed="25000", eth0__mtu="9000", ib0__operstate="down", lo__operstate="unknown")
    fake(tmp_path, docker0__operstate="up", veth12__operstate="up")
    found = host.cards(tmp_path)
    assert [(card.name, card.up, card.megabits) for card in found] == [("eth0", True, 25000), ("ib0", False, None)]
    check = host.card_check(found)
    assert (check.state, check.found) == ("ok", "eth0 25 Gbit/s, ib0 down")


def test_no_card_and_several_cards_are_noted(tmp_path: Path) -> None:
    assert host.card_check(host.cards(tmp_path / "none")).found == "loopback only"
    fake(tmp_path, eth0__operstate="up", eth0__speed="-1", eth1__operstate="up", eth1__speed="100")
    check = host.card_check(host.cards(tmp_path))
    assert (check.state, check.found) == ("note", "eth0 rate unknown, eth1 100 Mbit/s")
    assert "network.interface" in check.fix


def infiniband(root: Path, *states: str) -> list[host.Port]:
    for number, state in enumerate(states):
        place = root / f"mlx5_{number}" / "ports" / "1"
        fake(place, state=state, rate="100 Gb/sec (4X EDR)", link_layer="InfiniBand")
    return host.ports(root)


def test_infiniband_ports(tmp_path: Path) -> None:
    assert host.infiniband_checks(host.ports(tmp_path / "none"), [])[0].found.startswith("none")
    ports = infiniband(tmp_path, "4: ACTIVE", "1: DOWN")
    (check,) = host.infiniband_checks(ports, [])
    assert check.state == "note"
    assert "mlx5_0:1 InfiniBand ACTIVE 100 Gb/sec (4X EDR)" in check.found
    assert "network.ucx_devices: mlx5_0:1" in check.fix


def test_infiniband_that_no_port_or_no_mpi_can_use(tmp_path: Path) -> None:
    (check,) = host.infiniband_checks(infiniband(tmp_path / "a", "2: INIT"), [])
    assert check.state == "note"
    assert "subnet manager" in check.fix
    without = Build(Path("/mpirun"), "openmpi", (4, 1, 8), ucx=False)
    checks = host.infiniband_checks(infiniband(tmp_path / "b", "4: ACTIVE"), [without])
    assert [check.state for check in checks] == ["ok", "note"]
    assert "built without UCX" in checks[1].found


@pytest.mark.parametrize(
    ("setting", "value", "absent"),
    [
        ("interface", "eth0,10.1.0.0/16", None),
        ("interface", "eth0,ib7", "there is no ib7 on this host"),
        ("nccl_socket_ifname", "eth,^docker", None),
        ("nccl_socket_ifname", "ib", "there is no ib on this host"),
        ("ucx_devices", "mlx5_0:1,eth0", None),
        ("ucx_devices", "mlx5_9:1", "there is no mlx5_9:1 on this host"),
    ],
)
def test_wires_that_a_job_names_must_be_there(tmp_path: Path, setting: str, value: str, absent: str | None) -> None:
    fake(tmp_path / "net", eth0__operstate="up", docker0__operstate="up")
    infiniband(tmp_path / "ib", "4: ACTIVE")
    checks = job.wire_checks(NetworkSettings(**{setting: value}), tmp_path / "net", tmp_path / "ib")
    expected = [] if absent is None else [(f"network.{setting}", "missing", absent)]
    assert [(check.name, check.state, check.found) for check in checks] == expected


CPU_TORCH = Probe({"version": "2.13", "cuda": None, "gpus": 0})
CUDA_TORCH = Probe({"version": "2.13", "cuda": "12.8", "gpus": 1})
PLAIN_HOROVOD = Probe({"version": "0.28.1", "mpi": True, "nccl": False})


def test_gpus_that_nothing_here_can_use() -> None:
    driver = Answer(0, "NVIDIA H200, 143771 MiB, 570.1\nNVIDIA H200, 143771 MiB, 570.1\n")
    checks = host.gpu_checks(driver, CPU_TORCH, PLAIN_HOROVOD)
    assert [check.state for check in checks] == ["ok", "note", "note"]
    assert checks[0].found == "2 × NVIDIA H200, 143771 MiB, 570.1"
    assert "torch sees 1 of 2 GPUs" in host.gpu_checks(driver, CUDA_TORCH, PLAIN_HOROVOD)[1].found


def test_a_sick_driver_is_noted_with_its_words(shims: Shims) -> None:
    folder = shims("sh", nvidia_smi="exit 0")
    (folder / "nvidia_smi").rename(folder / "nvidia-smi")
    (folder / "nvidia-smi").write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    (check,) = host.gpu_checks(host.ask_driver({"PATH": str(folder)}), CPU_TORCH, PLAIN_HOROVOD)
    assert check.state == "note"
    assert "Driver/library version mismatch" in check.found
    assert host.ask_driver({"PATH": "/nowhere"}) is None
