"""Graphics cards: what the driver sees against what torch and Horovod were built for."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from launcher.bootstrap.probes import Probe
from launcher.cli.doctor.checks import Check
from launcher.host.program import Answer, run
from launcher.host.text import counted

QUERY = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")


def ask_driver(environ: Mapping[str, str]) -> Answer | None:
    """What nvidia-smi says; None where it is not there."""
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    return run([program, *QUERY], environment=environ) if program else None


def gpu_checks(driver: Answer | None, torch: Probe, horovod: Probe) -> list[Check]:
    """The cards, and whether all that is needed for them is there."""
    if driver is None:
        return [Check("GPUs", "ok", "none (there is no nvidia-smi)")]
    cards = [line.strip() for line in driver.stdout.splitlines() if line.count(",") == 2]
    if driver.code != 0 or not cards:
        fix = "`nvidia-smi` by itself shows what is wrong: mostly the driver and its kernel module differ, until a restart"
        return [Check("GPUs", "note", f"nvidia-smi {driver.fault if driver.code != 0 else 'names none'}", fix)]
    counted = "; ".join(dict.fromkeys(f"{cards.count(card)} × {card}" for card in cards))
    return [Check("GPUs", "ok", counted), *_torch(torch, len(cards)), *_horovod(horovod)]


def _torch(torch: Probe, cards: int) -> list[Check]:
    if torch.answer is None or torch.answer["gpus"] == cards:
        return []
    if not torch.answer["cuda"]:
        fix = "install torch with CUDA (`make setup GPU=nccl`)"
        return [Check("torch on GPUs", "note", "this torch is built for the CPU only", fix)]
    found = f"torch sees {torch.answer['gpus']} of {counted(cards, 'GPU')}"
    fix = "check CUDA_VISIBLE_DEVICES, and that the driver is new enough for torch's CUDA"
    return [Check("torch on GPUs", "note", found, fix)]


def _horovod(horovod: Probe) -> list[Check]:
    if horovod.answer is None or horovod.answer["nccl"]:
        return []
    fix = "gradients go through host memory; Horovod built with HOROVOD_GPU_OPERATIONS=NCCL (`make setup GPU=nccl`) changes that"
    return [Check("Horovod on GPUs", "note", "built without NCCL", fix)]
