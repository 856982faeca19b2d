"""A training that saves itself when it is asked to (USR1), after a step that all ranks agree on, and goes on from there.

    python -m tests.slurm.saving_program EPOCHS SECONDS_A_STEP
"""

from __future__ import annotations

from hvdgrab import StopSignal

stop = StopSignal()  # first of all: before that, USR1 ends the process

import os  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import horovod.torch as hvd  # noqa: E402
import torch  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from hvdgrab import GraBOptimizer, GraBSampler, mark_finished  # noqa: E402
from hvdgrab.examples.digits import LeNet, load, loss_of  # noqa: E402

EPOCHS, PAUSE = int(sys.argv[1]), float(sys.argv[2])
CHECKPOINTS = Path(os.environ["HVDGRAB_JOB_DIR"]) / "checkpoints"
NEWEST = CHECKPOINTS / "newest"
"""Names the newest checkpoint that is whole."""


def save(name: str, state: dict[str, Any]) -> None:
    """Every rank writes its part; the checkpoint counts once all are there."""
    (CHECKPOINTS / name).mkdir(parents=True, exist_ok=True)
    torch.save(state, CHECKPOINTS / name / f"rank-{hvd.rank()}")
    hvd.barrier()
    if hvd.rank() == 0:
        part = NEWEST.with_suffix(".part")
        part.write_text(name)
        part.replace(NEWEST)
        print(f"saved {name}", flush=True)


def main() -> None:
    hvd.init()
    torch.manual_seed(0)
    dataset, _ = load()
    model = LeNet()
    sampler = GraBSampler(dataset, batch_size=32)
    loader = DataLoader(dataset, batch_sampler=sampler)
    sgd = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())
    optimizer = GraBOptimizer(sgd, sampler, model, total_epochs=EPOCHS)
    if NEWEST.exists():
        state = torch.load(CHECKPOINTS / NEWEST.read_text() / f"rank-{hvd.rank()}", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        print(f"rank {hvd.rank()} goes on from {NEWEST.read_text()}", flush=True)
    for epoch in range(sampler.next_epoch, EPOCHS):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = loss_of(model, images, labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            optimizer.log(loss=loss)
            time.sleep(PAUSE)
            if stop.agreed():
                save(f"{epoch}-{sampler.book.position}", {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
                return
    optimizer.close()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    if hvd.rank() == 0:
        (Path(os.environ["HVDGRAB_JOB_DIR"]) / "weights").write_text(str(weights.double().pow(2).sum().item()))
        mark_finished()


main()
